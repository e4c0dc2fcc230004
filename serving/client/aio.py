"""The asyncio client. Tasks of one event loop may share one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Literal, Self, TypeVar

from . import calls
from .base import BaseClient
from .calls import Call, Mode, Payload
from .connection import AsyncConnection, open_async_connection
from .errors import ServiceError
from .http1 import Request, Response
from .responses import (
    Accepted,
    Decision,
    History,
    LoggedDecision,
    Status,
    Systems,
)
from .retry import ATTEMPT_ERRORS

T = TypeVar("T")


class AsyncClient(BaseClient[AsyncConnection]):
    """`Client` with awaitable methods; `sleep`, if given, is awaited."""

    _pause = staticmethod(asyncio.sleep)
    _owner = staticmethod(asyncio.get_running_loop)

    async def systems(self) -> Systems:
        return await self.ask(calls.systems())

    async def decide(
        self,
        system: str,
        state: Payload,
        mode: Mode = "active",
        deadline_ms: float | None = None,
    ) -> Decision:
        start, request_id = self._clock(), self._new_id()
        try:
            found = await self.ask(calls.decide(system, state, mode, deadline_ms, request_id))
        except ServiceError as fault:
            return self._decide_locally(system, state, fault, request_id, start)
        return self._service_decided(system, found)

    async def feedback(self, system: str, outcome: Payload, id: str | None = None) -> Accepted:
        return await self.ask(calls.feedback(system, outcome, id))

    async def status(self, system: str) -> Status:
        return await self.ask(calls.status(system))

    async def decisions(self, system: str, limit: int = 50) -> tuple[LoggedDecision, ...]:
        return await self.ask(calls.decisions(system, limit))

    async def history(self, system: str) -> History:
        return await self.ask(calls.history(system))

    async def example(self, system: str, name: str = "small") -> Mapping[str, Any]:
        return await self.ask(calls.example(system, name))

    async def pause(self, system: str, reason: str | None = None) -> Status:
        return await self.ask(calls.admin("pause", system, reason=reason))

    async def resume(self, system: str, reason: str | None = None) -> Status:
        return await self.ask(calls.admin("resume", system, reason=reason))

    async def promote(
        self,
        system: str,
        bundle: str | None = None,
        to: Literal["shadow", "serving"] | None = None,
    ) -> Status:
        return await self.ask(calls.admin("promote", system, bundle=bundle, to=to))

    async def rollback(self, system: str) -> Status:
        return await self.ask(calls.admin("rollback", system))

    async def ask(self, call: Call[T]) -> T:
        """Send a call, with retries, and decode its response."""
        retry = self._retry_policy(call.request)
        data = self._address.encode(call.request)
        while True:
            try:
                async with asyncio.timeout(retry.remaining_s()):
                    response = await self._exchange(call.request, data)
            except ATTEMPT_ERRORS as fault:
                pause = retry.after_error(fault)
            else:
                retry_pause = retry.after_response(response)
                if retry_pause is None:
                    return call.result(response)
                pause = retry_pause
            await self._sleep(pause)

    async def _exchange(self, request: Request, data: bytes) -> Response:
        kept = None if request.fresh else self._pool.take()
        connection = kept or await open_async_connection(self._address, self._max_body)
        try:
            response = await connection.exchange(data)
        except BaseException:
            connection.close()
            raise
        if response.keep:
            self._pool.put(connection)
        else:
            connection.close()
        return response

    async def close(self) -> None:
        """Close the connections. A later call opens new ones."""
        self._pool.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *fault: object) -> None:
        await self.close()
