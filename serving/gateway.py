"""Who asks, how much, and what for: every request is checked here before anybody works on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

from fastapi import Request

from loadmaster.envs.errors import unknown_name
from loadmaster.serving.access import Doorkeeper, RateLimit, Scope, bearer
from loadmaster.serving.answering import frame_of
from loadmaster.serving.config import LimitSettings
from loadmaster.serving.served import ServedSystem
from loadmaster.serving.times import iso

JSON = "application/json"
SOON = {"Retry-After": "1"}


class Refused(Exception):  # noqa: N818 - an answer, no fault
    """An answer that is not what was asked for."""

    def __init__(
        self,
        status: int,
        line: str,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(line)
        self.status, self.line, self.field, self.headers = status, line, field, headers or {}


class Gateway:
    """Checks every request in the same order: token, scope, rate, system, size, content."""

    def __init__(
        self, systems: Mapping[str, ServedSystem], doorkeeper: Doorkeeper, limits: LimitSettings
    ) -> None:
        self.systems, self._doorkeeper, self._limits = systems, doorkeeper, limits
        self._rate = RateLimit(limits.rate_per_s, limits.burst)
        self._waiting = 0
        self._began, self._began_at = time.monotonic(), time.time()

    def admit(self, request: Request, scope: Scope) -> None:
        """Raises Refused where the one who asks may not."""
        keys, asker = self._doorkeeper.keys, request.client.host if request.client else ""
        if keys.needed:
            token = bearer(request.headers.get("authorization"))
            held = None if token is None else keys.scope_of(token)
            if held is None:
                raise Refused(
                    401,
                    "no valid token; expected the header Authorization: Bearer TOKEN",
                    headers={"WWW-Authenticate": "Bearer"},
                )
            if held < scope:
                wanted = scope.name.lower()
                raise Refused(403, f"the token may not do this; expected one of scope {wanted}")
            asker = str(hash(token))
        wait_s = self._rate.wait_s(asker, time.monotonic())
        if wait_s > 0:
            raise Refused(
                429, "too many requests; wait", headers={"Retry-After": f"{max(wait_s, 1):.0f}"}
            )

    def system(self, name: str) -> ServedSystem:
        if name not in self.systems:
            raise Refused(404, str(unknown_name("system", name[:80], self.systems)))
        return self.systems[name]

    async def body(self, request: Request) -> bytes:
        """Never more than allowed, whatever the header says."""
        kind = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
        if kind != JSON:
            raise Refused(415, f"content type {kind[:80]!r} is not read; expected {JSON}")
        most, parts, size = self._limits.largest_bytes, [], 0
        told = request.headers.get("content-length", "")
        if told.isdigit() and int(told) > most:
            raise Refused(413, f"the body has {int(told):,} bytes; expected at most {most:,}")
        async for part in request.stream():
            size += len(part)
            if size > most:
                raise Refused(413, f"the body is too large; expected at most {most:,} bytes")
            parts.append(part)
        return b"".join(parts)

    async def decide(self, request: Request, system: str) -> Any:
        self.admit(request, Scope.READ)
        served = self.system(system)
        raw = await self.body(request)
        if not served.ready:
            raise Refused(503, f"{system} is not ready yet", headers=SOON)
        if self._waiting >= self._limits.waiting:
            raise Refused(503, "too many requests at once", headers=SOON)
        self._waiting += 1
        try:
            return await served.decide(raw, frame_of(raw))
        finally:
            self._waiting -= 1

    async def feedback(self, request: Request, system: str) -> Any:
        self.admit(request, Scope.READ)
        served = self.system(system)
        return served.feedback(await self.body(request))

    async def look(self, request: Request, system: str, tell: Callable[[ServedSystem], Any]) -> Any:
        self.admit(request, Scope.READ)
        return tell(self.system(system))

    async def order(self, request: Request, system: str, verb: str) -> Any:
        """An admin's."""
        self.admit(request, Scope.ADMIN)
        served = self.system(system)
        return await served.order(verb, await self.body(request))

    async def systems_told(self, request: Request) -> Any:
        self.admit(request, Scope.READ)
        return {
            "service": {
                "version": version("loadmaster"),
                "started_at": iso(self._began_at),
                "uptime_s": round(time.monotonic() - self._began, 1),
                "tokens": self._doorkeeper.keys.needed,
            },
            "systems": [served.brief() for served in self.systems.values()],
        }

    @property
    def is_ready(self) -> bool:
        return all(served.ready for served in self.systems.values())
