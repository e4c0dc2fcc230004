"""Trackers: CSV, TensorBoard and MLflow."""

from __future__ import annotations

import struct
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tensorboardX.proto.event_pb2 import Event

from loadmaster.envs.errors import InputError
from loadmaster.platform.systems.decima.training import DecimaTraining
from loadmaster.platform.training import tracking
from loadmaster.platform.training.config import flattened
from loadmaster.platform.training.run_folder import RunFolder
from loadmaster.platform.training.tracking import CsvTracker, TensorBoardTracker, trackers_for


def test_csv_adds_columns_and_keeps_rows(tmp_path: Path) -> None:
    tracker = CsvTracker(RunFolder(tmp_path))
    tracker.log(0, {"iteration": 0.0, "validation": 88.5})
    tracker.log(1, {"iteration": 1.0, "kl": 1e-5, "entropy": 2.5})
    tracker.log(2, {"iteration": 2.0, "kl": 2e-5, "entropy": 2.25, "validation": 80.125})
    again = CsvTracker(RunFolder(tmp_path))  # a resumed run has the same columns
    again.log(3, {"iteration": 3.0, "entropy": 2.0})
    assert (tmp_path / "metrics.csv").read_text().splitlines() == [
        "iteration,validation,kl,entropy",
        "0,88.5,,",
        "1,,1e-05,2.5",
        "2,80.125,2e-05,2.25",
        "3,,,2",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.csv"]


def events_in(folder: Path) -> list[Any]:
    """Events of TensorBoard's files: records of protocol buffers with checksums between."""
    events = []
    for file in sorted(folder.glob("events.*")):
        content, place = file.read_bytes(), 0
        while place < len(content):
            (length,) = struct.unpack_from("<Q", content, place)
            start = place + 12  # the length, and its checksum
            events.append(Event.FromString(content[start : start + length]))
            place = start + length + 4
    return events


def test_tensorboard_is_flushed_before_it_is_closed(tmp_path: Path) -> None:
    tracker = TensorBoardTracker(tmp_path, resumed_after=None)
    tracker.log(0, {"iteration": 0.0, "validation": 88.5})
    tracker.log(1, {"iteration": 1.0, "validation": 80.0, "kl": 0.5})
    end, values = time.monotonic() + 10, []
    while len(values) < 3:
        assert time.monotonic() < end
        time.sleep(0.05)
        values = [(e.step, v) for e in events_in(tmp_path / "tensorboard") for v in e.summary.value]
    scalars = [(value.tag, step, value.simple_value) for step, value in values]
    assert scalars == [("validation", 0, 88.5), ("validation", 1, 80.0), ("kl", 1, 0.5)]
    tracker.close()
    assert not any(event.session_log.status for event in events_in(tmp_path / "tensorboard"))


def test_tensorboard_hides_steps_that_are_repeated(tmp_path: Path) -> None:
    tracker = TensorBoardTracker(tmp_path, resumed_after=0)
    tracker.log(1, {"validation": 80.0})
    tracker.close()
    marks = [event for event in events_in(tmp_path / "tensorboard") if event.session_log.status]
    assert [mark.step for mark in marks] == [1]  # TensorBoard drops earlier points from here on


def test_mlflow_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(InputError, match=r"pip install 'loadmaster\[mlflow\]'"):
        tracking.MlflowTracker("http://localhost:5000", "run", {})


class FakeMlflow(ModuleType):
    """Records its calls; calls of `fails` raise."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.calls: list[tuple[Any, ...]] = []
        self.fails = ""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*arguments: Any, **named: Any) -> Any:
            self.calls.append((name, *arguments, *named.items()))
            if name == self.fails:
                raise ConnectionError("unreachable")
            return SimpleNamespace(info=SimpleNamespace(run_id="r-17"))

        return call


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> FakeMlflow:
    fake = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")  # the tracker sets it otherwise
    return fake


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "decima-1", DecimaTraining(), {"system": "decima"})


def test_mlflow_gets_parameters_and_metrics(mlflow: FakeMlflow, run: RunFolder) -> None:
    for tracker in trackers_for(run, DecimaTraining(), None, "sqlite:///m.db", print):
        tracker.log(4, {"iteration": 4.0, "validation": 80.0})
        tracker.close()
    parameters = flattened(DecimaTraining().model_dump(mode="json"))
    assert mlflow.calls == [
        ("set_tracking_uri", "sqlite:///m.db"),
        ("set_experiment", "loadmaster"),
        ("start_run", ("run_id", None), ("run_name", "decima-1")),
        ("log_params", parameters),
        ("log_metrics", {"iteration": 4.0, "validation": 80.0}, ("step", 4)),
        ("end_run",),
    ]
    assert parameters["training.entropy.last"] == DecimaTraining().training.entropy.last
    assert run.rows() == [{"iteration": 4.0, "validation": 80.0}]


def test_resumed_run_continues_in_mlflow(mlflow: FakeMlflow, run: RunFolder) -> None:
    trackers_for(run, DecimaTraining(), None, "http://one", print)
    mlflow.calls.clear()
    trackers_for(run, DecimaTraining(), 4, "http://one", print)
    assert ("start_run", ("run_id", "r-17"), ("run_name", "decima-1")) in mlflow.calls
    assert "log_params" not in [call[0] for call in mlflow.calls]  # MLflow lets none change
    trackers_for(run, DecimaTraining(), 4, "http://another", print)
    assert ("start_run", ("run_id", None), ("run_name", "decima-1")) in mlflow.calls


def test_unusable_mlflow_is_an_input_error(mlflow: FakeMlflow, run: RunFolder) -> None:
    mlflow.fails = "set_experiment"
    with pytest.raises(InputError, match=r"--mlflow 'http://x'.*unreachable"):
        trackers_for(run, DecimaTraining(), None, "http://x", print)


def test_failing_mlflow_is_reported_once(mlflow: FakeMlflow, run: RunFolder) -> None:
    warnings: list[str] = []
    *_, tracker = trackers_for(run, DecimaTraining(), None, "http://x", warnings.append)
    mlflow.fails = "log_metrics"
    for iteration in (1, 2):
        tracker.log(iteration, {"kl": 0.5})
    tracker.close()
    assert len(warnings) == 1
    assert "unreachable" in warnings[0]
    assert [call[0] for call in mlflow.calls].count("log_metrics") == 1
