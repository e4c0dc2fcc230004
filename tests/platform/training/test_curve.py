"""Validations of runs, read from their files, learning curves, and `loadmaster curve`."""

import json
import math
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imread

from loadmaster.envs.errors import InputError
from loadmaster.platform.training.config import TrainingConfig
from loadmaster.platform.training.curve import draw_curve, draw_curves
from loadmaster.platform.training.history import Effort, Point, read_histories, read_history
from loadmaster.platform.training.run_folder import RunFolder
from tests.platform.cli.one_line import Cli, Patch

pytestmark = pytest.mark.usefixtures("here")
BASELINES = {"fair": 50.0, "fifo": 90.0}
LABELS = {"label": "mean JCT", "unit": "s"}
REWARD = {"label": "reward", "unit": "", "better": "higher", "relative": False}


def make_run(
    name: str,
    *values: float,
    metric: str | None = "jct_s",
    baselines: Any = BASELINES,
    every: int = 2,
    labels: Any = LABELS,
) -> Path:
    """Validated every other iteration; an iteration is 1000 decisions in 30 s. No config.yaml."""
    (folder := Path(name)).mkdir(parents=True)
    manifest: dict[str, Any] = {"system": "decima"}
    if metric is not None:
        manifest |= {"metric": metric, "baselines": baselines, "metric_labels": labels}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    lines = ["iteration,validation,seconds,decisions_in_all"]
    validations = {every * i: value for i, value in enumerate(values)}
    for iteration in range(every * len(values)):
        rest = f",30,{1000 * iteration}" if iteration else ",,"
        lines.append(f"{iteration},{validations.get(iteration, '')}{rest}")
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    return folder


def test_points_and_baseline_of_a_running_run() -> None:
    run = make_run("one", 80.0, 45.0)
    with (run / "metrics.csv").open("a") as file:
        file.write("4,60,30,4000\n5,,3")  # the next row is being written
    history = read_history(run)
    best = Point(2, 2000, 1.0, 45.0)
    assert history.points == (Point(0, 0, 0.0, 80.0), best, Point(4, 4000, 2.0, 60.0))
    assert (history.name, history.metric.name, history.iterations) == ("one", "jct_s", 4)
    assert (history.best, history.best_baseline) == (best, ("fair", 50.0))


def test_diverged_run() -> None:
    run = make_run("one", math.nan, 60.0, math.inf, baselines={"fair": math.nan})
    history = read_history(run)
    assert (history.values, history.best.iterations, len(history.points)) == ([60.0], 2, 3)
    assert history.best_baseline is None


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (("a/run", "b/run", "c/lr=0.1"), ["a/run", "b/run", "lr=0.1"]),
        (("small=a/run", "b/run", "x=c/lr=0.1"), ["small", "run", "x"]),
        ((".",), ["here"]),
    ],
)
def test_names_of_runs(given: tuple[str, ...], names: list[str], monkeypatch: Patch) -> None:
    monkeypatch.chdir(make_run("here", 80.0))
    for folder in ("a/run", "b/run", "c/lr=0.1"):
        make_run(folder, 80.0)
    assert [history.name for history in read_histories(given)] == names


def test_run_in_which_higher_is_better() -> None:
    baselines = {"static": -0.3, "flink": -0.1}
    run = make_run("one", -0.4, 0.2, -0.2, metric="reward", labels=REWARD, baselines=baselines)
    history = read_history(run)
    assert (history.best.validation, history.best_baseline) == (0.2, ("flink", -0.1))


def test_labels_of_a_damaged_run() -> None:
    with pytest.raises(InputError, match=r"one/manifest\.json: metric_labels are malformed"):
        read_history(make_run("one", 80.0, labels={"colour": "red"}))


@pytest.fixture
def figures(monkeypatch: Patch) -> list[Figure]:
    """The figures drawn during a test, which are not rendered."""
    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    return drawn


