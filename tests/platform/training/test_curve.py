"""Learning curves are drawn, of one run or of several that measure the same."""

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
    """Those that were drawn."""
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


def test_a_picture_of_a_run(tmp_path: Path, figures: list[Figure]) -> None:
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
    ("against", "words", "last"),
    [
        ("iterations", "iterations", 4.0),
        ("decisions", "decisions rolled out, in thousands", 4.0),
        ("minutes", "minutes of rolling out and learning", 2.0),
    ],
)
def test_what_it_is_held_against(
    against: Effort, words: str, last: float, tmp_path: Path, figures: list[Figure]
) -> None:
    pixels([read_history(make_run(tmp_path / "one", 80.0, 60.0, 45.0))], against)
    (axes,) = figures[0].axes
    assert axes.get_xlabel() == words
    assert axes.lines[0].get_xdata()[-1] == last


def test_many_decisions_are_counted_in_millions(tmp_path: Path, figures: list[Figure]) -> None:
    pixels([read_history(make_run(tmp_path / "one", 80.0, 60.0, every=3000))])
    (axes,) = figures[0].axes
    assert axes.get_xlabel() == "decisions rolled out, in millions"
    assert axes.lines[0].get_xdata()[-1] == 3.0


def test_several_runs_in_one_picture(tmp_path: Path, figures: list[Figure]) -> None:
    names = ["one", "_two", "$three$", "x" * 40]
    runs = [read_history(make_run(tmp_path / name, 80.0, 60.0 + n)) for n, name in enumerate(names)]
    both = pixels(runs[:2])
    assert both.shape != pixels(runs[:1]).shape
    assert (both != pixels([runs[0], runs[2]])).any()
    pixels(runs)
    shown = [text.strip("\u200b") for text in legend(figures[-1])]
    assert shown == ["one  (60.0)", "_two  (61.0)", r"\$three\$  (62.0)", f"…{'x' * 31}  (63.0)"]


def test_more_runs_than_colours(tmp_path: Path, figures: list[Figure]) -> None:
    runs = [read_history(make_run(tmp_path / f"run-{n}", 80.0, 60.0)) for n in range(25)]
    pixels(runs)
    assert len(legend(figures[0])) == 25
    curves = [line for line in figures[0].axes[0].lines if len(line.get_xdata()) > 1][:25]
    assert len({(line.get_color(), line.get_linestyle()) for line in curves}) == 25
    assert figures[0].get_size_inches()[1] > 6  # the legend has room


def test_runs_with_baselines_of_their_own(tmp_path: Path, figures: list[Figure]) -> None:
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


def test_an_untrained_policy_leaves_room_for_the_trained(
    tmp_path: Path, figures: list[Figure]
) -> None:
    values = (330.0, 110.0, 104.0, 101.0, 100.0, 98.0, 96.0, 95.0, 94.0, 93.0)
    pixels([read_history(make_run(tmp_path / "one", *values, baselines={"fair": 99.0}))])
    figure = figures[0]
    (axes,) = figure.axes
    assert "squeezed above " in axes.get_ylabel()
    bottom, top = axes.get_ylim()
    assert bottom < 93
    assert top > 330  # nothing is cut off
    heights = axes.transData.transform([(0, 93.0), (0, 100.0)])[:, 1]
    assert (heights[1] - heights[0]) / axes.bbox.height > 0.3
    shown = [label.get_text() for label in axes.get_yticklabels()]
    assert {"94", "100", "300"} <= set(shown)


def test_a_run_that_diverged_or_was_validated_once(tmp_path: Path, figures: list[Figure]) -> None:
    runs = [make_run(tmp_path / "one", 80.0, math.nan, 60.0), make_run(tmp_path / "two", 70.0)]
    pixels([read_history(run) for run in runs])
    assert legend(figures[0])[:2] == ["one  (60.0)", "two  (70.0)"]


def test_runs_that_measure_different_things_are_refused(tmp_path: Path) -> None:
    runs = [
        read_history(make_run(tmp_path / metric, 80.0, metric=metric))
        for metric in ("jct_s", "makespan_s")
    ]
    with pytest.raises(InputError, match="the runs measure jct_s, makespan_s; expected one"):
        pixels(runs)


def test_a_run_without_a_validation_leaves_no_picture(tmp_path: Path) -> None:
    run = RunFolder(make_run(tmp_path / "one"))
    with pytest.raises(InputError, match="has no validation yet; nothing to draw"):
        draw_curve(run)
    assert sorted(path.name for path in run.path.iterdir()) == ["manifest.json", "metrics.csv"]
