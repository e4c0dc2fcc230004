"""Validations of a run, read from its files."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.platform.training.config import TrainingConfig
from loadmaster.platform.training.history import Point, common_metric, read_histories, read_history
from loadmaster.platform.training.run_folder import RunFolder
from tests.platform.training.made_runs import make_run


def test_points_and_baseline_of_a_running_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one", 80.0, 45.0)
    with (run / "metrics.csv").open("a") as file:
        file.write("4,60,30,4000\n5,,3")  # the next row is being written
    history = read_history(run)
    assert history.points == (
        Point(0, 0, 0.0, 80.0),
        Point(2, 2000, 1.0, 45.0),
        Point(4, 4000, 2.0, 60.0),
    )
    assert (history.name, history.metric, history.iterations) == ("one", "jct_s", 4)
    assert history.best == history.points[1]
    assert history.best_baseline == ("fair", 50.0)


def test_diverged_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one", math.nan, 60.0, math.inf, baselines={"fair": math.nan})
    history = read_history(run)
    assert (history.values, history.best.iterations, len(history.points)) == ([60.0], 2, 3)
    assert history.best_baseline is None


def test_run_without_validation_is_an_error(tmp_path: Path) -> None:
    begun = RunFolder.create(tmp_path / "begun", TrainingConfig(), {"system": "decima"})
    lost = make_run(tmp_path / "lost", math.nan)
    for folder in (begun.path, lost, make_run(tmp_path / "empty")):
        with pytest.raises(InputError, match="no validation"):
            read_history(folder)


def test_folders_that_are_not_runs(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "manifest.json").write_text('{"system": "decima"}')
    for name in ("none", "file", "bundle", "."):
        with pytest.raises(InputError, match=r"is not a run.*metrics\.csv"):
            read_history(tmp_path / name)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("metrics.csv", b"iteration,validation\n0,\xff\n", r"metrics\.csv is not text"),
        ("manifest.json", b'{"system": "x", "baselines": ["fair"]}', r"manifest\.json: baselines"),
        ("manifest.json", b'{"system": "x", "baselines": {"a": null}}', "baselines"),
    ],
)
def test_damaged_run(file: str, content: bytes, message: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "one", 80.0)
    (run / file).write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_history(run)


def test_names_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("a/run", "b/run", "c/lr=0.1"):
        make_run(Path(folder), 80.0)

    def names(*given: str) -> list[str]:
        return [history.name for history in read_histories(given)]

    assert names("a/run", "b/run", "c/lr=0.1") == ["a/run", "b/run", "lr=0.1"]
    assert names("small=a/run", "b/run") == ["small", "run"]
    assert read_histories(["x=c/lr=0.1"])[0].folder == Path("c/lr=0.1")
    monkeypatch.chdir("a/run")
    assert names(".") == ["run"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["=a"], "'=a'"),
        (["x="], "'x='"),
        (["x=a", "x=b"], "2 runs are called 'x'"),
        (["a", "a"], "2 runs are called 'a'"),
        (["x=none"], "'none' is not a run"),
    ],
)
def test_invalid_names(
    given: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        make_run(Path(name), 80.0)
    with pytest.raises(InputError, match=message):
        read_histories(given)


def test_common_metric(tmp_path: Path) -> None:
    jct, makespan, unknown = (
        read_history(make_run(tmp_path / str(metric), 80.0, metric=metric))
        for metric in ("jct_s", "makespan_s", None)
    )
    assert common_metric([jct, unknown]) == "jct_s"
    assert common_metric([unknown]) == "validation"
    with pytest.raises(InputError, match="jct_s, makespan_s"):
        common_metric([jct, makespan, unknown])
