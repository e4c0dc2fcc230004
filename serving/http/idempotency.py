"""Who asks again under the same id is told the same: a request whose answer was lost on its way is
sent once more, and must not be decided twice.

The same id with another body is another request. It is decided on like any other, and the id
stands for it from then on: somebody who counts from 1 again after a restart is not left without
decisions.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

KEPT_S = 60.0
MOST = 4096  # answers
MOST_BYTES = 16 << 20  # of all of them


@dataclass
class _Held:
    digest: bytes  # of the request
    at_s: float
    answer: asyncio.Future[bytes]  # cancelled: there is none, who waits has to ask himself
    size: int = 0  # of the answer, once it is there


class IdempotencyCache:
    """Of one system. Only the event loop calls it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._held: OrderedDict[str, _Held] = OrderedDict()  # the oldest first
        self._bytes = 0

    async def once(
        self, request_id: str, raw: bytes, work: Callable[[], Awaitable[bytes]]
    ) -> bytes:
        """What `work` answers, now or the last time, be it still under way."""
        digest = hashlib.sha256(raw).digest()
        while True:
            self._forget(self._clock())
            held = self._held.get(request_id)
            if held is None or held.digest != digest:
                return await self._first(request_id, digest, work)
            await asyncio.wait({held.answer})
            if not held.answer.cancelled():
                return held.answer.result()

    async def _first(
        self, request_id: str, digest: bytes, work: Callable[[], Awaitable[bytes]]
    ) -> bytes:
        self._drop(request_id)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        held = self._held[request_id] = _Held(digest, self._clock(), answer)
        try:
            found = await work()
        except BaseException:  # refusals are not kept: the same may be right the next time
            answer.cancel()
            if self._held.get(request_id) is held:
                self._drop(request_id)
            raise
        answer.set_result(found)
        if self._held.get(request_id) is held:
            held.size = len(found)
            self._bytes += held.size
        return found

    def _forget(self, now_s: float) -> None:
        while self._held:
            request_id, oldest = next(iter(self._held.items()))
            crowded = len(self._held) >= MOST or self._bytes > MOST_BYTES
            if not crowded and now_s - oldest.at_s <= KEPT_S:
                return
            self._drop(request_id)

    def _drop(self, request_id: str) -> None:
        held = self._held.pop(request_id, None)
        if held is not None:
            self._bytes -= held.size
