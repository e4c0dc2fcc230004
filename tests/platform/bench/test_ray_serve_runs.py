"""Runs of the benchmark of Ray Serve in processes: shares of repeats, faults, an early end."""

import os
import sys
import time
from collections.abc import Sequence
from multiprocessing import active_children
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.platform.bench.engines import ray_serve_runs
from loadmaster.platform.bench.engines.ray_serve_load import Arm
from loadmaster.platform.bench.engines.ray_serve_runs import CORES, real_runs


def give(writer: Connection, repeats: Sequence[int], log: Path) -> None:
    for repeat in repeats:
        writer.send((repeat, [Arm(str(os.getpid()), (0.1,), 1.0), Arm(log.name, (0.1,), 1.0)]))


def fail(writer: Connection, repeats: Sequence[int], log: Path) -> None:
    log.write_text("the cause\n")
    sys.exit(1)


def hang(writer: Connection, repeats: Sequence[int], log: Path) -> None:
    writer.send((repeats[0], []))
    time.sleep(600)


@pytest.fixture(autouse=True)
def _two_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2 * CORES + 1)


def test_repeats_are_shared_among_processes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ray_serve_runs, "_send_runs", give)
    steps: list[str] = []
    runs = list(real_runs(steps.append, 3, tmp_path))
    assert sorted(repeat for repeat, _ in runs) == [0, 1, 2]
    assert len({arms[0].name for _, arms in runs}) == 2
    assert {arms[1].name for _, arms in runs} == {"runs-0.log", "runs-1.log"}
    assert steps == ["ray-serve: 3 runs of 11.5 minutes, 2 at once"]


def test_failed_process_is_one_line_that_names_its_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ray_serve_runs, "_send_runs", fail)
    with pytest.raises(InputError, match=r"failed; see .*runs-\d\.log$"):
        list(real_runs(lambda step: None, 2, tmp_path))
    assert not active_children()


def test_processes_end_with_the_measurement(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ray_serve_runs, "_send_runs", hang)
    runs = real_runs(lambda step: None, 2, tmp_path)
    next(runs)
    assert len(active_children()) == 2
    runs.close()
    assert not active_children()
