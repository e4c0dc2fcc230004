"""Start of a local Ray on a machine that is too busy for it."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import ray

from loadmaster.envs.errors import InputError
from loadmaster.platform.ray import head, session
from tests.platform.cli.one_line import Patch

SLOW = Exception(f"The current node {head.SLOW}. This could happen because")


class Starts:
    """In place of `ray.init`: starts a process each time, and raises the faults in turn."""

    def __init__(self, *faults: Exception | None) -> None:
        self.faults, self.processes = faults, list[subprocess.Popen[bytes]]()

    def __call__(self, **options: Any) -> None:
        assert options["address"] == "local"
        fault = self.faults[min(len(self.processes), len(self.faults) - 1)]
        command = [sys.executable, "-c", "import time; time.sleep(60)"]
        self.processes.append(subprocess.Popen(command))
        if fault is not None:
            raise fault

    def end(self) -> None:
        for one in self.processes:
            one.kill()
            one.wait()


def test_a_slow_start_is_tried_again_without_what_it_left(
    monkeypatch: Patch, tmp_path: Path
) -> None:
    starts = Starts(SLOW, None)
    monkeypatch.setattr(ray, "init", starts)
    session.start_local(tmp_path, num_cpus=1)
    first, second = starts.processes
    assert first.wait(10) != 0
    assert second.poll() is None
    starts.end()


def test_a_start_that_stays_slow_is_bad_input(monkeypatch: Patch, tmp_path: Path) -> None:
    starts = Starts(SLOW)
    monkeypatch.setattr(ray, "init", starts)
    with pytest.raises(InputError, match="expected a machine with less load"):
        session.start_local(tmp_path, num_cpus=1)
    assert len(starts.processes) == head.TRIES
    assert all(one.wait(10) != 0 for one in starts.processes)


def test_another_fault_is_raised_at_once(monkeypatch: Patch, tmp_path: Path) -> None:
    starts = Starts(RuntimeError("no port"))
    monkeypatch.setattr(ray, "init", starts)
    with pytest.raises(RuntimeError, match="no port"):
        session.start_local(tmp_path, num_cpus=1)
    (process,) = starts.processes
    assert process.poll() is None
    starts.end()
