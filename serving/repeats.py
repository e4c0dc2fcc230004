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
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

KEPT_S = 60.0
MOST = 4096  # answers
MOST_BYTES = 16 << 20  # of all of them


@dataclass
class _Held:
    digest: bytes  # of the request
    at_s: float
    answer: asyncio.Task[bytes]
    size: int = 0  # of the answer, once it is there


class Repeats:
    """Of one system. Only the event loop calls it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._held: OrderedDict[str, _Held] = OrderedDict()  # the oldest first
        self._bytes = 0

    async def once(
        self, request_id: str, raw: bytes, work: Callable[[], Coroutine[Any, Any, bytes]]
    ) -> bytes:
        """What `work` answers, now or the last time, be it still under way."""
        digest, now_s = hashlib.sha256(raw).digest(), self._clock()
        self._forget(now_s)
        held = self._held.get(request_id)
        if held is None or held.digest != digest:
            self._drop(request_id)
            task = asyncio.get_running_loop().create_task(self._done(request_id, digest, work()))
            held = self._held[request_id] = _Held(digest, now_s, task)
        # Who gives up leaves the others their answer.
        return await asyncio.shield(held.answer)

    async def _done(
        self, request_id: str, digest: bytes, work: Coroutine[Any, Any, bytes]
    ) -> bytes:
        """Refusals are not kept: the same request may be right the next time."""
        try:
            answer = await work
        except BaseException:
            if (held := self._held.get(request_id)) is not None and held.digest == digest:
                self._drop(request_id)
            raise
        if (held := self._held.get(request_id)) is not None and held.digest == digest:
            held.size = len(answer)
            self._bytes += held.size
        return answer

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
