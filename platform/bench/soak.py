"""The service under a steady load for minutes: failed requests, and memory over time.

All systems are loaded at once, each at its share of half its peak, in an open loop.
"""

from __future__ import annotations

import csv
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from loadmaster.platform.bench.bench_server import BenchServer, Systems, bench_server
from loadmaster.platform.bench.http_load import measure as measure_load
from loadmaster.platform.bench.load_connections import Load
from loadmaster.platform.ray.serve_session import APPLICATION
from loadmaster.serving.client import Client, ServiceError
from loadmaster.serving.settings import GATEWAY

SHARE = 0.5  # of the peak
PEAK_S, PEAK_CONNECTIONS = 4.0, 16
CONNECTIONS = 64  # at most; a service that keeps up needs few of them
EXAMPLES = ("small",) * 9 + ("large",)  # in turn
EVERY_S = 1.0
TITLE = f"ray::ServeReplica:{APPLICATION}:"  # of the service's processes; their deployment follows
MB = 1e6


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


def measure_soak(seconds: float, systems: Systems, report_step: Callable[[str], None]) -> Soak:
    with bench_server(systems, report_step) as server:
        return run_soak(server, seconds, report_step)


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
    tables = {system: server.folder / f"{system}.csv" for system in rates}
    with sampling(server) as samples, ThreadPoolExecutor(len(rates)) as threads:
        running = {
            system: threads.submit(
                measure_load, load_of(server, system, seconds, rate), per_second=tables[system]
            )
            for system, rate in rates.items()
        }
        reports = {system: load.result() for system, load in running.items()}
    found = [row for system in rates for row in seconds_of(system, tables[system], samples)]
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


def seconds_of(system: str, table: Path, samples: list[Sample]) -> Iterator[Second]:
    """Join the load generator's table with the samples of the same seconds."""
    with table.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            second = int(row["second"])
            before = samples[second] if second < len(samples) else None
            after = samples[second + 1] if second + 1 < len(samples) else before
            memory = {} if after is None else after.memory_mb
            yield Second(
                second=second,
                system=system,
                requests=int(row["answers"]) + int(row["failed"]),
                failed=int(row["failed"]),
                p50_ms=_number(row["p50_ms"]),
                p99_ms=_number(row["p99_ms"]),
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


def _number(text: str) -> float | None:
    return float(text) if text else None
