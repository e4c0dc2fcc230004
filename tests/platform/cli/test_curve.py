"""`loadmaster curve`: the picture, the table, the JSON and bad input."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from loadmaster.platform.training.config import TrainingConfig
from loadmaster.platform.training.run_folder import RunFolder
from tests.platform.cli.one_line import Cli
from tests.platform.training.made_runs import make_run

pytestmark = pytest.mark.usefixtures("here")


def test_picture_and_table(cli: Cli) -> None:
    make_run(Path("runs/one"), 330.0, 60.0, 45.0)
    make_run(Path("runs/two"), 1080.0, 70.0)
    shown, err = cli("curve runs/one '[b]two=runs/two'")
    assert err == ""
    rows = [line.split() for line in shown.splitlines()]
    assert rows[1] == ["one", "5", "330.0", "45.0", "4", "fair", "50.0", "-10.0%"]
    assert rows[2] == ["[b]two", "3", "1,080.0", "70.0", "2", "fair", "50.0", "+40.0%"]
    assert "mean JCT, s: first" in shown.splitlines()[0]
    assert shown.splitlines()[3:] == ["Learning curves: curves.png"]
    assert Path("curves.png").read_bytes().startswith(b"\x89PNG")


def test_json(cli: Cli) -> None:
    make_run(Path("one"), math.nan, 60.0)
    make_run(Path("two"), 80.0, metric=None)
    one = {"name": "one", "run": "one", "iterations": 3, "first": None}
    two = {"name": "name", "run": "two", "iterations": 1, "first": 80.0}
    best_of_one = {"best": {"iteration": 2, "value": 60.0}}
    best_of_two = {"best": {"iteration": 0, "value": 80.0}, "best_baseline": None}
    assert cli.json("curve one name=two --against minutes -o both.svg") == {
        "picture": "both.svg",
        "metric": "jct_s",
        "against": "minutes",
        "runs": [
            {**one, **best_of_one, "best_baseline": {"name": "fair", "value": 50.0}},
            {**two, **best_of_two},
        ],
    }
    assert "<svg" in Path("both.svg").read_text()
    assert cli.json("curve two")["metric"] == "validation"


@pytest.mark.parametrize(("ending", "begins"), [("PNG", b"\x89PNG"), ("pdf", b"%PDF")])
def test_file_name_chooses_the_format(ending: str, begins: bytes, cli: Cli) -> None:
    make_run(Path("one"), 80.0, 60.0)
    picture = Path(f"curve.{ending}")
    picture.write_text("an older one, which is replaced")
    cli(f"curve one -o {picture}")
    assert picture.read_bytes().startswith(begins)
    assert sorted(path.name for path in Path().iterdir()) == [picture.name, "one"]


def test_different_baselines_are_mentioned(cli: Cli) -> None:
    make_run(Path("one"), 80.0)
    make_run(Path("two"), 80.0, baselines={"fair": 70.0})
    make_run(Path("three"), 80.0, baselines={})
    assert "differ" not in cli("curve one three").out
    assert "best baselines differ" in cli("curve one two").out


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one sound run, and with others that are not."""
    folder = tmp_path_factory.mktemp("runs")
    RunFolder.create(folder / "begun", TrainingConfig(), {"system": "decima"})
    make_run(folder / "one", 80.0)
    make_run(folder / "empty")
    make_run(folder / "lost", math.nan)
    make_run(folder / "other", 80.0, metric="makespan_s")
    for name, damaged, content in (
        ("broken", "metrics.csv", b"iteration,validation\n0,fast\n"),
        ("latin", "metrics.csv", b"iteration,validation\n0,\xff\n"),
        ("listed", "manifest.json", b'{"system": "x", "baselines": ["fair"]}'),
        ("null", "manifest.json", b'{"system": "x", "baselines": {"a": null}}'),
    ):
        (make_run(folder / name, 80.0) / damaged).write_bytes(content)
    (make_run(folder / "bundle") / "metrics.csv").unlink()
    (folder / "folder.png").mkdir()
    (folder / "file").touch()
    return folder


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "Missing argument 'RUN...'"),
        ("none", "'none' is not a run"),
        ("x=none", "'none' is not a run"),
        ("file", "is not a run"),
        ("bundle", "is not a run; "),
        (".", "is not a run"),
        ("one empty", "'empty' has no validation"),
        ("begun", "no validation"),
        ("lost", "no validation"),
        ("one other", "jct_s, makespan_s"),
        ("one x=one x=other", "2 runs are called 'x'"),
        ("one one", "2 runs are called 'one'"),
        ("=one", "'=one'"),
        ("x=", "'x='"),
        ("one --against hours", "'iterations', 'decisions', 'minutes'"),
        ("one -o picture", ".png, .svg, .pdf"),
        ("one -o none/curve.png", "--output 'none/curve.png'"),
        ("one -o folder.png", "--output 'folder.png'"),
        ("broken", "metrics.csv:2: "),
        ("latin", "metrics.csv is not text"),
        ("listed", "manifest.json: baselines"),
        ("null", "manifest.json: baselines"),
    ],
)
def test_bad_input(
    arguments: str, message: str, runs: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(runs)
    before = sorted(runs.rglob("*"))
    assert message in cli.error(f"curve {arguments}")
    assert sorted(runs.rglob("*")) == before