@pytest.fixture
def draw(figures: list[Figure]) -> Any:
    """Draws runs, given as validations by name; the axes."""

    def axes_of(runs: Mapping[str, tuple[float, ...]], against: Effort = "decisions", **made: Any):
        histories = [read_history(make_run(name, *runs[name], **made)) for name in runs]
        draw_curves(histories, BytesIO(), against)
        return figures[-1].axes[0]

    return axes_of


def legend(axes: Axes) -> list[str]:
    found = axes.get_legend()
    return [] if found is None else [text.get_text().strip("\u200b") for text in found.get_texts()]


def test_picture_of_one_run() -> None:
    picture = draw_curve(RunFolder(make_run("one", 80.0, 60.0, 45.0)))
    assert picture == Path("one/curve.png")
    assert imread(picture).std() > 0.05  # not an empty sheet


def test_curve_of_one_run(draw: Any) -> None:
    axes = draw({"one": (80.0, 60.0, 45.0)})
    assert axes.get_ylabel() == "mean JCT, s"
    assert [text.get_text() for text in axes.texts] == ["fair, the best baseline: 50.0"]
    assert legend(axes) == []
    curve, best, level = axes.lines
    assert list(curve.get_ydata()) == [80.0, 60.0, 45.0]
    assert (list(best.get_xdata()), list(best.get_ydata())) == ([4.0], [45.0])
    assert list(level.get_ydata()) == [50.0, 50.0]


@pytest.mark.parametrize(
    ("against", "every", "label", "last"),
    [
        ("iterations", 2, "iterations", 4.0),
        ("decisions", 2, "decisions rolled out, in thousands", 4.0),
        ("decisions", 3000, "decisions rolled out, in millions", 6.0),
        ("minutes", 2, "minutes of rolling out and learning", 2.0),
    ],
)
def test_x_axis(against: Effort, every: int, label: str, last: float, draw: Any) -> None:
    axes = draw({"one": (80.0, 60.0, 45.0)}, against, every=every)
    assert (axes.get_xlabel(), axes.lines[0].get_xdata()[-1]) == (label, last)


@pytest.mark.parametrize(
    ("values", "scale"),
    [((330.0, 110.0, 93.0), "log"), ((120.0, 93.0), "linear"), ((50.0, 0.0, -5.0), "linear")],
)
def test_y_axis_shows_all_points(values: tuple[float, ...], scale: str, draw: Any) -> None:
    axes = draw({"one": values}, baselines={"fair": 99.0})
    assert axes.get_yscale() == scale
    bottom, top = axes.get_ylim()
    assert bottom < min(values) <= max(values) < top


def test_legend_of_several_runs(draw: Any) -> None:
    axes = draw({"one": (80.0, math.nan, 60.0), "_two": (61.0,), "$3$": (62.0,), "x" * 40: (63.0,)})
    expected = ["one  (60.0)", "_two  (61.0)", r"\$3\$  (62.0)", f"…{'x' * 31}  (63.0)"]
    assert legend(axes) == expected


def test_more_runs_than_colours_have_distinct_styles(draw: Any) -> None:
    axes = draw({f"run-{n}": (80.0, 60.0) for n in range(25)})
    assert len(legend(axes)) == 25
    curves = [line for line in axes.lines if len(line.get_xdata()) > 1][:25]
    assert len({(line.get_color(), line.get_linestyle()) for line in curves}) == 25
    assert axes.figure.get_size_inches()[1] > 6  # space for the legend


def test_runs_with_different_baselines(figures: list[Figure]) -> None:
    own = ({"fair": 50.0}, {"fair": 50.0}, {"fifo": 70.0}, {})
    runs = [make_run(str(n), 80.0, 60.0, baselines=each) for n, each in enumerate(own)]
    draw_curves([read_history(run) for run in runs], BytesIO())
    assert legend(figures[0].axes[0])[4:] == [
        "fair, the best baseline\nof 0 and 1 more  (50.0)",
        "fifo, the best baseline\nof 2  (70.0)",
    ]
    assert not figures[0].axes[0].texts


