"""Validations of runs, read from their files, and learning curves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imread

from loadmaster.platform.training.curve import draw_curve, draw_curves
from loadmaster.platform.training.history import Effort, Point, read_histories, read_history
from loadmaster.platform.training.run_folder import RunFolder
from tests.platform.training.made_runs import make_run


def test_points_and_baseline_of_a_running_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one", 80.0, 45.0)
    with (run / "metrics.csv").open("a") as file:
        file.write("4,60,30,4000\n5,,3")  # the next row is being written
    history = read_history(run)
    best = Point(2, 2000, 1.0, 45.0)
    assert history.points == (Point(0, 0, 0.0, 80.0), best, Point(4, 4000, 2.0, 60.0))
    assert (history.name, history.metric, history.iterations) == ("one", "jct_s", 4)
    assert (history.best, history.best_baseline) == (best, ("fair", 50.0))


def test_diverged_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one", math.nan, 60.0, math.inf, baselines={"fair": math.nan})
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
def test_names_of_runs(
    given: tuple[str, ...], names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(make_run(tmp_path / "here", 80.0))
    for folder in ("a/run", "b/run", "c/lr=0.1"):
        make_run(Path(folder), 80.0)
    assert [history.name for history in read_histories(given)] == names


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures drawn during a test, which are not rendered."""
    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    return drawn


@pytest.fixture
def draw(tmp_path: Path, figures: list[Figure]) -> Any:
    """Draws runs, given as validations by name; the axes."""

    def axes_of(runs: Mapping[str, tuple[float, ...]], against: Effort = "decisions", **made: Any):
        histories = [read_history(make_run(tmp_path / name, *runs[name], **made)) for name in runs]
        draw_curves(histories, BytesIO(), against)
        return figures[-1].axes[0]

    return axes_of


def legend(axes: Axes) -> list[str]:
    found = axes.get_legend()
    return [] if found is None else [text.get_text().strip("\u200b") for text in found.get_texts()]


def test_picture_of_one_run(tmp_path: Path) -> None:
    picture = draw_curve(RunFolder(make_run(tmp_path / "one", 80.0, 60.0, 45.0)))
    assert picture == tmp_path / "one" / "curve.png"
    seen = imread(picture)
    assert seen.shape[:2] > (300, 600)
    assert seen.std() > 0.05  # not an empty sheet


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
def test_y_axis_shows_all_points_and_is_logarithmic_over_a_large_range(
    values: tuple[float, ...], scale: str, draw: Any
) -> None:
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


def test_runs_with_different_baselines(tmp_path: Path, figures: list[Figure]) -> None:
    own = ({"fair": 50.0}, {"fair": 50.0}, {"fifo": 70.0}, {})
    runs = [make_run(tmp_path / str(n), 80.0, 60.0, baselines=each) for n, each in enumerate(own)]
    draw_curves([read_history(run) for run in runs], BytesIO())
    assert legend(figures[0].axes[0])[4:] == [
        "fair, the best baseline\nof 0 and 1 more  (50.0)",
        "fifo, the best baseline\nof 2  (70.0)",
    ]
    assert not figures[0].axes[0].texts
