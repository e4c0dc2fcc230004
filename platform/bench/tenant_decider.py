"""Tenants of a system in this process, as in a gateway: a registry and its database."""

import gc
import sqlite3
import tempfile
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from loadmaster.serving.decisions.guard import GuardSettings
from loadmaster.serving.decisions.request import Decided, RequestOptions, to_json
from loadmaster.serving.decisions.tenant import TenantParts
from loadmaster.serving.decisions.tenant_database import SavedTenant, TenantDatabase
from loadmaster.serving.decisions.tenant_names import DEFAULT_TENANT, TenantSettings
from loadmaster.serving.decisions.tenant_registry import TenantRegistry
from loadmaster.serving.decisions.tenant_store import TenantStore
from loadmaster.serving.monitoring.decision_log import DecisionLog, LogSettings
from loadmaster.serving.monitoring.metrics import TenantLabels
from loadmaster.serving.monitoring.monitor import MonitorSettings
from loadmaster.serving.system import Record, find_endpoint
from loadmaster.serving.worker.worker import PolicyRunner

_VALUES = (  # table, column, key
    ("tenants", "record", "name"),
    ("quantities", "record", "tenant"),
    ("responses", "body", "tenant"),
    ("memories", "memory", "tenant"),
)


class TenantDecider:
    """A registry with its database in a folder. Nothing is logged, no request goes over HTTP."""

    def __init__(self, system: str, folder: Path, settings: TenantSettings) -> None:
        self._endpoint = endpoint = find_endpoint(system)
        self._raw = to_json({"state": endpoint.examples()["small"].model_dump(mode="json")})
        runner = PolicyRunner(endpoint, endpoint.rules[0])
        self._decided = runner.decide_by_rule(runner.state(self._raw))
        unused: Any = None
        self._file = folder / "tenants.sqlite"
        self._database = TenantDatabase(self._file, 3600.0, 60.0, settings.disk_bytes)
        self._store = TenantStore(self)
        log = DecisionLog(folder / "log", LogSettings(queue_rows=1, flush_s=86400.0))  # no writes
        parts = TenantParts(
            system,
            GuardSettings(),
            MonitorSettings(),
            "SERVING",
            log,
            unused,
            self._store,
            TenantLabels(),
        )
        self._registry = TenantRegistry(settings, parts, time.time)
        self.write = self._database.write

    async def load(self, tenant: str) -> SavedTenant:
        return self._database.load(tenant, time.time())

    async def decide(self, name: str) -> None:
        """Record the rule's decision about the example `small`, made once."""
        await self.record(name, name, self._raw, self._decided)

    async def record(self, name: str, decision_id: str, raw: bytes, decided: Decided) -> None:
        """Record a decision about a request, as a gateway does when it has responded."""
        tenant, now = await self._registry.get(name), time.monotonic()
        memory = tenant.policy_memory
        if decided.memory:
            tenant.remember(decided.memory)
        limited = tenant.guard.apply(decided.quantities, now)
        tenant.guard.commit(decided.quantities, limited, now)
        made = {"id": decision_id, "latency_ms": 1.0, "shadow": None}
        made |= {"decision": decided.decision, "reason": decided.reason}
        options = RequestOptions(tenant=name)
        tenant.record_decision(raw, options, made, decided, time.time(), memory)
        self._registry.changed(tenant, time.time())

    async def feedback(self, name: str, decision_id: str, outcome: Record) -> None:
        """Record the outcome of a decision."""
        tenant, now = await self._registry.get(name), time.time()
        source, reward = tenant.source_of(decision_id, ""), self._endpoint.reward(outcome)
        content = outcome.model_dump(mode="json")
        tenant.recorder.record_feedback(decision_id, content, source, reward, now)
        self._registry.changed(tenant, now)

    async def flush(self) -> None:
        await self._store.flush()

    async def stored_bytes(self, names: Sequence[str]) -> int:
        """Write these tenants; sum of their rows in the database."""
        for name in names:
            self._registry.save(await self._registry.get(name))
        await self.flush()
        with closing(sqlite3.connect(f"file:{self._file}?mode=ro", uri=True)) as database:
            return sum(_stored(database, name) for name in names)

    async def close(self) -> None:
        await self._registry.close()
        self._database.close()


def _stored(database: sqlite3.Connection, tenant: str) -> int:
    """Bytes of the values that a tenant has in the database."""
    total = 0
    for table, column, key in _VALUES:
        query = f"select coalesce(sum(length({column})), 0) from {table} where {key} = ?"
        total += database.execute(query, (tenant,)).fetchone()[0]
    return total


async def traced_bytes(work: Callable[[], Awaitable[None]]) -> int:
    """Memory of the objects that `work` leaves in this process."""
    tracemalloc.start()
    try:
        await work()
        gc.collect()
        found, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return found


async def bytes_each(system: str, count: int = 200) -> float:
    """Memory of a tenant in this process after one decision about the example `small`."""
    with tempfile.TemporaryDirectory(prefix="lm-tenants-") as folder:
        decider = TenantDecider(system, Path(folder), TenantSettings())
        await decider.decide(DEFAULT_TENANT)

        async def decide_all() -> None:
            for number in range(count):
                await decider.decide(f"t{number}")
            await decider.flush()

        found = await traced_bytes(decide_all)
        await decider.close()
        return found / count
