"""HTTP load generator: `python -m loadmaster.platform.bench.http_load URL --body FILE`.

It runs in a process of its own, so that it shares no interpreter with what it measures. Without a
rate every connection sends its next request when the last was answered (closed loop). With a rate
requests start at fixed times whether or not earlier ones were answered (open loop), and latency
counts from that time.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import gc
import json
import math
import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from loadmaster.platform.bench.load_connections import Driver, Load
from loadmaster.serving.client.http1 import TOKEN_VARIABLE, Request, parse_address

MOST_CONNECTIONS = 500  # select(), whose timeout is finer than epoll's, takes about 1,000 files


def measure(load: Load, token: str | None = None, per_second: Path | None = None) -> dict[str, Any]:
    """Run a load in a process of its own; return its report."""
    command = [sys.executable, "-m", "loadmaster.platform.bench.http_load", load.url]
    for body in load.bodies:
        command += ["--body", str(body.resolve())]
    command += ["--concurrency", str(load.concurrency), "--seconds", str(load.seconds)]
    command += ["--warmup", str(load.warmup_s), "--timeout", str(load.timeout_s)]
    command += [] if load.rate is None else ["--rate", str(load.rate)]
    command += [] if per_second is None else ["--csv", str(per_second.resolve())]
    environment = dict(os.environ) if token is None else {**os.environ, TOKEN_VARIABLE: token}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=tempfile.gettempdir()
    )
    if done.returncode:
        raise RuntimeError(f"the load generator failed: {done.stderr.strip()[-500:]}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def drive(load: Load) -> Driver:
    """Run a load in this process."""
    parts = urlsplit(load.url)
    server = parse_address(f"{parts.scheme}://{parts.netloc}")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    posted = [Request("POST", target, file.read_bytes()) for file in load.bodies]
    requests = [server.encode(each) for each in posted or [Request("GET", target)]]

    async def run() -> Driver:
        driver = Driver(load, server, requests)
        await driver.run()
        return driver

    # epoll wakes up to a millisecond late, which would count as latency of the endpoint.
    def loop() -> asyncio.AbstractEventLoop:
        return asyncio.SelectorEventLoop(selectors.SelectSelector())

    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(run())


def report(load: Load, driver: Driver) -> dict[str, Any]:
    """Summarise a load. Latencies are those of successful responses; `requests` counts all."""
    latencies = sorted(driver.latencies_s)
    return {
        "url": load.url,
        "concurrency": load.concurrency,
        "seconds": load.seconds,
        "rate": load.rate,
        "requests": len(latencies) + driver.failed.total(),
        "failed": dict(sorted(driver.failed.items())),
        "requests_per_s": len(latencies) / driver.elapsed_s(),
        "cpu_s": driver.cpu_s,
        "mean_ms": 1000 * sum(latencies) / len(latencies) if latencies else None,
        "p50_ms": percentile_ms(latencies, 50),
        "p90_ms": percentile_ms(latencies, 90),
        "p99_ms": percentile_ms(latencies, 99),
        "max_ms": percentile_ms(latencies, 100),
    }


def percentile_ms(ordered_s: Sequence[float], percent: float) -> float | None:
    """Nearest-rank percentile in ms; None without latencies."""
    if not ordered_s:
        return None
    return 1000 * ordered_s[max(0, math.ceil(percent / 100 * len(ordered_s)) - 1)]


def by_second(driver: Driver) -> Iterator[tuple[object, ...]]:
    """Rows of a table by second: responses, failures, p50, p99 and longest latency in ms."""
    yield ("second", "answers", "failed", "p50_ms", "p99_ms", "max_ms")
    latencies: dict[int, list[float]] = {}
    for finished, latency in zip(driver.finished_s, driver.latencies_s, strict=True):
        latencies.setdefault(int(finished), []).append(latency)
    failures = [int(failed) for failed in driver.failed_s]
    for second in range(max([*latencies, *failures], default=-1) + 1):
        ordered = sorted(latencies.get(second, []))
        figures = (percentile_ms(ordered, percent) for percent in (50, 99, 100))
        shown = ("" if figure is None else f"{figure:.3f}" for figure in figures)
        yield (second, len(ordered), failures.count(second), *shown)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="http_load", description=f"The token is taken from {TOKEN_VARIABLE}."
    )
    parser.add_argument("url", help="with the path")
    parser.add_argument("--body", type=Path, action="append", default=[], help="may be repeated")
    parser.add_argument("--concurrency", type=int, default=1, help="connections")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rate", type=float, help="requests/s (open loop); closed loop without")
    parser.add_argument("--warmup", type=float, default=0.0, help="seconds before; not counted")
    parser.add_argument("--timeout", type=float, default=10.0, help="seconds, of one request")
    parser.add_argument("--csv", type=Path, help="a table by second")
    given = parser.parse_args(arguments)
    if not 1 <= given.concurrency <= MOST_CONNECTIONS:
        parser.error(f"--concurrency: expected 1 to {MOST_CONNECTIONS}")
    if given.seconds <= 0 or given.timeout <= 0 or (given.rate is not None and given.rate <= 0):
        parser.error("--seconds, --timeout and --rate: expected more than 0")
    load = Load(
        url=given.url,
        bodies=tuple(given.body),
        concurrency=given.concurrency,
        seconds=given.seconds,
        rate=given.rate,
        warmup_s=given.warmup,
        timeout_s=given.timeout,
    )
    try:
        driver = drive(load)
    except (OSError, ValueError) as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 1
    if given.csv is not None:
        with given.csv.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows(by_second(driver))
    print(json.dumps(report(load, driver), indent=2))
    return 0


if __name__ == "__main__":
    gc.disable()  # its pauses would count as latency, and only numbers are kept here
    sys.exit(main())
