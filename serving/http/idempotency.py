"""Idempotency: a request repeated under the same id gets the same response.

A client whose response was lost sends the request again; it must not be decided twice. The same id
with another body is another request: it is decided, and the id refers to it from then on, so a
client that counts from 1 again after a restart still gets decisions.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

KEEP_S = 60.0
MAX_ENTRIES = 4096
MAX_BYTES = 16 << 20  # of all responses


@dataclass
class _Entry:
    digest: bytes  # of the request
    at_s: float
    response: asyncio.Future[bytes]  # cancelled: there is none, a waiting request runs itself
    size: int = 0  # of the response, once there is one


class IdempotencyCache:
    """Responses of one system by request id. Called by the event loop only."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._entries: OrderedDict[str, _Entry] = OrderedDict()  # the oldest first
        self.stored_bytes = 0

    async def get_or_run(
        self, request_id: str, raw: bytes, work: Callable[[], Awaitable[bytes]]
    ) -> bytes:
        """Return the stored response, wait for the one under way, or run `work`."""
        digest = hashlib.sha256(raw).digest()
        while True:
            self._expire(self._clock())
            entry = self._entries.get(request_id)
            if entry is None or entry.digest != digest:
                return await self._run(request_id, digest, work)
            await asyncio.wait({entry.response})
            if not entry.response.cancelled():
                return entry.response.result()

    async def _run(
        self, request_id: str, digest: bytes, work: Callable[[], Awaitable[bytes]]
    ) -> bytes:
        self._drop(request_id)
        response: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        entry = self._entries[request_id] = _Entry(digest, self._clock(), response)
        try:
            found = await work()
        except BaseException:  # errors are not stored: the same request may succeed next time
            response.cancel()
            if self._entries.get(request_id) is entry:
                self._drop(request_id)
            raise
        response.set_result(found)
        if self._entries.get(request_id) is entry:
            entry.size = len(found)
            self.stored_bytes += entry.size
        return found

    def _expire(self, now_s: float) -> None:
        while self._entries:
            request_id, oldest = next(iter(self._entries.items()))
            full = len(self._entries) >= MAX_ENTRIES or self.stored_bytes > MAX_BYTES
            if not full and now_s - oldest.at_s <= KEEP_S:
                return
            self._drop(request_id)

    def _drop(self, request_id: str) -> None:
        entry = self._entries.pop(request_id, None)
        if entry is not None:
            self.stored_bytes -= entry.size
