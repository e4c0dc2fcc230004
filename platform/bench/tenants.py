"""The decision service with many tenants: latency against one tenant, memory and disk of names.

Requests of 1,000 tenants, each in turn, alternate with requests of one, over one connection. Memory
and disk are measured without HTTP, by what a decision does to its tenant.
"""

import asyncio
import gc
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from loadmaster.platform.bench.bench_server import BenchServer
from loadmaster.platform.bench.http_load import Load
from loadmaster.platform.bench.http_load import measure as measure_load
from loadmaster.platform.bench.measurements import Figure
from loadmaster.serving.decisions.guard import GuardSettings
from loadmaster.serving.decisions.request import RequestOptions, to_json
from loadmaster.serving.decisions.tenant import TenantParts
from loadmaster.serving.decisions.tenant_database import SavedTenant, TenantDatabase
from loadmaster.serving.decisions.tenant_names import DEFAULT_TENANT, TenantSettings
from loadmaster.serving.decisions.tenant_registry import TenantRegistry
from loadmaster.serving.decisions.tenant_store import TenantStore
from loadmaster.serving.monitoring.decision_log import DecisionLog, LogSettings
from loadmaster.serving.monitoring.metrics import TenantLabels
from loadmaster.serving.monitoring.monitor import MonitorSettings
from loadmaster.serving.system import find_endpoint
from loadmaster.serving.worker.worker import PolicyRunner

TENANTS = 1000
SECONDS, WARMUP_S = 2.0, 0.5
NAMES = 20_000
BURST = 500  # decisions between waits for the disk, which is faster than requests over HTTP


def measure(report_step: Callable[[str], None], names: int = NAMES) -> list[Figure]:
    """Decide once for each of many new tenants, with the default bounds.

    Growth counts from when the tenants in memory are as many as are kept, in bytes of the process.
    """
    with tempfile.TemporaryDirectory(prefix="lm-tenants-") as folder:
        growth, per_s = asyncio.run(_use_names(Path(folder), names, report_step))
        disk = sum(file.stat().st_size for file in Path(folder).glob("*.sqlite*"))
    return [
        Figure(f"tenants/names-{names}/memory_growth_mb", growth / 1e6, "MB"),
        Figure(f"tenants/names-{names}/disk_mb", disk / 1e6, "MB"),
        Figure(f"tenants/names-{names}/per_s", per_s, "names/s"),
    ]


async def _use_names(
    folder: Path, names: int, report_step: Callable[[str], None]
) -> tuple[int, float]:
    """Growth of memory in bytes, and names a second."""
    settings, process = TenantSettings(), psutil.Process()
    decider = Decider("decima", folder, settings)
    report_step(f"{settings.most:,} tenants in memory")
    for number in range(2 * settings.most):
        await decider.decide(f"first{number}")
    await decider.flush()
    before, largest, began = process.memory_info().rss, 0, time.perf_counter()
    for number in range(names):
        await decider.decide(f"t{number}")
        if (number + 1) % BURST == 0:
            await decider.flush()
            largest = max(largest, process.memory_info().rss)
        if (number + 1) % 10_000 == 0:
            report_step(f"{number + 1:,} of {names:,} names")
    await decider.flush()
    spent_s = time.perf_counter() - began
    largest = max(largest, process.memory_info().rss)
    await decider.close()
    return largest - before, names / spent_s


def measure_tenants(
    service: BenchServer, report_step: Callable[[str], None], rounds: int = 3
) -> list[Figure]:
    """Load the first system of a service for one tenant and for many, in turn."""
    system = service.systems[0]
    one = service.body(system, "small")
    many = tuple(_write_bodies(service, one))
    reports: dict[int, list[dict[str, Any]]] = {1: [], TENANTS: []}
    for turn in range(rounds):
        report_step(f"{TENANTS:,} tenants, round {turn + 1} of {rounds}")
        for bodies in ((one,), many):
            load = Load(service.decide_url(system), bodies, 1, SECONDS, warmup_s=WARMUP_S)
            report = measure_load(load)
            if report["failed"] or not report["requests"]:
                raise RuntimeError(f"{load.url} failed: {report['failed'] or 'no response'}")
            reports[len(bodies)].append(report)
    pairs = list(zip(reports[TENANTS], reports[1], strict=True))
    name = f"serve/tenants-{TENANTS}"
    return [
        Figure(f"{name}/p99_ms", median([found["p99_ms"] for found, _ in pairs]), "ms"),
        Figure(
            f"{name}/share_of_one",
            median([found["requests_per_s"] / other["requests_per_s"] for found, other in pairs]),
            "",
        ),
        Figure("serve/tenants/bytes_each", bytes_each(system), "B"),
    ]


def _write_bodies(service: BenchServer, body: Path) -> Iterator[Path]:
    for number in range(TENANTS):
        file = service.folder / f"t{number}.json"
        file.write_bytes(body.read_bytes()[:-1] + b',"tenant":"t%d"}' % number)
        yield file


class Decider:
    """A registry with its database in a folder, which decides the example `small` for tenants."""

    def __init__(self, system: str, folder: Path, settings: TenantSettings) -> None:
        endpoint = find_endpoint(system)
        self._raw = to_json({"state": endpoint.examples()["small"].model_dump(mode="json")})
        runner = PolicyRunner(endpoint, endpoint.rules[0])
        self._decided = runner.decide_by_rule(runner.state(self._raw))
        unused: Any = None
        file = folder / "tenants.sqlite"
        self._database = TenantDatabase(file, 3600.0, 60.0, settings.disk_bytes)
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
        tenant, now = await self._registry.get(name), time.monotonic()
        decided = self._decided
        limited = tenant.guard.apply(decided.quantities, now)
        tenant.guard.commit(decided.quantities, limited, now)
        made = {"id": name, "latency_ms": 1.0, "shadow": None}
        made |= {"decision": decided.decision, "reason": decided.reason}
        tenant.record_decision(self._raw, RequestOptions(tenant=name), made, decided, time.time())
        self._registry.changed(tenant, time.time())

    async def flush(self) -> None:
        await self._store.flush()

    async def close(self) -> None:
        await self._registry.close()
        self._database.close()


def bytes_each(system: str, count: int = 200) -> float:
    """Memory of a tenant in this process after one decision about the example `small`."""

    async def work(folder: Path) -> float:
        decider = Decider(system, folder, TenantSettings())
        await decider.decide(DEFAULT_TENANT)
        tracemalloc.start()
        for number in range(count):
            await decider.decide(f"t{number}")
        await decider.flush()
        gc.collect()
        found, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        await decider.close()
        return found / count

    with tempfile.TemporaryDirectory(prefix="lm-tenants-") as folder:
        return asyncio.run(work(Path(folder)))
