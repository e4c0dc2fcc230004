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
ENTRY_BYTES = 500  # memory of an entry without its response

# Called with request id, digest of the request, time and response.
Save = Callable[[str, bytes, float, bytes], None]


@dataclass(slots=True)
class _Entry:
    digest: bytes  # of the request
    at_s: float
    # Under way until there is a response. Cancelled: there is none, a waiting request runs itself.
    response: asyncio.Future[bytes] | bytes

    @property
    def size(self) -> int:
        return len(self.response) if isinstance(self.response, bytes) else 0


class IdempotencyCache:
    """Responses of one tenant by request id. Called by the event loop only."""

    def __init__(self, clock: Callable[[], float], save: Save | None = None) -> None:
        """`save` is called with every new response, to `restore` it after a restart."""
        self._clock, self._save = clock, save
        self._entries: OrderedDict[str, _Entry] = OrderedDict()  # the oldest first
        self.stored_bytes = 0

    @property
    def memory_bytes(self) -> int:
        return self.stored_bytes + ENTRY_BYTES * len(self._entries)

    def restore(self, request_id: str, digest: bytes, at_s: float, response: bytes) -> None:
        """Add a response that was saved. The oldest one must be added first."""
        self._drop(request_id)
        self._entries[request_id] = _Entry(digest, at_s, response)
        self.stored_bytes += len(response)
        self._expire(self._clock())

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
            if isinstance(entry.response, bytes):
                return entry.response
            response = entry.response
            await asyncio.wait({response})
            if not response.cancelled():
                return response.result()

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
            entry.response = found
            self.stored_bytes += len(found)
            if self._save is not None:
                self._save(request_id, digest, entry.at_s, found)
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
