"""Latency and throughput of the decision service over HTTP, beside no-op endpoints.

The service and the no-ops run on one Serve and are loaded in turn, so load on the machine affects
all alike. Differences and ratios are taken within a round.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from loadmaster.platform.bench.bench_server import (
    BY_HANDLE,
    NOOP,
    BenchServer,
    bench_server,
    served_systems,
)
from loadmaster.platform.bench.http_load import Load
from loadmaster.platform.bench.http_load import measure as measure_load
from loadmaster.platform.bench.measurements import Figure
from loadmaster.platform.bench.tenants import measure_tenants
from loadmaster.platform.ray.head import HERE, free_ports
from loadmaster.serving.client import Client

ROUNDS = 5
SECONDS, WARMUP_S = 1.2, 0.2  # of each load in each round
ONE, MANY = 1, 16  # connections
EXAMPLES = ("small", "large")


class Cell(NamedTuple):
    """A load: its target and the number of connections."""

    target: str  # "noop", "decima/small", "noop/decima/small": the no-op with the body of another
    connections: int

    @property
    def name(self) -> str:
        return f"serve/{self.target}/c{self.connections}"


@dataclass
class Measured:
    """Reports of one load, round by round."""

    reports: list[dict[str, Any]] = field(default_factory=list)
    decisions: int = 0
    by_policy: int = 0

    def of(self, column: str) -> list[float]:
        return [report[column] for report in self.reports]


def measure(report_step: Callable[[str], None]) -> list[Figure]:
    systems = served_systems()
    with bench_server(systems, report_step) as service:
        from loadmaster.platform.bench.noop import start_noops

        report_step("start the no-op endpoints")
        noops = start_noops(HERE, free_ports(1)[0])
        tenants = measure_tenants(service, report_step)
        return [*measure_loads(service, noops, report_step), *tenants]


def measure_loads(
    service: BenchServer,
    noops: Mapping[str, str],
    report_step: Callable[[str], None],
    rounds: int = ROUNDS,
    seconds: float = SECONDS,
) -> list[Figure]:
    """Load service and no-ops in turn; `noops` are the no-op addresses by name."""
    measured: dict[Cell, Measured] = {}

    def run(target: str, url: str, body: Path, connections: int) -> Measured:
        load = Load(url, (body,), connections, seconds, warmup_s=WARMUP_S)
        report = measure_load(load)
        if report["failed"] or not report["requests"]:
            raise RuntimeError(f"{url} failed: {report['failed'] or 'no response'}")
        found = measured.setdefault(Cell(target, connections), Measured())
        found.reports.append(report)
        return found

    def load_system(system: str, example: str, connections: int) -> None:
        """Load a system; read from the service how many decisions were the policy's."""
        url, body = service.decide_url(system), service.body(system, example)
        with Client(service.url) as client:
            before = client.status(system).decisions
            found = run(f"{system}/{example}", url, body, connections)
            after = client.status(system).decisions
        found.decisions += after.total - before.total
        found.by_policy += after.policy - before.policy

    for turn in range(rounds):
        report_step(f"round {turn + 1} of {rounds}")
        for connections in (ONE, MANY):
            for name, url in noops.items():
                run(name, url, service.body(service.systems[0], EXAMPLES[0]), connections)
            for system, example in product(service.systems, EXAMPLES):
                body = service.body(system, example)
                run(f"{NOOP}/{system}/{example}", noops[NOOP], body, connections)
                load_system(system, example, connections)
    return list(figures_of(measured))


def figures_of(measured: Mapping[Cell, Measured]) -> Iterator[Figure]:
    for cell, found in measured.items():
        yield Figure(f"{cell.name}/p50_ms", median(found.of("p50_ms")), "ms")
        yield Figure(f"{cell.name}/p99_ms", median(found.of("p99_ms")), "ms")
        yield Figure(f"{cell.name}/requests_per_s", median(found.of("requests_per_s")), "1/s")
        if cell.target == BY_HANDLE or cell.target.partition("/")[0] == NOOP:
            continue
        noop, by_handle = (measured[Cell(name, cell.connections)] for name in (NOOP, BY_HANDLE))
        yield Figure(f"{cell.name}/over_noop_ms", _more(found, noop), "ms")
        same = measured[Cell(f"{NOOP}/{cell.target}", cell.connections)]
        yield Figure(f"{cell.name}/over_noop_same_body_ms", _more(found, same), "ms")
        yield Figure(f"{cell.name}/share_of_noop", _ratio(found, noop), "")
        yield Figure(f"{cell.name}/share_of_noop_by_handle", _ratio(found, by_handle), "")
        yield Figure(f"{cell.name}/by_policy", found.by_policy / found.decisions, "")


def _more(found: Measured, other: Measured) -> float:
    return median([a - b for a, b in zip(found.of("p50_ms"), other.of("p50_ms"), strict=True)])


def _ratio(found: Measured, other: Measured) -> float:
    speeds, others = found.of("requests_per_s"), other.of("requests_per_s")
    return median([a / b for a, b in zip(speeds, others, strict=True)])
