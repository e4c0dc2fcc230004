"""Retries of a training whose process dies: which ends are repeated, and from where."""

import datetime
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import fsspec
import pytest

from loadmaster.platform.cli import retries
from loadmaster.platform.cli.options import UsageError
from loadmaster.platform.cli.retries import continued, repeatable, supervise
from tests.platform.cli.one_line import Captured, Patch

TRAIN = ["train", "decima", "--output", "run", "--set", "training.iterations=9", "--workers", "1"]
NOW = datetime.datetime(2026, 1, 2, 3, 4, 5)
KILLED = -signal.SIGKILL


class Children:
    """Fake trainings: each writes a checkpoint (None: none) and ends with a code."""

    def __init__(self, *ends: tuple[int | None, int], on_wait: Callable[[], None] | None = None):
        self._ends: Iterator[tuple[int | None, int]] = iter(ends)
        self.commands: list[list[str]] = []
        self._on_wait = on_wait

    def __call__(self, command: Sequence[str]) -> "subprocess.Popen[bytes]":
        self.commands.append(list(command))
        return cast("subprocess.Popen[bytes]", self)

    def wait(self) -> int:
        iteration, code = next(self._ends)
        Path("run/checkpoints").mkdir(parents=True, exist_ok=True)
        if iteration is not None:
            Path(f"run/checkpoints/iteration-{iteration:06d}").mkdir()
        if self._on_wait:
            self._on_wait()
        return code


def run(children: Children, count: int = 3, **more: Any) -> int:
    return supervise(TRAIN, count, child=children, pause_s=0.0, **more)


RESUME = ["train", "--resume", "run"]


def test_killed_training_goes_on_from_its_checkpoint(here: Path, capsys: Captured) -> None:
    children = Children((3, KILLED), (5, 1), (9, 0))
    assert run(children) == 0
    assert children.commands == [TRAIN, RESUME, RESUME]
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("loadmaster: retry 1 of 3: the training was killed by SIGKILL")
    assert first.endswith("going on from iteration 3 of run")
    assert second.endswith("ended with exit code 1; going on from iteration 5 of run")


def test_training_without_a_checkpoint_starts_again(here: Path) -> None:
    children = Children((None, KILLED), (2, 0))

    def checked(command: Sequence[str]) -> "subprocess.Popen[bytes]":
        assert not Path("run").exists()
        return children(command)

    assert supervise(TRAIN, 1, child=checked, pause_s=0.0) == 0
    assert children.commands == [TRAIN, TRAIN]


@pytest.mark.parametrize(
    ("code", "result"), [(0, 0), (2, 2), (130, 130), (-signal.SIGTERM, 143), (-signal.SIGINT, 130)]
)
def test_finished_refused_and_stopped_trainings_are_not_repeated(
    code: int, result: int, here: Path, capsys: Captured
) -> None:
    children = Children((1, code))
    assert run(children) == result
    assert capsys.readouterr().out == ""


def test_retries_are_limited(here: Path, capsys: Captured) -> None:
    children = Children((1, KILLED), (2, -signal.SIGSEGV), (3, KILLED))
    assert run(children, 2) == 128 + signal.SIGKILL
    assert children.commands == [TRAIN, RESUME, RESUME]
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "SIGSEGV" in line]
    assert lines[-1].endswith("no retry of 2 is left")


def test_pause_doubles_only_while_no_checkpoint_is_added(here: Path, monkeypatch: Patch) -> None:
    pauses: list[float] = []

    def wait(event: threading.Event, timeout: float | None = None) -> bool:
        pauses.append(timeout or 0.0)
        return False

    monkeypatch.setattr(threading.Event, "wait", wait)
    ends = [(1, KILLED), (None, KILLED), (None, KILLED), (5, KILLED), (None, KILLED), (9, 0)]
    assert supervise(TRAIN, 5, child=Children(*ends), pause_s=1.0) == 0
    assert pauses == [1.0, 2.0, 4.0, 1.0, 2.0]


