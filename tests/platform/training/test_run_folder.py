"""A run's files: created, opened, rewound to a checkpoint; and provenance."""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
from pathlib import Path

import pytest
import ray

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings
from loadmaster.platform.systems.decima.training import DecimaTraining
from loadmaster.platform.training import run_folder
from loadmaster.platform.training.run_folder import RunFolder

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


def test_existing_folder_is_an_error(run: RunFolder) -> None:
    with pytest.raises(InputError, match=r"exists already.*--resume"):
        RunFolder.create(run.path, CONFIG, {"system": "other"})
    assert run.manifest["system"] == "decima"


def test_folder_that_cannot_be_created(run: RunFolder) -> None:
    with pytest.raises(InputError, match="Not a directory"):
        RunFolder.create(run.path / "config.yaml" / "one", CONFIG, {})


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


def test_other_folders_are_not_runs(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(InputError, match="is not a run"):
            RunFolder.open(folder)


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
    assert abs(datetime.datetime.now(datetime.UTC) - started) < datetime.timedelta(minutes=1)


def test_revision(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if (root / ".git").exists():
        assert len(run_folder.revision() or "") == 40
    monkeypatch.setattr(run_folder, "__file__", str(tmp_path / "run_folder.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert run_folder.revision() is None  # an installed package
    monkeypatch.setenv("PATH", str(tmp_path))  # no git at all
    assert run_folder.revision() is None
