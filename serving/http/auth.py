"""Access control: bearer tokens with a scope, and limits on how often a client may call.

Tokens come from a file, one `SCOPE TOKEN` a line, or from the environment in the same form,
separated by lines or commas. Only their digests are kept. The file is read again when it changes,
so tokens are rotated without a restart. An address with too many failed attempts must wait, and so
must every token that is new at that address; a token that was valid there before need not.
"""

import hashlib
import hmac
import logging
import math
import os
import stat
import time
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from fastapi import Request

from loadmaster.envs.errors import InputError
from loadmaster.models.manifest import read_bounded
from loadmaster.serving.http.body import HttpError
from loadmaster.serving.settings import LimitSettings, is_loopback

logger = logging.getLogger(__name__)

TOKENS = "LOADMASTER_TOKENS"  # environment variable
MIN_TOKEN = 16  # characters
MAX_FILE_BYTES = 64 << 10
MAX_CLIENTS = 4096  # whose rates are kept


class Scope(IntEnum):
    """Each scope includes the lower ones."""

    READ = 1  # decide, feedback, status
    ADMIN = 2  # pause, resume, promote, rollback


class Principal(NamedTuple):
    """Owner of a valid token, identified by the token's digest."""

    digest: bytes
    scope: Scope


Principals = tuple[Principal, ...]


class TokenStore:
    """The tokens that are valid now; if none, every client on this machine may do everything."""

    def __init__(self, file: Path | None, environment: Mapping[str, str] = os.environ) -> None:
        self._file, self._from_environment = file, environment.get(TOKENS, "")
        self._signature = None if file is None else _file_signature(file)
        self._principals = self._read()

    @property
    def principals(self) -> Principals:
        """Read the file again if it has changed; if it is now invalid, the old tokens stay."""
        if self._file is not None and (signature := _file_signature(self._file)) != self._signature:
            self._signature = signature  # before reading: a change meanwhile is seen next time
            try:
                self._principals = self._read()
            except InputError as fault:
                logger.warning("%s; the tokens read before stay valid", fault)
        return self._principals

    def _read(self) -> Principals:
        from_environment = parse_tokens(self._from_environment, TOKENS)
        if self._file is None:
            return from_environment
        try:
            text = read_bounded(self._file, MAX_FILE_BYTES)
        except InputError as fault:
            raise InputError(
                f"tokens: {fault}; expected a file of `read TOKEN` or `admin TOKEN` lines"
            ) from None
        from_file = parse_tokens(text.decode("utf-8", "replace"), str(self._file))
        if not from_file:
            raise InputError(f"tokens {self._file} holds none; expected at least one line")
        return from_environment + from_file


def _file_signature(file: Path) -> tuple[int, int, int] | None:
    """Changes whenever the file does; None if it cannot be accessed."""
    try:
        facts = file.stat()
    except OSError:
        return None
    return facts.st_ino, facts.st_ctime_ns, facts.st_size


def file_warning(file: Path) -> str | None:
    """Return a warning if every user of this machine may read the file."""
    if not file.stat().st_mode & stat.S_IROTH:
        return None
    return f"tokens {file} is readable by all users of this machine; expected `chmod o-r` of it"


