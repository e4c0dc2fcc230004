"""Who may ask for what: bearer tokens with a scope, and how often one may ask.

Tokens come from a file, one `SCOPE TOKEN` a line, or from the environment in the same form, lines
or commas apart. Only their digests are kept. The file is read again when it changes, so that
tokens are rotated without a restart. Who has guessed wrong too often has to wait, and so has every
new face at the same address; a holder of a token who has been there before does not.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import stat
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from loadmaster.envs.errors import InputError
from loadmaster.models.manifest import read_bounded

logger = logging.getLogger(__name__)

TOKENS = "LOADMASTER_TOKENS"  # the environment's
SHORTEST = 16  # characters of a token
LARGEST = 64 << 10  # bytes of a file of tokens
ASKERS = 4096  # whose rates are remembered


class Scope(IntEnum):
    """The higher one may do all that the lower may."""

    READ = 1  # decide, feedback, status
    ADMIN = 2  # pause, resume, promote, rollback


class Principal(NamedTuple):
    """Of a valid token: known by its digest."""

    digest: bytes
    scope: Scope


class TokenSet(NamedTuple):
    """Digests of tokens; none at all: everybody may do everything, on this machine alone."""

    holders: tuple[Principal, ...]

    @property
    def needed(self) -> bool:
        return bool(self.holders)

    def holder_of(self, token: str) -> Principal | None:
        """Compared with every key in the same time, whether or not one fits."""
        given, found = _digest(token), None
        for holder in self.holders:
            if hmac.compare_digest(given, holder.digest):
                found = holder
        return found


class TokenStore:
    """Knows the tokens of this moment."""

    def __init__(self, file: Path | None, environment: Mapping[str, str] = os.environ) -> None:
        self._file, self._given = file, environment.get(TOKENS, "")
        self._seen = _look(file)
        self._keys = self._read()

    @property
    def keys(self) -> TokenSet:
        """Read anew where the file has changed; one that went bad leaves the old tokens valid."""
        if self._file is not None and (facts := _look(self._file)) != self._seen:
            self._seen = facts  # before it is read: what changes meanwhile is seen the next time
            try:
                self._keys = self._read()
            except InputError as fault:
                logger.warning("%s; the tokens read before stay valid", fault)
        return self._keys

    def _read(self) -> TokenSet:
        keys = parse_tokens(self._given, TOKENS)
        if self._file is not None:
            try:
                text = read_bounded(self._file, LARGEST)
            except InputError as fault:
                raise InputError(
                    f"tokens: {fault}; expected a file of `read TOKEN` or `admin TOKEN` lines"
                ) from None
            more = parse_tokens(text.decode("utf-8", "replace"), str(self._file))
            if not more.needed:
                raise InputError(f"tokens {self._file} holds none; expected at least one line")
            keys = TokenSet(keys.holders + more.holders)
        return keys


def _look(file: Path | None) -> tuple[int, int, int] | None:
    """What differs whenever the file does; None where it cannot be looked at."""
    try:
        facts = file.stat() if file is not None else None
    except OSError:
        return None
    return None if facts is None else (facts.st_ino, facts.st_ctime_ns, facts.st_size)


def exposure(file: Path) -> str | None:
    """A warning in one line where everybody on this machine may read the file."""
    if not file.stat().st_mode & stat.S_IROTH:
        return None
    return f"tokens {file} can be read by everybody on this machine; expected `chmod o-r` of it"


def parse_tokens(text: str, where: str) -> TokenSet:
    """Never repeats a token in an error."""
    found = []
    for number, line in enumerate(text.replace(",", "\n").splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or words[0] not in ("read", "admin"):
            raise InputError(f"{where}, line {number}: expected `read TOKEN` or `admin TOKEN`")
        if len(words[1]) < SHORTEST or not words[1].isascii():
            raise InputError(
                f"{where}, line {number}: the token is too weak; expected {SHORTEST} ASCII "
                "characters or more"
            )
        found.append(Principal(_digest(words[1]), Scope[words[0].upper()]))
    return TokenSet(tuple(found))


def bearer(header: str | None) -> str | None:
    """The token of an Authorization header; None if there is none."""
    kind, _, token = (header or "").strip().partition(" ")
    return token.strip() if kind.lower() == "bearer" and token.strip() else None


class RateLimit:
    """A bucket for each who asks: `rate` requests a second, `burst` at once."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._left: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()  # tokens, when

    def wait_s(self, asker: Hashable, now_s: float) -> float:
        """0 if the request may pass, which is counted; else how long to wait for the next."""
        left = self._left_at(asker, now_s)
        passes = left >= 1
        self._left[asker] = (left - 1 if passes else left), now_s
        self._left.move_to_end(asker)
        if len(self._left) > ASKERS:
            self._left.popitem(last=False)
        return 0.0 if passes else (1 - left) / self._rate

    def would_wait_s(self, asker: Hashable, now_s: float) -> float:
        """The same, and nothing is counted."""
        return max(0.0, 1 - self._left_at(asker, now_s)) / self._rate

    def _left_at(self, asker: Hashable, now_s: float) -> float:
        left, when = self._left.get(asker, (self._burst, now_s))
        return min(self._burst, left + (now_s - when) * self._rate)


class FailedAuthLimiter:
    """Slows down those who try one token after another."""

    def __init__(self, wrong: int) -> None:
        """So many wrong tokens of one address at once, then one a second."""
        self._wrong = RateLimit(1.0, wrong)
        self._familiar: OrderedDict[tuple[str, bytes], None] = OrderedDict()

    def wait_s(self, address: str, holder: Principal | None, now_s: float) -> float:
        """How long one at that address must wait; `holder`: whose token it is, None: nobody's.

        While it is more than 0 nobody is told whether the token is a good one.
        """
        if holder is not None and (address, holder.digest) in self._familiar:
            return 0.0
        if holder is None:
            return self._wrong.wait_s(address, now_s)
        wait_s = self._wrong.would_wait_s(address, now_s)
        if not wait_s:
            self._familiar[address, holder.digest] = None
            if len(self._familiar) > ASKERS:
                self._familiar.popitem(last=False)
        return wait_s


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