def test_picture_and_table(cli: Cli) -> None:
    make_run("runs/one", 330.0, 60.0, 45.0)
    make_run("runs/two", 1080.0, 70.0)
    shown, err = cli("curve runs/one '[b]two=runs/two'")
    assert err == ""
    rows = [line.split() for line in shown.splitlines()]
    assert rows[1] == ["one", "5", "330.0", "45.0", "4", "fair", "50.0", "-10.0%"]
    assert rows[2] == ["[b]two", "3", "1,080.0", "70.0", "2", "fair", "50.0", "+40.0%"]
    assert "mean JCT, s: first" in shown.splitlines()[0]
    assert shown.splitlines()[3:] == ["Learning curves: curves.png"]
    assert Path("curves.png").read_bytes().startswith(b"\x89PNG")


def test_json(cli: Cli) -> None:
    make_run("one", math.nan, 60.0)
    make_run("two", 80.0, metric=None)
    found = cli.json("curve one name=two --against minutes -o both.svg")
    one, two = found.pop("runs")
    assert found == {"picture": "both.svg", "metric": "jct_s", "against": "minutes"}
    assert one == {
        "name": "one", "run": "one", "iterations": 3, "first": None,
        "best": {"iteration": 2, "value": 60.0}, "best_baseline": {"name": "fair", "value": 50.0},
    }  # fmt: skip
    assert (two["name"], two["run"], two["first"], two["best_baseline"]) == (
        "name",
        "two",
        80,
        None,
    )
    assert "<svg" in Path("both.svg").read_text()
    assert cli.json("curve two")["metric"] == "validation"


@pytest.mark.parametrize(("ending", "begins"), [("PNG", b"\x89PNG"), ("pdf", b"%PDF")])
def test_file_name_chooses_the_format(ending: str, begins: bytes, cli: Cli) -> None:
    make_run("one", 80.0, 60.0)
    picture = Path(f"curve.{ending}")
    picture.write_text("an older one, which is replaced")
    cli(f"curve one -o {picture}")
    assert picture.read_bytes().startswith(begins)
    assert sorted(path.name for path in Path().iterdir()) == [picture.name, "one"]


def test_different_baselines_are_mentioned(cli: Cli) -> None:
    make_run("one", 80.0)
    make_run("two", 80.0, baselines={"fair": 70.0})
    make_run("three", 80.0, baselines={})
    assert "differ" not in cli("curve one three").out
    assert "best baselines differ" in cli("curve one two").out


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one sound run, and with others that are not."""
    folder = tmp_path_factory.mktemp("runs")
    RunFolder.create(folder / "begun", TrainingConfig(), {"system": "decima"})
    make_run(f"{folder}/one", 80.0)
    make_run(f"{folder}/empty")
    make_run(f"{folder}/lost", math.nan)
    make_run(f"{folder}/other", 80.0, metric="makespan_s")
    for name, damaged, content in (
        ("broken", "metrics.csv", b"iteration,validation\n0,fast\n"),
        ("latin", "metrics.csv", b"iteration,validation\n0,\xff\n"),
        ("listed", "manifest.json", b'{"system": "x", "baselines": ["fair"]}'),
        ("null", "manifest.json", b'{"system": "x", "baselines": {"a": null}}'),
    ):
        (make_run(f"{folder}/{name}", 80.0) / damaged).write_bytes(content)
    (make_run(f"{folder}/bundle") / "metrics.csv").unlink()
    (folder / "folder.png").mkdir()
    (folder / "file").touch()
    return folder


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "Missing argument 'RUN...'"),
        ("none", "'none' is not a run"),
        ("file", "is not a run"),
        ("bundle", "is not a run; "),
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
def test_bad_input(arguments: str, words: str, runs: Path, cli: Cli, monkeypatch: Patch) -> None:
    monkeypatch.chdir(runs)
    before = sorted(runs.rglob("*"))
    assert words in cli.error(f"curve {arguments}")
    assert sorted(runs.rglob("*")) == before
