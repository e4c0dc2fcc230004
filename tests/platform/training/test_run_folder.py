"""A run's files: created, opened, rewound to a checkpoint; provenance; trackers."""

import datetime
import json
import os
import platform
import sys
import time
from pathlib import Path
from unittest.mock import Mock, call

import pytest
import ray

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings
from loadmaster.platform.systems.decima.training import DecimaTraining
from loadmaster.platform.training import run_folder
from loadmaster.platform.training.config import flattened
from loadmaster.platform.training.run_folder import RunFolder
from loadmaster.platform.training.tracking import CsvTracker, TensorBoardTracker, trackers_for

CONFIG = build_settings(DecimaTraining, {"seed": 5, "environment": {"jobs": 4}})


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "runs" / "one", CONFIG, {"system": "decima"})


def write_metrics(run: RunFolder, text: str) -> None:
    (run.path / "metrics.csv").write_text(text)


def test_new_folder_holds_the_configuration(run: RunFolder) -> None:
    again = RunFolder.open(run.path)
    assert again.manifest == {"system": "decima"}
    assert again.config(DecimaTraining) == CONFIG
    assert (again.checkpoints(), again.rows()) == ([], [])
    assert not list(run.path.glob(".*"))


def test_discard_removes_the_run_and_the_parents_it_created(run: RunFolder) -> None:
    above = run.path.parent
    other = RunFolder.create(above / "a" / "b" / "two", CONFIG, {"system": "decima"})
    run.discard()
    assert list(above.iterdir()) == [above / "a"]
    other.discard()
    assert list(above.iterdir()) == []  # it stays: the first run created it


def test_discard_keeps_a_run_with_metrics(run: RunFolder) -> None:
    write_metrics(run, "iteration,validation\n0,12.5\n")
    run.discard()
    assert run.rows() == [{"iteration": 0.0, "validation": 12.5}]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("{", "is not JSON"), ("[]", "names no system"), ('{"seed": 1}', "names no system")],
)
def test_damaged_manifest(text: str, complaint: str, run: RunFolder) -> None:
    (run.path / "manifest.json").write_text(text)
    with pytest.raises(InputError, match=rf"manifest\.json {complaint}"):
        _ = run.manifest


def test_partial_checkpoints_are_ignored(run: RunFolder) -> None:
    with pytest.raises(InputError, match="has no checkpoint"):
        run.latest_checkpoint()
    for iteration in (2, 10, 100):
        run.checkpoint_of(iteration).mkdir()
    (run.path / "checkpoints" / ".iteration-000120.7.partial").mkdir()
    (run.path / "checkpoints" / "iteration-000130.partial").mkdir()
    (run.path / "checkpoints" / "iteration-000140").touch()
    assert run.checkpoints() == [run.checkpoint_of(iteration) for iteration in (2, 10, 100)]
    assert run.latest_checkpoint() == run.checkpoint_of(100)


def test_truncated_and_invalid_rows(run: RunFolder) -> None:
    write_metrics(run, "iteration,kl\n0,0.25\n1,0.2")
    assert run.rows() == [{"iteration": 0.0, "kl": 0.25}]
    for text, line in (("iteration,kl\n0,0.25\nx,y\n2,0.5\n", 3), ("kl\n0.25\n", 2)):
        write_metrics(run, text)
        with pytest.raises(InputError, match=rf"metrics\.csv:{line}:"):
            run.rows()


def test_resume_drops_later_rows_and_is_noted_in_the_manifest(run: RunFolder) -> None:
    write_metrics(run, "iteration,validation,kl\n0,12.5,\n1,,0.30000000001\n2,11,0.4\n")
    more = build_settings(DecimaTraining, {"seed": 5, "training": {"iterations": 900}})
    run.resume(more, 1)
    assert run.config(DecimaTraining).training.iterations == 900
    rows = "iteration,validation,kl\n0,12.5,\n1,,0.3\n"  # without those that are repeated
    assert (run.path / "metrics.csv").read_text() == rows
    run.resume(more, 0)
    assert run.manifest["status"] == "running"
    assert [again["iteration"] for again in run.manifest["resumed"]] == [1, 0]
    assert run.manifest["resumed"][0]["command"].startswith("loadmaster")


