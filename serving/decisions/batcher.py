"""The way to a system's worker: requests that come while a call is under way go with the next one.

What a call costs is the same for one request as for fifty. Who comes alone is passed on at once; a
crowd shares a call. Nobody waits for a crowd to gather.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Sequence
from typing import NamedTuple, Protocol

# Of a worker at once: one is decided on while the other's answers go out and new requests come in.
CALLS = 2


class Worker(Protocol):
    """A system's deployment, as the gateway calls it; bytes and texts only."""

    def decide(self, version: str, folder: str, raw: list[bytes]) -> Awaitable[list[bytes]]: ...

    def propose(self, version: str, folder: str, raw: list[bytes]) -> Awaitable[list[bytes]]: ...

    def load(self, folder: str) -> Awaitable[bytes]: ...


class _Waiting(NamedTuple):
    raw: bytes
    version: str
    folder: str
    answer: asyncio.Future[bytes]
    until: float  # of the loop's clock: then it gives up


class RequestBatcher:
    """Asks for decisions, `most` in one call, `calls` calls at once."""

    def __init__(self, worker: Worker, most: int, calls: int = 1) -> None:
        self._worker, self._most = worker, most
        # Without batching every request is a call of its own, as many at once as there are.
        self._calls = calls if most > 1 else 1 << 30
        self._waiting: deque[_Waiting] = deque()
        self._under_way = 0
        self._tasks: set[asyncio.Task[None]] = set()  # the loop itself would let them go

    async def decide(self, raw: bytes, version: str, folder: str, within_s: float) -> bytes:
        """The worker's answer; TimeoutError, or whatever keeps the worker from answering."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()
        until = loop.time() + within_s
        self._waiting.append(_Waiting(raw, version, folder, answer, until))
        if self._under_way < self._calls:
            self._under_way += 1
            task = loop.create_task(self._pass_on())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        timer = loop.call_at(until, _give_up, answer)  # a fifth of what asyncio.timeout costs
        try:
            return await answer
        finally:
            timer.cancel()

    async def _pass_on(self) -> None:
        while crowd := self._next_crowd():
            try:
                # Who hangs is waited for as long as any of the crowd waits, and no longer.
                async with asyncio.timeout_at(max(one.until for one in crowd)):
                    answers = await self._worker.decide(
                        crowd[0].version, crowd[0].folder, [one.raw for one in crowd]
                    )
            except Exception as fault:
                _refuse(crowd, fault)
                continue
            for one, answer in zip(crowd, answers, strict=True):
                if not one.answer.done():
                    one.answer.set_result(answer)
        self._under_way -= 1  # with the last look, so that who comes next finds nobody under way

    def _next_crowd(self) -> list[_Waiting]:
        """Those who still wait, the first first, as far as they ask for the same version."""
        crowd: list[_Waiting] = []
        while self._waiting and len(crowd) < self._most:
            if self._waiting[0].answer.done():  # it has given up
                self._waiting.popleft()
                continue
            if crowd and self._waiting[0].version != crowd[0].version:
                break
            crowd.append(self._waiting.popleft())
        return crowd


def _give_up(answer: asyncio.Future[bytes]) -> None:
    if not answer.done():
        answer.set_exception(TimeoutError())


def _refuse(crowd: Sequence[_Waiting], fault: Exception) -> None:
    for one in crowd:
        if not one.answer.done():
            one.answer.set_exception(fault)
