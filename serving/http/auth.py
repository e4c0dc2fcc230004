"""Access control: bearer tokens with a scope, and limits on how often a client may call.

Tokens come from a file, one `SCOPE TOKEN` a line, or from the environment in the same form,
separated by lines or commas. `SCOPE TOKEN tenant=a,b` is limited to the tenants a and b. Only
digests of tokens are kept. The file is read again when it changes,
so tokens are rotated without a restart. An address with too many failed attempts must wait, and so
must every token that is new at that address; a token that was valid there before need not. The
address is that of the connection, or the one that a trusted proxy names in X-Forwarded-For.
"""

import hashlib
import hmac
import ipaddress
import logging
import math
import os
import re
import stat
import time
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from fastapi import Request
from starlette.datastructures import Headers

from loadmaster.envs.errors import InputError
from loadmaster.models.manifest import read_bounded
from loadmaster.serving.decisions.tenant_names import ALL_TENANTS, TenantAccess, is_tenant
from loadmaster.serving.http.body import HttpError
from loadmaster.serving.http.known_callers import KnownCallers
from loadmaster.serving.settings import LimitSettings, is_loopback

logger = logging.getLogger(__name__)

TOKENS = "LOADMASTER_TOKENS"  # environment variable
MIN_TOKEN = 16  # characters
MAX_FILE_BYTES = 64 << 10
# A comma that ends an entry, and not one between the tenants of a token
SEPARATOR = re.compile(r",[ \t,]*(?=(?:read|admin)[ \t]|#|\r?\n|$)")
MAX_CLIENTS = 4096  # whose rates are kept
HOST = re.compile(r"(?:\[([0-9a-f.]*:[0-9a-f:.]*)\]|([0-9a-z.-]+))(?::[0-9]{1,5})?", re.IGNORECASE)


class Scope(IntEnum):
    """Each scope includes the lower ones."""

    READ = 1  # decide, feedback, status
    ADMIN = 2  # pause, resume, promote, rollback


class Principal(NamedTuple):
    """Owner of a valid token, identified by the token's digest."""

    digest: bytes
    scope: Scope
    access: TenantAccess = ALL_TENANTS


Principals = tuple[Principal, ...]
ANYONE = Principal(b"", Scope.ADMIN)  # without tokens


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
    return tuple(
        Principal(_digest(token), scope, access) for scope, token, access in _lines(text, where)
    )


