"""Changes of a system's tenants on their way from a gateway to the database.

Changes are collected for FLUSH_S and sent in one batch, so what was answered longer ago survives a
kill of the gateway. Requests never wait for a write.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

from loadmaster.serving.decisions.guard import QuantityHistory
from loadmaster.serving.decisions.request import line_of, to_json
from loadmaster.serving.decisions.tenant_database import SavedTenant, TenantRows

FLUSH_S = 0.05  # changes are collected this long
RETRY_S = 1.0  # after a fault
MAX_UNWRITTEN = 20_000  # changes kept while writing fails or is slow


class TenantBackend(Protocol):
    """The database, in this or another process."""

    async def load(self, tenant: str) -> SavedTenant: ...
    async def write(self, rows: TenantRows) -> None: ...


@dataclass
class _Batch:
    number: int
    quantities: dict[tuple[str, str], QuantityHistory] = field(default_factory=dict)
    responses: dict[tuple[str, str], tuple[bytes, float, bytes]] = field(default_factory=dict)
    memories: dict[str, str] = field(default_factory=dict)
    records: dict[str, tuple[float, str, Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        changes = len(self.quantities) + len(self.responses) + len(self.memories)
        return changes + len(self.records)

    def extended_by(self, newer: "_Batch") -> "_Batch":
        """Both batches, after the older one could not be written."""
        both = _Batch(
            newer.number,
            {**self.quantities, **newer.quantities},
            {**self.responses, **newer.responses},
            {**self.memories, **newer.memories},
            {**self.records, **newer.records},
        )
        both.drop_excess()
        return both

    def drop_excess(self) -> None:
        """Drop the oldest beyond MAX_UNWRITTEN: responses, quantities, memories, then records."""
        tables: tuple[dict[Any, Any], ...] = self.responses, self.quantities, self.memories
        for table in (*tables, self.records):
            for key in list(islice(table, max(0, len(self) - MAX_UNWRITTEN))):
                del table[key]

    def rows(self) -> TenantRows:
        now, offset_s = time.time(), clock_offset_s()
        return TenantRows(
            [
                (name, used, state, to_json(one))
                for name, (used, state, one) in self.records.items()
            ],
            [
                (tenant, json.dumps(name), now, json.dumps(history.record(offset_s)))
                for (tenant, name), history in self.quantities.items()
            ],
            [(*key, *one) for key, one in self.responses.items()],
            [(tenant, now, memory) for tenant, memory in self.memories.items()],
        )


class TenantStore:
    """Called by the event loop only; `put` methods return at once."""

    def __init__(self, backend: TenantBackend) -> None:
        self._backend = backend
        self.load: Callable[[str], Awaitable[SavedTenant]] = backend.load
        self.fault: str | None = None  # why the latest changes could not be written
        self.done = 0  # number of the latest batch that was written
        self._batch = _Batch(1)
        self._urgent = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def put_quantity(self, tenant: str, name: str, history: QuantityHistory) -> None:
        """Write the history of a quantity; it may change until it is written."""
        self._batch.quantities[tenant, name] = history
        self._keep()

    def put_response(
        self, tenant: str, request_id: str, digest: bytes, at: float, body: bytes
    ) -> None:
        self._batch.responses[tenant, request_id] = digest, at, body
        self._keep()

    def put_memory(self, tenant: str, memory: str) -> None:
        """Write what policies remember of a tenant."""
        self._batch.memories[tenant] = memory
        self._keep()

    def put_record(self, tenant: str, used: float, state: str, record: Any) -> int:
        """Write the record of a tenant; returns the number of its batch."""
        self._batch.records[tenant] = used, state, record
        self._keep()
        return self._batch.number

    @property
    def is_full(self) -> bool:
        """Whether no more changes are kept: writing is too slow."""
        return len(self._batch) >= MAX_UNWRITTEN

    def _keep(self) -> None:
        if self.is_full:
            self._batch.drop_excess()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._write_batches())

    async def _write_batches(self) -> None:
        """Write until there are no changes."""
        while len(self._batch):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_S if self.fault is None else RETRY_S):
                    await self._urgent.wait()
            self._urgent.clear()
            batch, self._batch = self._batch, _Batch(self._batch.number + 1)
            try:
                await self._backend.write(batch.rows())
            except asyncio.CancelledError:
                raise
            except Exception as fault:
                self._batch = batch.extended_by(self._batch)
                self.fault = line_of(fault)
            else:
                self.done, self.fault = batch.number, None
        self._task = None

    async def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until all changes so far are written; False if that fails."""
        number = self._batch.number if len(self._batch) else self._batch.number - 1
        until = time.monotonic() + timeout_s
        while self.done < number and self._task is not None and time.monotonic() < until:
            self._urgent.set()
            await asyncio.wait({self._task}, timeout=0.002)
            if self.fault is not None:
                break
        return self.done >= number

    async def close(self) -> None:
        """Write the changes and stop."""
        await self.flush()
        if self._task is not None:
            self._task.cancel()


def clock_offset_s() -> float:
    """What to add to a time of the monotonic clock for seconds since 1970."""
    return time.time() - time.monotonic()
