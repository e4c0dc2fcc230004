"""The service under a steady load for minutes: failed requests, and memory over time; the result.

All systems are loaded at once, each at its share of half its peak, in an open loop.
"""

import json
import math
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import psutil
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loadmaster.models.files import atomic_text_file
from loadmaster.platform.bench.bench_server import BenchServer
from loadmaster.platform.bench.http_load import Load
from loadmaster.platform.bench.http_load import measure as measure_load
from loadmaster.platform.bench.service_processes import TITLE
from loadmaster.platform.evaluation import charts
from loadmaster.serving.client import Client, ServiceError
from loadmaster.serving.settings import GATEWAY

SHARE = 0.5  # of the peak
PEAK_S, PEAK_CONNECTIONS = 4.0, 16
CONNECTIONS = 64  # at most; a service that keeps up needs few of them
EXAMPLES = ("small",) * 9 + ("large",)  # in turn
EVERY_S = 1.0
MB = 1e6
WARM_UP = 0.4  # share of the time: bounded caches and histories fill up first
ALLOWED_GROWTH_MB = 16.0
FILES = TABLE, SUMMARY, CHART = "soak.csv", "soak.json", "soak.png"


@dataclass(frozen=True)
class Second:
    """One second of one system."""

    second: int
    system: str
    requests: int
    failed: int
    p50_ms: float | None  # None: no response
    p99_ms: float | None
    by_policy: float | None  # share of decisions; None: unknown
    gateway_mb: float | None  # resident memory; None: no such process at that time
    worker_mb: float | None


class Soak(NamedTuple):
    seconds: list[Second]
    reports: dict[str, dict[str, Any]]  # of the load, by system
    peaks: dict[str, float]  # requests/s, by system


class Sample(NamedTuple):
    """Memory and decision counts at one time."""

    memory_mb: dict[str, float]  # by deployment
    decided: dict[str, tuple[int, int]]  # by system: decisions so far, and how many by the policy


def run_soak(
    server: BenchServer,
    seconds: float,
    report_step: Callable[[str], None],
    most_per_s: float | None = None,
) -> Soak:
    """Measure each system's peak, then load all; `most_per_s` bounds the rate of each system."""
    peaks = {}
    for system in server.systems:
        report_step(f"{system}: peak requests per second")
        peaks[system] = measure_load(load_of(server, system, PEAK_S))["requests_per_s"]
    # Peaks are measured one system at a time; together the systems share the machine.
    rates = {system: SHARE * peak / len(peaks) for system, peak in peaks.items()}
    rates = {system: min(rate, most_per_s or rate) for system, rate in rates.items()}
    rates_text = " and ".join(
        f"{rate:.0f} requests/s of {system}" for system, rate in rates.items()
    )
    report_step(f"load for {seconds / 60:g} minutes: {rates_text}")
    with sampling(server) as samples, ThreadPoolExecutor(len(rates)) as threads:
        loads = (load_of(server, system, seconds, rate) for system, rate in rates.items())
        reports = dict(zip(rates, threads.map(measure_load, loads), strict=True))
    found = [
        row
        for system, report in reports.items()
        for row in seconds_of(system, report.pop("by_second"), samples)
    ]
    return Soak(sorted(found, key=lambda row: (row.second, row.system)), reports, peaks)


def load_of(server: BenchServer, system: str, seconds: float, rate: float | None = None) -> Load:
    return Load(
        server.decide_url(system),
        tuple(server.body(system, example) for example in EXAMPLES),
        concurrency=PEAK_CONNECTIONS if rate is None else CONNECTIONS,
        seconds=seconds,
        rate=rate,
        warmup_s=1.0 if rate is None else 0.0,
    )


@contextmanager
def sampling(server: BenchServer) -> Iterator[list[Sample]]:
    """Append a sample to the list every second, in a thread."""
    samples: list[Sample] = []
    over = threading.Event()

    def work() -> None:
        with Client(server.url, deadline_s=EVERY_S, retries=0) as client:
            due = time.monotonic()
            while not over.wait(max(0.0, due - time.monotonic())):
                samples.append(Sample(resident_mb(), decided(client, server.systems)))
                due += EVERY_S

    thread = threading.Thread(target=work, name="sampling")
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()


