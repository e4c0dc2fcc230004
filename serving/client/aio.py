"""The client for asyncio: the same calls, awaited. Tasks of one event loop may share one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Literal, Self, TypeVar

from loadmaster.serving.client import calls
from loadmaster.serving.client.async_connection import Channel, open_channel
from loadmaster.serving.client.base import Frame
from loadmaster.serving.client.calls import Call, Mode, Payload
from loadmaster.serving.client.errors import ServiceError
from loadmaster.serving.client.http1 import Answer, Request
from loadmaster.serving.client.responses import (
    Accepted,
    Decision,
    History,
    LoggedDecision,
    Status,
    Systems,
)
from loadmaster.serving.client.retry import FAULTS

T = TypeVar("T")


class AsyncClient(Frame[Channel]):
    """As `Client`, whose methods say what each call is; `sleep`, where given, is awaited."""

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
        began, request_id = self._clock(), self._new_id()
        try:
            found = await self.ask(calls.decide(system, state, mode, deadline_ms, request_id))
        except ServiceError as fault:
            return self._decided_here(system, state, fault, request_id, began)
        return self._decided(system, found)

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
        """Any call, with the attempts it may have."""
        attempts = self._attempts(call.request)
        data = self._address.encode(call.request)
        while True:
            try:
                async with asyncio.timeout(attempts.left_s()):
                    answer = await self._exchange(call.request, data)
            except FAULTS as fault:
                pause = attempts.after_fault(fault)
            else:
                again = attempts.after_answer(answer)
                if again is None:
                    return call.result(answer)
                pause = again
            await self._sleep(pause)

    async def _exchange(self, request: Request, data: bytes) -> Answer:
        kept = None if request.fresh else self._idle.take()
        channel = kept or await open_channel(self._address, self._max_answer)
        try:
            answer = await channel.exchange(data)
        except BaseException:
            channel.close()
            raise
        if answer.keep:
            self._idle.keep(channel)
        else:
            channel.close()
        return answer

    async def close(self) -> None:
        """End the connections. A later call opens new ones."""
        self._idle.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *fault: object) -> None:
        await self.close()
