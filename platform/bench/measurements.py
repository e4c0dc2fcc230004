"""Measured figures, and the ways to take them: in a fresh process, or interleaved on one thread."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from loadmaster.envs.errors import unknown_name
from loadmaster.envs.registry import find_system, systems
from loadmaster.models.files import atomic_text_file


@dataclass(frozen=True)
class Figure:
    """One measured value, with the value of a peer in the same unit."""

    name: str
    value: float
    unit: str
    peer: float | None = None
    peer_name: str = ""
    higher_is_better: bool = True

    @property
    def ratio(self) -> float | None:
        """How many times better than the peer."""
        if self.peer is None or not self.value:
            return None
        return self.value / self.peer if self.higher_is_better else self.peer / self.value


def latency(
    name: str, spent_ms: Sequence[float], peer: float | None = None, peer_name: str = ""
) -> Iterator[Figure]:
    """Median and 99th percentile of durations; the peer's is compared with the median."""
    median, high = np.percentile(spent_ms, (50, 99)).tolist()
    yield Figure(f"{name}/p50_ms", median, "ms", peer, peer_name, higher_is_better=False)
    yield Figure(f"{name}/p99_ms", high, "ms", higher_is_better=False)


_FIRST_EPISODE = """
import time
began = time.perf_counter()
from loadmaster.envs.{environment}.episode import run_episode
from loadmaster.envs.{environment}.settings import {settings}
run_episode("{policy}", {settings}(), 0)
print(time.perf_counter() - began)
"""


def cold_starts(
    environment: str, settings: str, policy: str, report_step: Callable[[str], None]
) -> Iterator[Figure]:
    """Seconds until the end of a first episode, with an empty and with a filled compile cache."""
    program = _FIRST_EPISODE.format(environment=environment, settings=settings, policy=policy)
    with tempfile.TemporaryDirectory() as empty:
        for step, name in (
            ("compile from scratch", "compile_s"),
            ("load compiled functions", "cached_start_s"),
        ):
            report_step(step)
            seconds = in_fresh_process(program, LOADMASTER_CACHE=empty)
            yield Figure(f"{environment}/{name}", seconds, "s")


def in_fresh_process(program: str, **environment: str) -> float:
    """Run a Python program in a new process; return the number it prints."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
        cwd=tempfile.gettempdir(),
    )
    return float(done.stdout)


PER_S = "decisions/s"


def measure_interleaved(
    system: str,
    ways: Mapping[str, Callable[[], int]],
    rounds: int,
    report_step: Callable[[str], None],
) -> dict[str, float]:
    """Decisions per second of this thread's CPU time, for each of several ways to run rollouts.

    Each way returns how many decisions it made. The ways are interleaved, so load on the machine
    affects all of them alike.
    """
    decisions, spent = dict.fromkeys(ways, 0), dict.fromkeys(ways, 0.0)
    for turn in range(rounds):
        for name, roll_out in ways.items():
            way = name.strip("/") or "compiled"
            report_step(f"{system}: rollouts, turn {turn + 1} of {rounds}: {way}")
            began = time.thread_time()
            decisions[name] += roll_out()
            spent[name] += time.thread_time() - began
    return {name: decisions[name] / spent[name] for name in ways}


def measure(report_step: Callable[[str], None], system: str | None = None) -> Iterator[Figure]:
    """Run the `bench` module of one system, or of every system that has one."""
    for name in systems_with("bench", system):
        yield from find_system(name).load("bench")(report_step)


def systems_with(part: str, system: str | None) -> Sequence[str]:
    """Names of all systems that have a part, or `system` alone, which must have it."""
    known = [name for name, found in systems().items() if found.available and found.has(part)]
    if system is not None and system not in known:
        raise unknown_name("system", system, known)
    return known if system is None else (system,)


def write_tables(folder: Path, tables: Mapping[str, Any]) -> None:
    """Replace CSV files atomically, each of a pandas table or of records by its name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in tables.items():
        with atomic_text_file(folder / name) as file:
            pd.DataFrame(rows).round(5).to_csv(file, index=False, lineterminator="\n")
