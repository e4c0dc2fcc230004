"""Throughput of the decision service with more and more gateways and workers, on one machine.

Every connection sends requests of one tenant. The kernel chooses the gateway that accepts it; one
that does not own the tenant forwards the first requests and passes the connection on. Which
requests are forwarded after that is known from the sockets of the gateways at the end and from the
assignment of tenants.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Chart

from loadmaster.envs.errors import counted
from loadmaster.models.files import atomic_text_file
from loadmaster.platform.bench.bench_server import BenchServer, bench_server
from loadmaster.platform.bench.copies import independent_speedups
from loadmaster.platform.bench.http_load import Load, percentile_ms
from loadmaster.platform.bench.http_load import measure as measure_load
from loadmaster.platform.bench.measurements import Figure
from loadmaster.platform.bench.service_processes import (
    accepted_by,
    assignment,
    cpu_seconds,
    running_replicas,
    wait_until_complete,
)
from loadmaster.platform.evaluation import charts
from loadmaster.platform.ray.serve_session import set_serve_env
from loadmaster.platform.ray.session import ray_session
from loadmaster.serving.settings import GATEWAY

SYSTEM, EXAMPLE = "decima", "small"
TENANTS = 256  # each connection has its own
IN_TURN = 64  # connections that send one request at a time
CONNECTIONS = 32  # of each generator; there is one generator for each gateway
ROUNDS, SECONDS, WARMUP_S = 3, 4.0, 1.0
POLL_S = 0.25
BY_POLICY = '"source":"policy"'  # in a response
FILES = TABLE, CHART = "replicas.csv", "replicas.png"


@dataclass(frozen=True)
class ReplicaPoint:
    """The service with one number of gateways and as many workers; medians of the rounds."""

    replicas: int
    connections: int
    requests_per_s: float
    speedup: float  # relative to the fewest replicas
    p50_ms: float
    p99_ms: float
    single_p50_ms: float  # of one request at a time
    single_share: float  # that, relative to the fewest replicas
    cpu_ms: float  # CPU time of gateways and workers for a request
    by_policy: float  # share of decisions
    forwarded: float  # share of requests
    forwarded_share: float | None  # p50 of forwarded ones relative to direct ones, one at a time
    generator_cpu: float  # share of a core that the busiest generator used
    independent: float | None = None  # speedup of as many processes that share nothing


class Run(NamedTuple):
    """Several loads at once."""

    requests_per_s: float
    direct_ms: list[float]  # latencies of requests to the gateway that owns their tenant
    forwarded_ms: list[float]
    cpu_ms: float
    by_policy: float
    generator_cpu: float

    def percentile(self, percent: float) -> float:
        ordered = sorted(one / 1000 for one in (*self.direct_ms, *self.forwarded_ms))
        return percentile_ms(ordered, percent) or 0.0


def measure_replicas(
    sizes: Sequence[int], report_step: Callable[[str], None]
) -> Iterator[ReplicaPoint]:
    """Start the service anew for each number of replicas, fewest first."""
    set_serve_env()
    first: ReplicaPoint | None = None
    with ray_session():
        report_step("decisions in processes that share nothing")
        limits = independent_speedups(sizes, SYSTEM, EXAMPLE)
        for size in sorted(sizes):
            with bench_server({SYSTEM: {}}, report_step, size) as server:
                wait_until_complete(server)
                point = measure_point(server, SYSTEM, first, report_step)
            point = replace(point, independent=limits[size])
            first = first or point
            yield point


def measure_point(
    server: BenchServer,
    system: str,
    first: ReplicaPoint | None,
    report_step: Callable[[str], None],
    rounds: int = ROUNDS,
    seconds: float = SECONDS,
) -> ReplicaPoint:
    """Load one system of a service: one request at a time, and many, in turn."""
    size, url = server.settings.replicas, server.decide_url(system)
    files = server.tenant_bodies(system, EXAMPLE, TENANTS)
    common: dict[str, Any] = {"seconds": seconds, "warmup_s": WARMUP_S, "own_bodies": True}
    common |= {"marker": BY_POLICY}
    single = Load(url, files, IN_TURN, in_flight=1, **common)
    many = []
    for number in range(size):
        begin = number * CONNECTIONS % TENANTS
        many.append(Load(url, files[begin:] + files[:begin], CONNECTIONS, **common))
    singles, manys = list[Run](), list[Run]()
    for turn in range(rounds):
        report_step(f"{counted(size, 'replica')}, round {turn + 1} of {rounds}")
        singles.append(run_loads(server, [single]))
        manys.append(run_loads(server, many))
    per_s = median(run.requests_per_s for run in manys)
    single_ms = median(run.percentile(50) for run in singles)
    direct = sum(len(run.direct_ms) for run in manys)
    forwarded = sum(len(run.forwarded_ms) for run in manys)
    ratios = [
        median(run.forwarded_ms) / median(run.direct_ms)
        for run in singles
        if run.forwarded_ms and run.direct_ms
    ]
    return ReplicaPoint(
        replicas=size,
        connections=size * CONNECTIONS,
        requests_per_s=per_s,
        speedup=per_s / first.requests_per_s if first else 1.0,
        p50_ms=median(run.percentile(50) for run in manys),
        p99_ms=median(run.percentile(99) for run in manys),
        single_p50_ms=single_ms,
        single_share=single_ms / first.single_p50_ms if first else 1.0,
        cpu_ms=median(run.cpu_ms for run in manys),
        by_policy=median(run.by_policy for run in manys),
        forwarded=forwarded / (direct + forwarded),
        forwarded_share=median(ratios) if ratios else None,
        generator_cpu=max(run.generator_cpu for run in manys),
    )


def run_loads(server: BenchServer, loads: Sequence[Load]) -> Run:
    """Run loads at once, each in a process of its own; raises RuntimeError if a request fails."""
    replicas = running_replicas()
    pids = set().union(*replicas.values())
    with ThreadPoolExecutor(len(loads)) as threads:
        before_s = cpu_seconds(pids)
        results = [threads.submit(measure_load, load) for load in loads]
        accepted = dict[int, int]()
        while not all(result.done() for result in results):
            time.sleep(POLL_S)
            accepted |= accepted_by(replicas[GATEWAY], server.settings.port)
    reports = [result.result() for result in results]
    used_s, requests = cpu_seconds(pids) - before_s, sum(report["sent"] for report in reports)
    for report in reports:
        if report["failed"] or not report["requests"]:
            raise RuntimeError(f"{report['url']} failed: {report['failed'] or 'no response'}")
    owners = [tenant_owners(server, load) for load in loads]
    direct, forwarded = split_latencies(reports, owners, accepted)
    return Run(
        requests_per_s=sum(report["requests_per_s"] for report in reports),
        direct_ms=direct,
        forwarded_ms=forwarded,
        cpu_ms=1000 * used_s / requests,
        by_policy=sum(one["marked"] for one in reports) / sum(one["requests"] for one in reports),
        generator_cpu=max(report["cpu_s"] for report in reports)
        / (loads[0].warmup_s + loads[0].seconds),
    )


def tenant_owners(server: BenchServer, load: Load) -> list[int]:
    """Process that owns the tenant of each connection of a load."""
    current = assignment(server)
    tenants = [file.stem.rpartition("-")[2] for file in load.bodies]
    owners = [current.members[current.owner(tenant) or ""].process.pid for tenant in tenants]
    return [owners[number % len(owners)] for number in range(load.concurrency)]


def split_latencies(
    reports: Sequence[dict[str, Any]], owners: Sequence[Sequence[int]], accepted: dict[int, int]
) -> tuple[list[float], list[float]]:
    """Latencies of direct and of forwarded requests.

    `owners`: by load and connection; `accepted`: the process that accepted a connection, by port.
    """
    direct, forwarded = list[float](), list[float]()
    for report, own in zip(reports, owners, strict=True):
        for connection, owner in zip(report["connections"], own, strict=True):
            if (process := accepted.get(connection["port"])) is None:
                raise RuntimeError(f"no gateway has a connection from port {connection['port']}")
            (direct if process == owner else forwarded).extend(connection["latencies_ms"])
    return direct, forwarded


def figures_of(points: Sequence[ReplicaPoint]) -> Iterator[Figure]:
    units = {
        "requests_per_s": "1/s",
        "p50_ms": "ms",
        "p99_ms": "ms",
        "single_p50_ms": "ms",
        "cpu_ms": "ms",
    }
    for point in points:
        for name, value in asdict(point).items():
            if name != "replicas" and value is not None:
                yield Figure(f"serve/replicas-{point.replicas}/{name}", value, units.get(name, ""))


HEADINGS = (
    "replicas",
    "requests/s",
    "speed-up",
    "p50, ms",
    "p99, ms",
    "one at a time: p50, ms",
    "CPU, ms",
    "by the policy",
    "forwarded",
    "forwarded / direct, p50",
    "generator, cores",
    "sharing nothing",
)


def table_of(points: Sequence[ReplicaPoint]) -> Iterator[tuple[str, ...]]:
    for one in points:
        ratio = "" if one.forwarded_share is None else f"{one.forwarded_share:.2f}"
        yield (
            str(one.replicas),
            f"{one.requests_per_s:,.0f}",
            f"{one.speedup:.2f}x",
            f"{one.p50_ms:.1f}",
            f"{one.p99_ms:.1f}",
            f"{one.single_p50_ms:.2f}",
            f"{one.cpu_ms:.2f}",
            f"{100 * one.by_policy:.1f}%",
            f"{100 * one.forwarded:.0f}%",
            ratio,
            f"{one.generator_cpu:.2f}",
            "" if one.independent is None else f"{one.independent:.2f}x",
        )


def in_words(point: ReplicaPoint) -> str:
    limit = "" if point.independent is None else f"; sharing nothing {point.independent:.2f}x"
    return (
        f"{counted(point.replicas, 'replica')}: {point.requests_per_s:,.0f} requests/s "
        f"({point.speedup:.2f}x{limit}), p50 {point.p50_ms:.1f} ms, p99 {point.p99_ms:.1f} ms; one "
        f"at a time: p50 {point.single_p50_ms:.2f} ms; CPU {point.cpu_ms:.2f} ms a request; "
        f"{100 * point.forwarded:.0f}% forwarded"
    )


def write_replicas(points: Sequence[ReplicaPoint], title: str, folder: Path) -> None:
    """Replace table and chart atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    columns = [field.name for field in fields(ReplicaPoint)]
    with atomic_text_file(folder / TABLE) as file:
        table = pd.DataFrame(points, columns=columns).round(4)
        table.to_csv(file, index=False, lineterminator="\n")
    charts.save(folder / CHART, lambda: draw_replicas(points, title))


