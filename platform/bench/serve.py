"""How fast decisions are answered over HTTP, beside endpoints that do nothing.

Service, the same without batching, and the no-ops stand on one Serve and are asked by turns: what a
busy machine does to one it then does to all. Differences and ratios are taken within a turn.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

from loadmaster.platform.bench.bench_server import (
    HOST,
    Stand,
    free_port,
    served_systems,
    service_stand,
    start_unbatched,
)
from loadmaster.platform.bench.http_load import measure as measure_load
from loadmaster.platform.bench.load_connections import Load
from loadmaster.platform.bench.measurements import Figure
from loadmaster.serving.client import Client

ROUNDS = 5
SECONDS, WARMUP_S = 1.2, 0.2  # of each load in each round
ONE, MANY = 1, 16  # connections
EXAMPLES = ("small", "large")
NOOP, BY_HANDLE = "noop", "noop_by_handle"  # answers by itself; asks a deployment first


class Cell(NamedTuple):
    """Something that is asked, and by how many at once."""

    target: str  # "noop", "decima/small"
    connections: int

    @property
    def name(self) -> str:
        return f"serve/{self.target}/c{self.connections}"


@dataclass
class Reached:
    """What a cell reached, round by round."""

    reports: list[dict[str, Any]] = field(default_factory=list)
    decisions: int = 0
    by_policy: int = 0

    def of(self, column: str) -> list[float]:
        return [report[column] for report in self.reports]


def measure(say: Callable[[str], None]) -> list[Figure]:
    systems = served_systems()
    with service_stand(systems, say) as service:
        from loadmaster.platform.bench.noop import start_noops

        say("starting the no-op endpoints, and the service without batching")
        noops = start_noops(HOST, free_port())
        unbatched = start_unbatched(systems, service.folder)
        return measure_beside(service, unbatched, noops, say)


def measure_beside(
    service: Stand,
    unbatched: Stand,
    noops: Mapping[str, str],
    say: Callable[[str], None],
    rounds: int = ROUNDS,
    seconds: float = SECONDS,
) -> list[Figure]:
    """`noops`: the addresses of the endpoints that do nothing, by name."""
    reached: dict[Cell, Reached] = {}
    alone: dict[Cell, Reached] = {}  # without batching

    def ask_noop(name: str, connections: int) -> None:
        body = service.body(service.systems[0], EXAMPLES[0])
        load = Load(noops[name], (body,), connections, seconds, warmup_s=WARMUP_S)
        cell = Cell(name, connections)
        reached.setdefault(cell, Reached()).reports.append(answered(load))

    def ask(stand: Stand, system: str, example: str, connections: int) -> None:
        """Who decided is told by the service."""
        load = Load(
            stand.decide_url(system),
            (stand.body(system, example),),
            connections,
            seconds,
            warmup_s=WARMUP_S,
        )
        cell = Cell(f"{system}/{example}", connections)
        found = (reached if stand is service else alone).setdefault(cell, Reached())
        with Client(stand.url) as client:
            before = client.status(system).decisions
            found.reports.append(answered(load))
            after = client.status(system).decisions
        found.decisions += after.total - before.total
        found.by_policy += after.policy - before.policy

    for turn in range(rounds):
        say(f"turn {turn + 1} of {rounds}")
        for connections in (ONE, MANY):
            for name in noops:
                ask_noop(name, connections)
            stands = [service, unbatched] if connections > 1 else [service]
            for system, example in product(service.systems, EXAMPLES):
                for stand in stands if turn % 2 else reversed(stands):  # who comes first, by turns
                    ask(stand, system, example, connections)
    return list(figures_of(reached, alone))


def answered(load: Load) -> dict[str, Any]:
    """The report of a load; answers that are none would make any service fast."""
    report = measure_load(load)
    if report["failed"] or not report["requests"]:
        raise RuntimeError(f"{load.url} failed: {report['failed'] or 'no answer at all'}")
    return report


def figures_of(reached: Mapping[Cell, Reached], alone: Mapping[Cell, Reached]) -> Iterator[Figure]:
    for cell, found in reached.items():
        yield Figure(f"{cell.name}/p50_ms", _median(found.of("p50_ms")), "ms")
        yield Figure(f"{cell.name}/p99_ms", _median(found.of("p99_ms")), "ms")
        yield Figure(f"{cell.name}/requests_per_s", _median(found.of("requests_per_s")), "1/s")
        if cell.target in (NOOP, BY_HANDLE):
            continue
        noop, by_handle = (reached[Cell(name, cell.connections)] for name in (NOOP, BY_HANDLE))
        more = [a - b for a, b in zip(found.of("p50_ms"), noop.of("p50_ms"), strict=True)]
        yield Figure(f"{cell.name}/over_noop_ms", _median(more), "ms")
        yield Figure(f"{cell.name}/share_of_noop", _ratio(found, noop), "")
        yield Figure(f"{cell.name}/share_of_noop_by_handle", _ratio(found, by_handle), "")
        yield Figure(f"{cell.name}/by_policy", found.by_policy / found.decisions, "")
        if cell in alone:
            yield Figure(f"{cell.name}/batching_times", _ratio(found, alone[cell]), "")


def _ratio(found: Reached, other: Reached) -> float:
    speeds, others = found.of("requests_per_s"), other.of("requests_per_s")
    return _median([a / b for a, b in zip(speeds, others, strict=True)])


def _median(values: Sequence[float]) -> float:
    return statistics.median(values)
