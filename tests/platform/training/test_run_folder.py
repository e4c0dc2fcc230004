"""A run's files: made once, found again, rewound to what a checkpoint knows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings
from loadmaster.platform.systems.decima.training import DecimaTraining
from loadmaster.platform.training.run_folder import RunFolder
from loadmaster.platform.training.tracking import check_same_run

CONFIG = build_settings(DecimaTraining, {"seed": 5, "environment": {"jobs": 4}})


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "runs" / "one", CONFIG, {"system": "decima"})


def test_a_new_folder_holds_what_was_set(run: RunFolder) -> None:
    again = RunFolder.open(run.path)
    assert again.manifest == {"system": "decima"}
    assert again.config(DecimaTraining) == CONFIG
    assert (again.checkpoints(), again.rows()) == ([], [])
    assert not list(run.path.glob(".*"))


def test_a_folder_that_exists_is_left_alone(run: RunFolder) -> None:
    with pytest.raises(InputError, match=r"exists already; expected a new folder, or --resume"):
        RunFolder.create(run.path, CONFIG, {"system": "other"})
    assert run.manifest["system"] == "decima"


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot make the run's folder .*Not a directory"):
        RunFolder.create(tmp_path / "file" / "one", CONFIG, {})


def test_a_run_that_never_began_leaves_nothing(run: RunFolder) -> None:
    above = run.path.parent
    other = RunFolder.create(above / "two", CONFIG, {"system": "decima"})
    run.discard()
    assert list(above.iterdir()) == [other.path]  # which did not make the folder above
    other.discard()
    assert above.exists()


def test_what_it_made_above_itself_goes_with_it(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    run = RunFolder.create(tmp_path / "mine" / "a" / "b" / "one", CONFIG, {"system": "decima"})
    run.discard()
    assert list(tmp_path.iterdir()) == [tmp_path / "mine"]
    assert list((tmp_path / "mine").iterdir()) == []


def test_a_run_that_began_is_not_discarded(run: RunFolder) -> None:
    write_metrics(run, "iteration,validation\n0,12.5\n")
    run.discard()
    assert run.rows() == [{"iteration": 0.0, "validation": 12.5}]


def test_other_folders_are_no_runs(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(InputError, match=r"is not a run; expected a folder that `loadmaster"):
            RunFolder.open(folder)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("{", "is not JSON"), ("[]", "names no system"), ('{"seed": 1}', "names no system")],
)
def test_a_damaged_manifest(text: str, complaint: str, run: RunFolder) -> None:
    (run.path / "manifest.json").write_text(text)
    with pytest.raises(InputError, match=rf"manifest\.json {complaint}; the run is damaged"):
        _ = run.manifest


def test_checkpoints_half_written_are_no_checkpoints(run: RunFolder) -> None:
    with pytest.raises(InputError, match="has no checkpoint"):
        run.latest_checkpoint()
    for iteration in (2, 10, 100):
        run.checkpoint_of(iteration).mkdir()
    (run.path / "checkpoints" / ".iteration-000120.partial").mkdir()
    (run.path / "checkpoints" / "iteration-000130.partial").mkdir()
    (run.path / "checkpoints" / "iteration-000140").touch()
    assert [folder.name for folder in run.checkpoints()] == [
        "iteration-000002",
        "iteration-000010",
        "iteration-000100",
    ]
    assert run.latest_checkpoint() == run.checkpoint_of(100)


def write_metrics(run: RunFolder, text: str) -> None:
    (run.path / "metrics.csv").write_text(text)


def test_rows_past_a_checkpoint_are_dropped(run: RunFolder) -> None:
    write_metrics(run, "iteration,validation,kl\n0,12.5,\n1,,0.1\n2,11,0.30000000001\n3,,0.4\n")
    kept = run.rewind(2)
    assert kept == [
        {"iteration": 0.0, "validation": 12.5},
        {"iteration": 1.0, "kl": 0.1},
        {"iteration": 2.0, "validation": 11.0, "kl": pytest.approx(0.3)},
    ]
    assert (run.path / "metrics.csv").read_text() == (
        "iteration,validation,kl\n0,12.5,\n1,,0.1\n2,11,0.3\n"
    )
    assert run.rewind(-1) == []
    assert run.rows() == []


def test_a_line_that_was_cut_is_no_row(run: RunFolder) -> None:
    write_metrics(run, "iteration,kl\n0,0.25\n1,0.2")
    assert run.rows() == [{"iteration": 0.0, "kl": 0.25}]
    write_metrics(run, "iteration,kl\n0,0.25\nx,y\n2,0.5\n")
    with pytest.raises(InputError, match=r"metrics\.csv:3: not a row of figures"):
        run.rows()
    write_metrics(run, "kl\n0.25\n")
    with pytest.raises(InputError, match=r"metrics\.csv:2: not a row of figures"):
        run.rows()


def test_a_resumed_run_remembers_how(run: RunFolder) -> None:
    write_metrics(run, "iteration,kl\n1,0.1\n2,0.2\n")
    more = build_settings(DecimaTraining, {"seed": 5, "training": {"iterations": 900}})
    run.go_on(more, 1)
    assert run.config(DecimaTraining).training.iterations == 900
    assert [row["iteration"] for row in run.rows()] == [1]
    manifest = json.loads((run.path / "manifest.json").read_text())
    assert manifest["status"] == "running"
    (again,) = manifest["resumed"]
    assert again["iteration"] == 1
    assert again["command"].startswith("loadmaster")
    run.go_on(more, 1)
    assert len(run.manifest["resumed"]) == 2


@pytest.mark.parametrize(
    "changed",
    [
        {"training": {"iterations": 7, "entropy": {"first": 0.1, "last": 0.1}}},
        {"rollouts": {"workers": 8, "per_sequence": 8}, "resources": {"gpus": 1}},
        {"checkpoints": {"every": 1}, "validation": {"every": 1}},
    ],
)
def test_what_may_change_in_a_run(changed: dict[str, object], tmp_path: Path) -> None:
    check_same_run(DecimaTraining(), build_settings(DecimaTraining, changed), tmp_path)


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"seed": 4}, "seed"),
        ({"environment": {"jobs": 9}}, "environment.jobs"),
        ({"network": {"width": 16}}, "network.width"),
        ({"validation": {"sequences": 3}}, "validation.sequences"),
        ({"training": {"start": "elsewhere"}}, "training.start"),
        ({"training": {"take": ["*"]}}, "training.take"),
    ],
)
def test_what_would_be_another_run(changed: dict[str, object], name: str, tmp_path: Path) -> None:
    other = build_settings(DecimaTraining, changed)
    with pytest.raises(InputError, match=rf"setting {name} is .* cannot become .*expected a new"):
        check_same_run(DecimaTraining(), other, tmp_path)
