"""Measurements that need a process of their own: compiling from scratch, memory at its peak."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator

from loadmaster.platform.bench.results import Figure

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