def test_job_that_is_stopped_is_not_repeated(here: Path) -> None:
    """Ray sends SIGTERM to this process and to the training, and SIGKILL after three seconds."""
    before = signal.getsignal(signal.SIGTERM)
    children = Children((1, KILLED), on_wait=lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert run(children) == 128 + signal.SIGKILL
    assert children.commands == [TRAIN]
    assert signal.getsignal(signal.SIGTERM) is before


def test_lost_job_is_continued(here: Path) -> None:
    Path("run/checkpoints/iteration-000004").mkdir(parents=True)
    children = Children((9, 0))
    assert run(children, continues=True) == 0
    assert children.commands == [RESUME]


def test_folder_of_other_files_is_never_deleted(here: Path) -> None:
    Path("run/checkpoints").mkdir(parents=True)
    Path("run/thesis.tex").touch()
    assert continued(TRAIN)[0] == TRAIN
    assert Path("run/thesis.tex").exists()
    Path("run/thesis.tex").unlink()
    assert continued(TRAIN)[0] == TRAIN
    assert not Path("run").exists()


def test_run_at_a_url_is_continued() -> None:
    """Only checkpoints that its manifest lists are complete."""
    store = fsspec.filesystem("memory")
    command = ["train", "das", "--output", "memory://runs/retries"]
    for published, expected in (
        ({"best": "best/iteration-000002-ab"}, command),
        (
            {"checkpoints/iteration-000004": "checkpoints/iteration-000004"},
            ["train", "--resume", "memory://runs/retries"],
        ),
    ):
        store.pipe("/runs/retries/manifest.json", json.dumps({"published": published}).encode())
        assert continued(command)[0] == expected
        assert store.exists("/runs/retries/manifest.json") == (expected != command)


def test_folder_is_chosen_once() -> None:
    assert repeatable(["train", "das"], NOW) == [
        "train", "das", "--output", "runs/das-20260102-030405",
    ]  # fmt: skip
    for command in (TRAIN, ["train", "--resume", "run"], ["retrain", "das", "--output", "x"]):
        assert repeatable(command, NOW) == command
    with pytest.raises(UsageError):
        repeatable(["evaluate", "das"], NOW)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["train", "--resume", "run", "--workers", "3"], None),
        (["retrain", "das", "--from", "x", "--output", "y"], None),
        ([*TRAIN, "--mlflow", "http://m", "--json"], [*RESUME, "--mlflow", "http://m", "--json"]),
        ([*TRAIN, "--address", "auto"], [*RESUME, "--address", "auto"]),
    ],
)
def test_options_of_a_continued_command(
    command: list[str], expected: list[str] | None, here: Path
) -> None:
    Path("run/checkpoints/iteration-000001").mkdir(parents=True)
    assert continued(command)[0] == (expected or command)


def test_training_ends_with_its_supervisor(tmp_path: Path) -> None:
    """The kernel stops the child of a killed supervisor, so that no second training runs on."""
    module = tmp_path / "child.py"
    module.write_text("import time\nprint('running', flush=True)\ntime.sleep(60)\n")
    code = (
        "import sys; from loadmaster.platform.cli import retries; "
        "retries.MODULE = 'child'; sys.exit(retries.main(['1', '--', 'train', '--resume', 'x']))"
    )
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "running\n"
    parent.kill()
    began = time.monotonic()
    assert parent.stdout.read() == ""  # at the end of the child, which holds the pipe
    assert time.monotonic() - began < 10
    parent.wait()


def test_entry_point_has_the_name_that_jobs_use() -> None:
    from loadmaster.serving.jobs.job import RETRIES_MODULE, entrypoint

    assert retries.__name__ == RETRIES_MODULE
    command = entrypoint(["train", "das"], "/runs/1", 3, continues=True)
    assert command.endswith(f"exec python -m {RETRIES_MODULE} 3 --continue -- train das")