def first_token(file: Path | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """A valid token, for a client on this machine; None if there are none."""
    text = environment.get(TOKENS, "")
    if file is not None:
        text = read_bounded(file, MAX_FILE_BYTES).decode("utf-8", "replace")
    lines = sorted(_lines(text, str(file or TOKENS)), key=lambda one: one[2] is not ALL_TENANTS)
    return lines[0][1] if lines else None  # one that is not limited, if there is one


def _lines(text: str, where: str) -> Iterator[tuple[Scope, str, TenantAccess]]:
    for number, line in enumerate(SEPARATOR.sub("\n", text).splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        place = f"{where}, line {number}"
        if len(words) not in (2, 3) or words[0] not in ("read", "admin") or "," in words[1]:
            raise InputError(
                f"{place}: expected `read TOKEN` or `admin TOKEN`, each with tenant=NAME,... or not"
            )
        if len(words[1]) < MIN_TOKEN or not words[1].isascii():
            line = f"the token is too weak; expected {MIN_TOKEN} ASCII characters or more"
            raise InputError(f"{place}: {line}")
        yield Scope[words[0].upper()], words[1], _access(words[2:], place)


def _access(words: list[str], place: str) -> TenantAccess:
    """The tenants of a token, from `tenant=a,b` if it is there."""
    if not words:
        return ALL_TENANTS
    key, _, names = words[0].partition("=")
    tenants = names.split(",")
    if key != "tenant" or not all(map(is_tenant, tenants)):
        raise InputError(f"{place}: after the token, expected tenant=NAME or tenant=NAME,NAME,...")
    return TenantAccess(tenants)


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

    def __init__(self, wrong: int, known: KnownCallers) -> None:
        self._wrong, self._known = RateLimit(1.0, wrong), known

    def wait_s(self, address: str, principal: Principal | None, now_s: float) -> float:
        """How long that address must wait; `principal` is None for an invalid token.

        While it is more than 0, the answer must not depend on whether the token is valid.
        """
        if principal is None:
            return self._wrong.wait_s(address, now_s)
        if self._known.knows(address, principal.digest):
            return 0.0
        wait_s = self._wrong.would_wait_s(address, now_s)
        if not wait_s:
            self._known.add(address, principal.digest)
        return wait_s


class ProxyHeaders:
    """Finds the address of a client behind trusted proxies.

    Each proxy appends the address of its peer to X-Forwarded-For, so the client is the last one
    that is not a trusted proxy. What stands before it was sent by the client itself.
    """

    def __init__(self, trusted: Sequence[str]) -> None:
        self._networks = [ipaddress.ip_network(one) for one in trusted]

    def client_address(self, peer: str, headers: Headers) -> str:
        """The client's address; raises HttpError if a trusted proxy sent no address."""
        if not self._is_trusted(peer):
            return peer
        address = peer
        for entry in reversed(",".join(headers.getlist("x-forwarded-for")).split(",")):
            if not (entry := entry.strip()):
                continue
            parts = HOST.fullmatch(entry)  # some proxies append the port
            try:
                address = str(_parse_address((parts[1] or parts[2]) if parts else entry))
            except ValueError:
                line = f"X-Forwarded-For of the proxy holds {entry[:80]!r}; expected IP addresses"
                raise HttpError(400, line) from None
            if not self._is_trusted(address):
                break
        return address

    def _is_trusted(self, address: str) -> bool:
        try:
            parsed = _parse_address(address)
        except ValueError:
            return False
        return any(parsed in network for network in self._networks)


@lru_cache(maxsize=MAX_CLIENTS)
def _parse_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    parsed = ipaddress.ip_address(text)
    return getattr(parsed, "ipv4_mapped", None) or parsed


class AccessControl:
    """Checks token, scope and rate of every request."""

    def __init__(
        self,
        tokens: TokenStore,
        limits: LimitSettings,
        proxies: Sequence[str] = (),
        known: KnownCallers | None = None,
    ) -> None:
        """`proxies`: networks whose X-Forwarded-For header is used."""
        self._tokens, self._proxies = tokens, ProxyHeaders(proxies) if proxies else None
        self._rate = RateLimit(limits.rate_per_s, limits.burst)
        self.known = known or KnownCallers()
        self._failures = FailedAuthLimiter(limits.wrong_tokens, self.known)

    @property
    def uses_tokens(self) -> bool:
        return bool(self._tokens.principals)

    def admit(self, request: Request, scope: Scope) -> Principal:
        """Return the client's scope and tenants; raises HttpError if the request is not allowed."""
        client = request.scope.get("client")
        address: str = client[0] if client else ""
        if self._proxies is not None:
            address = self._proxies.client_address(address, request.headers)
        principals = self._tokens.principals
        if not principals:
            _require_local_origin(request.headers)
            self._check_rate(address)
            return ANYONE
        principal = self._authenticate(request, address, principals)
        if principal.scope < scope:
            needed = scope.name.lower()
            raise HttpError(403, f"the token may not do this; expected one of scope {needed}")
        self._check_rate(principal.digest)
        return principal

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


def _require_local_origin(headers: Headers) -> None:
    """Without tokens, refuse web pages of other sites that a browser on this machine shows.

    Browsers send the page's site as Origin, and the name that led here as Host: a site whose name
    resolves to 127.0.0.1 is recognised by its name.
    """
    hosts = headers.getlist("host")
    if len(hosts) != 1 or not _is_local_host(hosts[0]):
        given = ", ".join(hosts)[:80] or "none"
        raise HttpError(
            403, f"Host {given!r} is not allowed without tokens; expected one, of 127.0.0.1"
        )
    for origin in headers.getlist("origin"):
        if origin.partition("://")[2] != hosts[0]:
            line = f"Origin {origin[:80]!r} is not allowed without tokens"
            raise HttpError(403, f"{line}; use {hosts[0]}")


@lru_cache(maxsize=64)  # without tokens it is called for every request
def _is_local_host(host: str) -> bool:
    """Whether a Host header is `NAME` or `NAME:PORT` with a name of this machine only."""
    parts = HOST.fullmatch(host)
    return parts is not None and is_loopback((parts[1] or parts[2]).lower())


def _too_many(line: str, wait_s: float) -> HttpError:
    seconds = max(1, math.ceil(wait_s))
    return HttpError(429, f"{line}; wait {seconds} s", headers={"Retry-After": str(seconds)})