def resident_mb() -> dict[str, float]:
    """Resident memory by deployment, of the service's processes below this one."""
    found: dict[str, float] = {}
    for process in psutil.Process().children(recursive=True):
        try:
            title = "".join(process.cmdline()[:1])
            if title.startswith(TITLE):
                name = title.removeprefix(TITLE)
                found[name] = found.get(name, 0.0) + process.memory_info().rss / MB
        except psutil.Error:  # it has just ended
            continue
    return found


def decided(client: Client, systems: tuple[str, ...]) -> dict[str, tuple[int, int]]:
    found = {}
    for system in systems:
        try:
            counts = client.status(system).decisions
        except ServiceError:  # failed requests are counted by the load generator
            continue
        found[system] = counts.total, counts.policy
    return found


def seconds_of(
    system: str, rows: Sequence[Mapping[str, Any]], samples: Sequence[Sample]
) -> Iterator[Second]:
    """Join the load generator's rows with the samples of the same seconds."""
    for second, row in enumerate(rows):
        before = samples[second] if second < len(samples) else None
        after = samples[second + 1] if second + 1 < len(samples) else before
        memory = {} if after is None else after.memory_mb
        yield Second(
            second=second,
            system=system,
            requests=row["answers"] + row["failed"],
            failed=row["failed"],
            p50_ms=row["p50_ms"],
            p99_ms=row["p99_ms"],
            by_policy=_policy_share(system, before, after),
            gateway_mb=memory.get(GATEWAY),
            worker_mb=memory.get(system),
        )


def _policy_share(system: str, before: Sample | None, after: Sample | None) -> float | None:
    if before is None or after is None:
        return None
    (total, policy), (total_before, policy_before) = (
        one.decided.get(system, (0, 0)) for one in (after, before)
    )
    return (policy - policy_before) / (total - total_before) if total > total_before > 0 else None


@dataclass(frozen=True)
class Growth:
    """Memory of a process after the warm-up, in the first and the last quarter of that time.

    Each is the first decile of its quarter: rows buffered for the next log file come and go, a leak
    stays.
    """

    process: str
    early_mb: float
    late_mb: float
    mb_per_hour: float

    @property
    def is_flat(self) -> bool:
        return self.late_mb - self.early_mb <= ALLOWED_GROWTH_MB


@dataclass(frozen=True)
class SoakResult:
    """Totals of a soak."""

    requests: int
    failed: int
    p50_ms: float  # medians of the seconds
    p99_ms: float
    by_policy: float  # share of decisions; the others were a rule's
    memory: tuple[Growth, ...]

    @property
    def holds(self) -> bool:
        return self.requests > 0 and self.failed == 0 and all(one.is_flat for one in self.memory)

    @property
    def line(self) -> str:
        grown = "; ".join(
            f"{one.process} {one.late_mb - one.early_mb:+.1f} MB ({one.mb_per_hour:+.0f} an hour)"
            for one in self.memory
        )
        flat = "memory is flat" if all(one.is_flat for one in self.memory) else "memory grows"
        return (
            f"{'holds' if self.holds else 'does not hold'}: {self.failed:,} of {self.requests:,} "
            f"requests failed, {100 * self.by_policy:.1f}% decided by the policy; {flat}: {grown}"
        )


def soak_result(soak: Soak) -> SoakResult:
    rows = soak.seconds
    known = [(row.requests, row.by_policy) for row in rows if row.by_policy is not None]
    return SoakResult(
        requests=sum(report["requests"] for report in soak.reports.values()),
        failed=sum(sum(report["failed"].values()) for report in soak.reports.values()),
        p50_ms=_median(row.p50_ms for row in rows),
        p99_ms=_median(row.p99_ms for row in rows),
        by_policy=sum(n * share for n, share in known) / max(1, sum(n for n, _ in known)),
        memory=tuple(growths(rows)),
    )