def draw_replicas(points: Sequence[ReplicaPoint], title: str) -> Chart:
    figure = Chart(figsize=(10, 4.4), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    speedup, latency = figure.subplots(1, 2)
    sizes = [point.replicas for point in points]
    speedups = [point.speedup for point in points]
    heading = f"Requests per second, times {points[0].requests_per_s:,.0f}"
    limits = [(point.replicas, point.independent) for point in points if point.independent]
    charts.draw_speedup(speedup, sizes, speedups, "gateways, and workers", heading, limits)
    _draw_latency(latency, points)
    return figure


def _draw_latency(axes: Axes, points: Sequence[ReplicaPoint]) -> None:
    places = range(len(points))  # equally spaced, not to scale
    for column, label, colour in (
        ("single_p50_ms", "one request at a time, p50", charts.LEARNED_COLOUR),
        ("p50_ms", f"{CONNECTIONS} connections a gateway, p50", charts.INK),
        ("p99_ms", "the same, p99", charts.QUIET),
    ):
        values = [getattr(point, column) for point in points]
        axes.plot(places, values, color=colour, marker="o", label=label)
    axes.set_title("Latency", loc="left", fontsize=11)
    axes.set(xlabel="gateways, and workers", ylabel="ms", yscale="log")
    charts.plain_log(axes.yaxis, labels=6)
    axes.set_xticks(places, [str(point.replicas) for point in points])
    axes.legend(loc="best", fontsize=9)