def parse_tokens(text: str, where: str) -> Principals:
    """Parse `SCOPE TOKEN` lines. Errors never repeat a token."""
    found = []
    for number, line in enumerate(text.replace(",", "\n").splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or words[0] not in ("read", "admin"):
            raise InputError(f"{where}, line {number}: expected `read TOKEN` or `admin TOKEN`")
        if len(words[1]) < MIN_TOKEN or not words[1].isascii():
            raise InputError(
                f"{where}, line {number}: the token is too weak; expected {MIN_TOKEN} ASCII "
                "characters or more"
            )
        found.append(Principal(_digest(words[1]), Scope[words[0].upper()]))
    return tuple(found)


def find_principal(principals: Principals, token: str) -> Principal | None:
    """Compare with every digest, so that the time does not depend on the token."""
    digest, found = _digest(token), None
    for principal in principals:
        if hmac.compare_digest(digest, principal.digest):
            found = principal
    return found


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


class RateLimit:
    """Token bucket for each client: `rate` requests a second, `burst` at once."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._left: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()  # requests, time

    def wait_s(self, client: Hashable, now_s: float) -> float:
        """Count a request and return 0 if it is allowed; else return how long to wait."""
        left = self._left_at(client, now_s)
        allowed = left >= 1
        self._left[client] = (left - 1 if allowed else left), now_s
        self._left.move_to_end(client)
        if len(self._left) > MAX_CLIENTS:
            self._left.popitem(last=False)
        return 0.0 if allowed else (1 - left) / self._rate

    def would_wait_s(self, client: Hashable, now_s: float) -> float:
        """How long a request would have to wait; counts nothing."""
        return max(0.0, 1 - self._left_at(client, now_s)) / self._rate

    def _left_at(self, client: Hashable, now_s: float) -> float:
        left, when = self._left.get(client, (self._burst, now_s))
        return min(self._burst, left + (now_s - when) * self._rate)


class FailedAuthLimiter:
    """Limits guesses of tokens: `wrong` failures of an address at once, then one a second."""

    def __init__(self, wrong: int) -> None:
        self._wrong = RateLimit(1.0, wrong)
        self._known: OrderedDict[tuple[str, bytes], None] = OrderedDict()  # valid there before

    def wait_s(self, address: str, principal: Principal | None, now_s: float) -> float:
        """How long that address must wait; `principal` is None for an invalid token.

        While it is more than 0, the answer must not depend on whether the token is valid.
        """
        if principal is not None and (address, principal.digest) in self._known:
            return 0.0
        if principal is None:
            return self._wrong.wait_s(address, now_s)
        wait_s = self._wrong.would_wait_s(address, now_s)
        if not wait_s:
            self._known[address, principal.digest] = None
            if len(self._known) > MAX_CLIENTS:
                self._known.popitem(last=False)
        return wait_s


class AccessControl:
    """Checks token, scope and rate of every request."""

    def __init__(self, tokens: TokenStore, limits: LimitSettings) -> None:
        self._tokens = tokens
        self._rate = RateLimit(limits.rate_per_s, limits.burst)
        self._failures = FailedAuthLimiter(limits.wrong_tokens)

    @property
    def uses_tokens(self) -> bool:
        return bool(self._tokens.principals)

    def admit(self, request: Request, scope: Scope) -> Scope:
        """Return the client's scope; raises HttpError if the request is not allowed."""
        address = request.client.host if request.client else ""
        principals = self._tokens.principals
        if not principals:
            _require_local_origin(request.headers)
            self._check_rate(address)
            return Scope.ADMIN
        principal = self._authenticate(request, address, principals)
        if principal.scope < scope:
            needed = scope.name.lower()
            raise HttpError(403, f"the token may not do this; expected one of scope {needed}")
        self._check_rate(principal.digest)
        return principal.scope

    def _authenticate(self, request: Request, address: str, principals: Principals) -> Principal:
        headers = request.headers.getlist("authorization")
        kind, _, token = (headers[0] if len(headers) == 1 else "").strip().partition(" ")
        token = token.strip()
        if kind.lower() != "bearer" or not token:
            self._check_rate(address)
        else:
            principal = find_principal(principals, token)
            wait_s = self._failures.wait_s(address, principal, time.monotonic())
            if wait_s > 0:
                raise _too_many("too many wrong tokens from this address", wait_s)
            if principal is not None:
                return principal
        raise HttpError(
            401,
            "no valid token; expected one header Authorization: Bearer TOKEN",
            headers={"WWW-Authenticate": "Bearer"},
        )

    def _check_rate(self, client: str | bytes) -> None:
        wait_s = self._rate.wait_s(client, time.monotonic())
        if wait_s > 0:
            raise _too_many("too many requests", wait_s)


def _require_local_origin(headers: Mapping[str, str]) -> None:
    """Without tokens, refuse web pages of other sites that a browser on this machine shows.

    Browsers send the page's site as Origin, and the name that led here as Host: a site whose name
    resolves to 127.0.0.1 is recognised by its name.
    """
    host = headers.get("host")
    if host is None:
        return  # not a browser
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if not is_loopback(name):
        raise HttpError(403, f"Host {host[:80]!r} is not allowed without tokens; use 127.0.0.1")
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != host:
        raise HttpError(403, f"Origin {origin[:80]!r} is not allowed without tokens; use {host}")


def _too_many(line: str, wait_s: float) -> HttpError:
    seconds = max(1, math.ceil(wait_s))
    return HttpError(429, f"{line}; wait {seconds} s", headers={"Retry-After": str(seconds)})