def test_provenance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/bin/loadmaster", "train", "decima", "--set", "a=b c"])
    found = run_folder.provenance()
    assert json.loads(json.dumps(found)) == found
    assert found["command"] == "loadmaster train decima --set 'a=b c'"
    versions = {"ray": ray.__version__, "python": platform.python_version()}
    assert versions.items() <= found["versions"].items()
    assert found["machine"]["cores"] == os.cpu_count()
    started = datetime.datetime.fromisoformat(found["started"])
    assert started.timestamp() == pytest.approx(time.time(), abs=60)


def test_revision(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if (root / ".git").exists():
        assert len(run_folder.revision() or "") == 40
    monkeypatch.setattr(run_folder, "__file__", str(tmp_path / "run_folder.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert run_folder.revision() is None  # an installed package
    monkeypatch.setenv("PATH", str(tmp_path))  # no git at all
    assert run_folder.revision() is None


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


def test_tensorboard_gets_scalars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorboardX.SummaryWriter", writer := Mock())
    tracker = TensorBoardTracker(tmp_path, resumed_after=3)
    tracker.log(4, {"iteration": 4.0, "validation": 80.0, "kl": 0.5})
    tracker.close()
    # Flushed every second, since a killed run loses the rest; points after the checkpoint go.
    writer.assert_called_once_with(str(tmp_path / "tensorboard"), purge_step=4, flush_secs=1)
    scalars = [call.add_scalar("validation", 80.0, 4), call.add_scalar("kl", 0.5, 4)]
    assert writer.return_value.mock_calls == [*scalars, call.close()]


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Mock:
    fake = Mock()
    fake.start_run.return_value.info.run_id = "r-17"
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")  # the tracker sets it otherwise
    return fake


def test_mlflow_gets_parameters_and_metrics(mlflow: Mock, run: RunFolder) -> None:
    for tracker in trackers_for(run, CONFIG, None, "sqlite:///m.db", print):
        tracker.log(4, {"iteration": 4.0, "validation": 80.0})
        tracker.close()
    parameters = flattened(CONFIG.model_dump(mode="json"))
    assert mlflow.mock_calls == [
        call.set_tracking_uri("sqlite:///m.db"),
        call.set_experiment("loadmaster"),
        call.start_run(run_id=None, run_name="one"),
        call.log_params(parameters),
        call.log_metrics({"iteration": 4.0, "validation": 80.0}, step=4),
        call.end_run(),
    ]
    assert parameters["training.entropy.last"] == CONFIG.training.entropy.last
    assert run.rows() == [{"iteration": 4.0, "validation": 80.0}]


def test_resumed_run_continues_in_mlflow(mlflow: Mock, run: RunFolder) -> None:
    trackers_for(run, CONFIG, None, "http://one", print)
    mlflow.reset_mock()
    trackers_for(run, CONFIG, 4, "http://one", print)
    mlflow.start_run.assert_called_once_with(run_id="r-17", run_name="one")
    mlflow.log_params.assert_not_called()  # MLflow lets none change
    trackers_for(run, CONFIG, 4, "http://another", print)
    mlflow.start_run.assert_called_with(run_id=None, run_name="one")


def test_unusable_mlflow_is_an_input_error(mlflow: Mock, run: RunFolder) -> None:
    mlflow.set_experiment.side_effect = ConnectionError("unreachable")
    with pytest.raises(InputError, match=r"--mlflow 'http://x'.*unreachable"):
        trackers_for(run, CONFIG, None, "http://x", print)


def test_failing_mlflow_is_reported_once(mlflow: Mock, run: RunFolder) -> None:
    warnings: list[str] = []
    *_, tracker = trackers_for(run, CONFIG, None, "http://x", warnings.append)
    mlflow.log_metrics.side_effect = ConnectionError("unreachable")
    for iteration in (1, 2):
        tracker.log(iteration, {"kl": 0.5})
    tracker.close()
    assert ["unreachable" in warning for warning in warnings] == [True]
    mlflow.log_metrics.assert_called_once()
