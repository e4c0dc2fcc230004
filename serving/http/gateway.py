"""Who asks, how much, and what for: every request is checked here before anybody works on it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

from fastapi import Request

from loadmaster.envs.errors import InputError, unknown_name
from loadmaster.serving.decisions.decide import parse_options
from loadmaster.serving.decisions.request import to_json
from loadmaster.serving.decisions.service import DecisionService
from loadmaster.serving.http.auth import (
    FailedAuthLimiter,
    Principal,
    RateLimit,
    Scope,
    TokenStore,
    bearer,
)
from loadmaster.serving.http.body import Bodies, HttpError
from loadmaster.serving.http.idempotency import IdempotencyCache
from loadmaster.serving.settings import LimitSettings, is_loopback
from loadmaster.serving.timestamps import iso

SOON = {"Retry-After": "1"}


class Gateway:
    """Checks every request in the same order: token, scope, rate, system, size, content."""

    def __init__(
        self, systems: Mapping[str, DecisionService], doorkeeper: TokenStore, limits: LimitSettings
    ) -> None:
        self.systems, self._doorkeeper, self._limits = systems, doorkeeper, limits
        self._rate = RateLimit(limits.rate_per_s, limits.burst)
        self._brake = FailedAuthLimiter(limits.wrong_tokens)
        self._bodies = Bodies(limits.largest_bytes, limits.body_s)
        self._repeats = {name: IdempotencyCache(time.monotonic) for name in systems}
        self._waiting = 0
        self._began, self._began_at = time.monotonic(), time.time()

    def admit(self, request: Request, scope: Scope) -> Scope:
        """What the one who asks may do at most; raises Refused where that is not enough."""
        address = request.client.host if request.client else ""
        if not self._doorkeeper.keys.needed:
            _check_neighbour(request.headers)
            self._check_rate(address)
            return Scope.ADMIN
        holder = self._holder(request, address)
        if holder.scope < scope:
            wanted = scope.name.lower()
            raise HttpError(403, f"the token may not do this; expected one of scope {wanted}")
        self._check_rate(holder.digest)
        return holder.scope

    def _holder(self, request: Request, address: str) -> Principal:
        given = request.headers.getlist("authorization")
        token = bearer(given[0]) if len(given) == 1 else None
        if token is None:
            self._check_rate(address)
        else:
            holder = self._doorkeeper.keys.holder_of(token)
            wait_s = self._brake.wait_s(address, holder, time.monotonic())
            if wait_s > 0:
                raise _too_many("too many wrong tokens from this address", wait_s)
            if holder is not None:
                return holder
        raise HttpError(
            401,
            "no valid token; expected one header Authorization: Bearer TOKEN",
            headers={"WWW-Authenticate": "Bearer"},
        )

    def _check_rate(self, asker: str | bytes) -> None:
        wait_s = self._rate.wait_s(asker, time.monotonic())
        if wait_s > 0:
            raise _too_many("too many requests", wait_s)

    def system(self, name: str) -> DecisionService:
        if name not in self.systems:
            raise HttpError(404, str(unknown_name("system", name[:80], self.systems)))
        return self.systems[name]

    async def decide(self, request: Request, system: str) -> bytes:
        """In JSON already: who asks again is told the very same."""
        self.admit(request, Scope.READ)
        served = self.system(system)
        raw = await self._bodies.read(request)
        if self._waiting >= self._limits.waiting:
            raise HttpError(503, "too many requests at once", headers=SOON)
        self._waiting += 1
        try:
            frame = parse_options(raw)

            async def decided() -> bytes:
                return to_json(await served.decide(raw, frame))

            if frame.request_id is None:
                return await decided()
            return await self._repeats[system].once(frame.request_id, raw, decided)
        finally:
            self._waiting -= 1

    async def feedback(self, request: Request, system: str) -> Any:
        self.admit(request, Scope.READ)
        served = self.system(system)
        raw = await self._bodies.read_small(request)
        try:
            return served.feedback(raw)
        except InputError as fault:
            raise HttpError(422, f"outcome: {fault}", "outcome") from None

    async def look(
        self, request: Request, system: str, tell: Callable[[DecisionService], Any]
    ) -> Any:
        self.admit(request, Scope.READ)
        return tell(self.system(system))

    async def order(self, request: Request, system: str, verb: str) -> Any:
        """An admin's."""
        self.admit(request, Scope.ADMIN)
        served = self.system(system)
        raw = await self._bodies.read_small(request)
        try:
            return await served.order(verb, raw)
        except InputError as fault:
            raise HttpError(422, f"bundle: {fault}", "bundle") from None

    async def systems_told(self, request: Request) -> Any:
        held = self.admit(request, Scope.READ)
        return {
            "service": {
                "version": version("loadmaster"),
                "started_at": iso(self._began_at),
                "uptime_s": round(time.monotonic() - self._began, 1),
                "tokens": self._doorkeeper.keys.needed,
                "scope": held.name.lower(),
            },
            "systems": [served.brief() for served in self.systems.values()],
        }

    @property
    def is_ready(self) -> bool:
        return all(served.ready for served in self.systems.values())


def _check_neighbour(headers: Mapping[str, str]) -> None:
    """Without tokens only this machine may ask, and no web page that somebody looks at on it.

    A browser tells whose page asks (Origin), and by what name it was led here (Host): a page whose
    name was made to mean 127.0.0.1 gives itself away by the name.
    """
    host = headers.get("host")
    if host is None:
        return  # no browser
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if not is_loopback(name):
        raise HttpError(
            403,
            f"without tokens only this machine is answered, not one that asks for {host[:80]!r}; "
            "expected 127.0.0.1 or localhost",
        )
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != host:
        raise HttpError(403, f"without tokens the pages of {origin[:80]!r} are not answered")


def _too_many(line: str, wait_s: float) -> HttpError:
    seconds = max(1, math.ceil(wait_s))
    return HttpError(429, f"{line}; wait {seconds} s", headers={"Retry-After": str(seconds)})
