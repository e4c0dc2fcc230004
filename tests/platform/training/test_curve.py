"""Learning curves of one run or of several with the same metric."""

from __future__ import annotations

import math
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from numpy.typing import NDArray

from loadmaster.envs.errors import InputError
from loadmaster.platform.training.curve import draw_curve, draw_curves
from loadmaster.platform.training.history import Effort, History, read_history
from loadmaster.platform.training.run_folder import RunFolder
from tests.platform.training.made_runs import make_run


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures drawn during a test."""
    drawn: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, *arguments: Any, **options: Any) -> None:
        drawn.append(figure)
        save(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    return drawn


def pixels(histories: list[History], against: Effort = "decisions") -> NDArray[np.float32]:
    file = BytesIO()
    draw_curves(histories, file, against)
    file.seek(0)
    found: NDArray[np.float32] = imread(file)
    return found


def legend(figure: Figure) -> list[str]:
    found = figure.axes[0].get_legend()
    return [] if found is None else [text.get_text() for text in found.get_texts()]


def test_curve_of_one_run(tmp_path: Path, figures: list[Figure]) -> None:
    run = RunFolder(make_run(tmp_path / "one", 80.0, 60.0, 45.0))
    picture = draw_curve(run)
    assert picture == tmp_path / "one" / "curve.png"
    seen = imread(picture)
    assert seen.shape[0] > 300
    assert seen.shape[1] > 600
    assert seen.std() > 0.05  # not an empty sheet
    (axes,) = figures[0].axes
    assert axes.get_ylabel() == "mean JCT, s"
    assert [text.get_text() for text in axes.texts] == ["fair, the best baseline: 50.0"]
    assert legend(figures[0]) == []
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
def test_x_axis(
    against: Effort, every: int, label: str, last: float, tmp_path: Path, figures: list[Figure]
) -> None:
    pixels([read_history(make_run(tmp_path / "one", 80.0, 60.0, 45.0, every=every))], against)
    (axes,) = figures[0].axes
    assert axes.get_xlabel() == label
    assert axes.lines[0].get_xdata()[-1] == last


def test_legend_of_several_runs(tmp_path: Path, figures: list[Figure]) -> None:
    names = ["one", "_two", "$three$", "x" * 40]
    runs = [read_history(make_run(tmp_path / name, 80.0, 60.0 + n)) for n, name in enumerate(names)]
    both = pixels(runs[:2])
    assert both.shape != pixels(runs[:1]).shape
    assert (both != pixels([runs[0], runs[2]])).any()
    pixels(runs)
    shown = [text.strip("\u200b") for text in legend(figures[-1])]
    assert shown == ["one  (60.0)", "_two  (61.0)", r"\$three\$  (62.0)", f"…{'x' * 31}  (63.0)"]


def test_more_runs_than_colours_have_distinct_styles(tmp_path: Path, figures: list[Figure]) -> None:
    runs = [read_history(make_run(tmp_path / f"run-{n}", 80.0, 60.0)) for n in range(25)]
    pixels(runs)
    assert len(legend(figures[0])) == 25
    curves = [line for line in figures[0].axes[0].lines if len(line.get_xdata()) > 1][:25]
    assert len({(line.get_color(), line.get_linestyle()) for line in curves}) == 25
    assert figures[0].get_size_inches()[1] > 6  # space for the legend


def test_runs_with_different_baselines(tmp_path: Path, figures: list[Figure]) -> None:
    own = ({"fair": 50.0}, {"fair": 50.0}, {"fifo": 70.0}, {})
    runs = [
        read_history(make_run(tmp_path / str(n), 80.0, 60.0, baselines=baselines))
        for n, baselines in enumerate(own)
    ]
    pixels(runs)
    assert legend(figures[0])[4:] == [
        "fair, the best baseline\nof 0 and 1 more  (50.0)",
        "fifo, the best baseline\nof 2  (70.0)",
    ]
    assert not figures[0].axes[0].texts


@pytest.mark.parametrize(
    ("values", "scale"),
    [((330.0, 110.0, 93.0), "log"), ((120.0, 93.0), "linear"), ((50.0, 0.0, -5.0), "linear")],
)
def test_y_axis_shows_all_points_and_is_logarithmic_over_a_large_range(
    values: tuple[float, ...], scale: str, tmp_path: Path, figures: list[Figure]
) -> None:
    pixels([read_history(make_run(tmp_path / "one", *values, baselines={"fair": 99.0}))])
    (axes,) = figures[0].axes
    assert axes.get_yscale() == scale
    bottom, top = axes.get_ylim()
    assert bottom < min(values) <= max(values) < top


def test_diverged_run_and_single_validation(tmp_path: Path, figures: list[Figure]) -> None:
    runs = [make_run(tmp_path / "one", 80.0, math.nan, 60.0), make_run(tmp_path / "two", 70.0)]
    pixels([read_history(run) for run in runs])
    assert legend(figures[0])[:2] == ["one  (60.0)", "two  (70.0)"]


def test_run_without_validation_leaves_no_picture(tmp_path: Path) -> None:
    run = RunFolder(make_run(tmp_path / "one"))
    with pytest.raises(InputError, match="no validation"):
        draw_curve(run)
    assert sorted(path.name for path in run.path.iterdir()) == ["manifest.json", "metrics.csv"]
