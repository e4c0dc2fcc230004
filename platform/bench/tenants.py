"""The decision service with many tenants: latency against one tenant, memory and disk of names.

Requests of 1,000 tenants, each in turn, alternate with requests of one, over one connection. Memory
and disk are measured without HTTP, by what a decision does to its tenant.
"""

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from loadmaster.envs.errors import unknown_name
from loadmaster.platform.bench import known_applications
from loadmaster.platform.bench.bench_server import BenchServer
from loadmaster.platform.bench.http_load import Load
from loadmaster.platform.bench.http_load import measure as measure_load
from loadmaster.platform.bench.measurements import Figure
from loadmaster.platform.bench.pod_client import SYSTEM as APPLICATIONS_SYSTEM
from loadmaster.platform.bench.tenant_decider import TenantDecider, bytes_each
from loadmaster.serving.decisions.tenant_names import TenantSettings

TENANTS = 1000
SECONDS, WARMUP_S = 2.0, 0.5
NAMES = 20_000
BURST = 500  # decisions between waits for the disk, which is faster than requests over HTTP


def measure(
    report_step: Callable[[str], None],
    system: str | None = None,
    names: int | None = None,
    applications: int | None = None,
) -> list[Figure]:
    """Many names of any kind; with a system, that system's applications, known to a service."""
    if system is None:
        return measure_names(report_step, NAMES if names is None else names)
    if system != APPLICATIONS_SYSTEM:
        raise unknown_name("system", system, (APPLICATIONS_SYSTEM,))
    return known_applications.measure(report_step, applications)


def measure_names(report_step: Callable[[str], None], names: int) -> list[Figure]:
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
    decider = TenantDecider("decima", folder, settings)
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
        Figure("serve/tenants/bytes_each", asyncio.run(bytes_each(system)), "B"),
    ]


def _write_bodies(service: BenchServer, body: Path) -> Iterator[Path]:
    for number in range(TENANTS):
        file = service.folder / f"t{number}.json"
        file.write_bytes(body.read_bytes()[:-1] + b',"tenant":"t%d"}' % number)
        yield file