def growths(rows: Sequence[Second]) -> Iterator[Growth]:
    systems = sorted({row.system for row in rows})
    first = [row for row in rows if row.system == systems[0]]
    yield growth(GATEWAY, [row.gateway_mb for row in first])
    for system in systems:
        yield growth(system, [row.worker_mb for row in rows if row.system == system])


def growth(process: str, memory_mb: Sequence[float | None]) -> Growth:
    """Compare early and late memory; `memory_mb` has one value per second."""
    after = [one for one in memory_mb[int(WARM_UP * len(memory_mb)) :] if one is not None]
    quarter = max(1, len(after) // 4)
    early, late = _least(after[:quarter]), _least(after[-quarter:])
    apart_s = max(1, len(after) - quarter)
    return Growth(process, early, late, (late - early) * 3600 / apart_s)


def _least(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 10] if values else math.nan


def _median(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else math.nan


def write_soak(soak: Soak, title: str, folder: Path) -> SoakResult:
    """Replace table, summary and chart atomically; return the result."""
    result = soak_result(soak)
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_text_file(folder / TABLE) as file:
        pd.DataFrame(soak.seconds).round(3).to_csv(file, index=False, lineterminator="\n")
    with atomic_text_file(folder / SUMMARY) as file:
        json.dump(summary_of(soak, result), file, indent=2)
        file.write("\n")
    charts.save(folder / CHART, lambda: draw_soak(soak, title))
    return result


def summary_of(soak: Soak, result: SoakResult) -> dict[str, object]:
    return {
        "holds": result.holds,
        **asdict(result),
        "allowed_growth_mb": ALLOWED_GROWTH_MB,
        "systems": {
            system: {"peak_requests_per_s": soak.peaks[system], **report}
            for system, report in soak.reports.items()
        },
    }


def draw_soak(soak: Soak, title: str) -> Figure:
    figure = Figure(figsize=(10, 7), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    requests, latency, memory = figure.subplots(3, 1, sharex=True)
    systems = sorted(soak.reports)
    colours = dict(zip(systems, (charts.LEARNED_COLOUR, *charts.PALETTE[1:]), strict=False))
    for system in systems:
        rows, colour = [row for row in soak.seconds if row.system == system], colours[system]
        _line(requests, rows, lambda row: row.requests, colour, system)
        _line(latency, rows, lambda row: row.p50_ms, colour, f"{system}, p50")
        _line(latency, rows, lambda row: row.p99_ms, colour, f"{system}, p99", 0.9)
        _line(memory, rows, lambda row: row.worker_mb, colour, f"{system}'s worker", 1.8)
    first = [row for row in soak.seconds if row.system == systems[0]]
    _line(memory, first, lambda row: row.gateway_mb, charts.INK, GATEWAY, 1.8)
    if failed := [(row.second / 60, row.failed) for row in soak.seconds if row.failed]:
        label = {"color": charts.PALETTE[6], "marker": "x", "label": "failed"}
        requests.scatter(*zip(*failed, strict=True), **label)
    warm = WARM_UP * first[-1].second / 60
    memory.axvline(warm, color=charts.QUIET, linestyle=(0, (4, 3)), zorder=0)
    for axes, heading, unit in (
        (requests, "Requests", "per second"),
        (latency, "Latency from the intended start", "ms"),
        (memory, "Resident memory", "MB"),
    ):
        axes.set_title(heading, loc="left", fontsize=11)
        axes.set_ylabel(unit)
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9)
    requests.set(ylim=(0, None))
    memory.set(ylim=(0, None), xlabel="minutes")
    latency.set(yscale="log")
    charts.plain_log(latency.yaxis, labels=6)
    return figure


def _line(
    axes: Axes,
    rows: Sequence[Second],
    value: Callable[[Second], float | None],
    colour: str,
    label: str,
    width: float = 1.4,
) -> None:
    known = [(row.second / 60, y) for row in rows if (y := value(row)) is not None]
    axes.plot(*zip(*known, strict=True), color=colour, linewidth=width, label=label)
