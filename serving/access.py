"""Who may ask for what: bearer tokens with a scope, and how often one may ask.

Tokens come from a file, one `SCOPE TOKEN` a line, or from the environment in the same form, lines
or commas apart. Only their digests are kept. The file is read again when it changes, so that
tokens are rotated without a restart.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections import OrderedDict
from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from loadmaster.envs.errors import InputError

TOKENS = "LOADMASTER_TOKENS"  # the environment's
SHORTEST = 16  # characters of a token
LARGEST = 64 << 10  # bytes of a file of tokens
ASKERS = 4096  # whose rates are remembered


class Scope(IntEnum):
    """The higher one may do all that the lower may."""

    READ = 1  # decide, feedback, status
    ADMIN = 2  # pause, resume, promote, rollback


class Keys(NamedTuple):
    """Digests of tokens; none at all: everybody may do everything, on this machine alone."""

    digests: tuple[tuple[bytes, Scope], ...]

    @property
    def needed(self) -> bool:
        return bool(self.digests)

    def scope_of(self, token: str) -> Scope | None:
        """Compared with every key in the same time, whether or not one fits."""
        given, found = _digest(token), None
        for digest, scope in self.digests:
            if hmac.compare_digest(given, digest):
                found = scope
        return found


class Doorkeeper:
    """Knows the tokens of this moment."""

    def __init__(self, file: Path | None, environment: Mapping[str, str] = os.environ) -> None:
        self._file, self._given = file, environment.get(TOKENS, "")
        self._seen: tuple[int, int] | None = None
        self._keys = self._read()

    @property
    def keys(self) -> Keys:
        """Read anew where the file has changed; one that went bad leaves the old tokens valid."""
        if self._file is not None:
            try:
                facts = self._file.stat()
                if (facts.st_mtime_ns, facts.st_size) != self._seen:
                    self._keys = self._read()
            except (OSError, InputError):
                pass
        return self._keys

    def _read(self) -> Keys:
        keys = parse_tokens(self._given, TOKENS)
        if self._file is not None:
            try:
                facts = self._file.stat()
                with self._file.open("rb") as opened:
                    text = opened.read(LARGEST + 1)
            except OSError as fault:
                raise InputError(
                    f"tokens {self._file}: {fault.strerror}; expected a file of `read TOKEN` or "
                    "`admin TOKEN` lines"
                ) from None
            if len(text) > LARGEST:
                raise InputError(f"tokens {self._file}: expected at most {LARGEST:,} bytes")
            more = parse_tokens(text.decode("utf-8", "replace"), str(self._file))
            if not more.needed:
                raise InputError(f"tokens {self._file} holds none; expected at least one line")
            keys = Keys(keys.digests + more.digests)
            self._seen = facts.st_mtime_ns, facts.st_size
        return keys


def parse_tokens(text: str, where: str) -> Keys:
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
        found.append((_digest(words[1]), Scope[words[0].upper()]))
    return Keys(tuple(found))


def bearer(header: str | None) -> str | None:
    """The token of an Authorization header; None if there is none."""
    kind, _, token = (header or "").strip().partition(" ")
    return token.strip() if kind.lower() == "bearer" and token.strip() else None


class RateLimit:
    """A bucket for each who asks: `rate` requests a second, `burst` at once."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, when

    def wait_s(self, asker: str, now_s: float) -> float:
        """0 if the request may pass, which is counted; else how long to wait for the next."""
        left, when = self._left.get(asker, (self._burst, now_s))
        left = min(self._burst, left + (now_s - when) * self._rate)
        passes = left >= 1
        self._left[asker] = (left - 1 if passes else left), now_s
        self._left.move_to_end(asker)
        if len(self._left) > ASKERS:
            self._left.popitem(last=False)
        return 0.0 if passes else (1 - left) / self._rate


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
