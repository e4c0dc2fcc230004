"""Speed of policies in the loop, system by system: rollouts, training and single decisions."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module

import torch

from loadmaster.envs.errors import unknown_name

# A measured figure, and the figure a peer is known for.


@dataclass(frozen=True)
class Figure:
    """One line of a benchmark; `peer` is in the same unit, from the source `peer_name` tells."""

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


# Measurements that need a process of their own: compiling from scratch, memory at its peak.


_FIRST_EPISODE = """
import time
began = time.perf_counter()
from loadmaster.envs.{environment}.episode import run_episode
from loadmaster.envs.{environment}.settings import {settings}
run_episode("{policy}", {settings}(), 0)
print(time.perf_counter() - began)
"""


def cold_starts(
    environment: str, settings: str, policy: str, say: Callable[[str], None]
) -> Iterator[Figure]:
    """Until a first episode is over: everything compiled anew, then everything found compiled."""
    program = _FIRST_EPISODE.format(environment=environment, settings=settings, policy=policy)
    with tempfile.TemporaryDirectory() as empty:
        for doing, name in (
            ("compiling from scratch", "compile_s"),
            ("loading what was compiled", "cached_start_s"),
        ):
            say(doing)
            seconds = in_fresh_process(program, LOADMASTER_CACHE=empty)
            yield Figure(f"{environment}/{name}", seconds, "s")


def in_fresh_process(program: str, **environment: str) -> float:
    """The number a Python program prints."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
        cwd=tempfile.gettempdir(),
    )
    return float(done.stdout)


# How policies are timed beside one another.
#
# By this thread's CPU time, torch held to one thread, and by turns: what a busy machine does to one
# contender it then does to all.


PER_S = "decisions/s"


@contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def measured_by_turns(
    system: str, ways: Mapping[str, Callable[[], int]], rounds: int, say: Callable[[str], None]
) -> dict[str, float]:
    """Decisions per second of CPU time, each over all its turns.

    `ways` are ways to roll out, each ready to run and to say how many decisions it made.
    """
    decisions, spent = dict.fromkeys(ways, 0), dict.fromkeys(ways, 0.0)
    for turn in range(rounds):
        for name, roll_out in ways.items():
            told = name.strip("/") or "compiled"
            say(f"{system}: rollouts, turn {turn + 1} of {rounds}: {told}")
            began = time.thread_time()
            decisions[name] += roll_out()
            spent[name] += time.thread_time() - began
    return {name: decisions[name] / spent[name] for name in ways}


SYSTEMS = {
    "decima": "loadmaster.platform.systems.decima.bench",
    "das": "loadmaster.platform.systems.das.bench",
}


def measure(say: Callable[[str], None], system: str | None = None) -> Iterator[Figure]:
    """All figures of one system, or of every one."""
    if system is not None and system not in SYSTEMS:
        raise unknown_name("system", system, SYSTEMS)
    for name in SYSTEMS if system is None else (system,):
        yield from import_module(SYSTEMS[name]).measure(say)
