"""Learning curves are drawn, of one run or of several that measure the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.image import imread

from loadmaster.envs.errors import InputError
from loadmaster.platform.training.config import TrainingConfig
from loadmaster.platform.training.curve import draw_curve, draw_curves
from loadmaster.platform.training.run_folder import RunFolder


def run_of(folder: Path, metric: str, *values: float) -> RunFolder:
    manifest = {"system": "decima", "metric": metric, "baselines": {"fair": 50.0, "fifo": 90.0}}
    run = RunFolder.create(folder, TrainingConfig(), manifest)
    rows = [f"{i},{value},{1000 * i}" for i, value in enumerate(values)]
    text = "\n".join(["iteration,validation,decisions_in_all", *rows, "99,,5000"])
    (run.path / "metrics.csv").write_text(text + "\n")
    return run


def test_a_picture_of_a_run(tmp_path: Path) -> None:
    picture = draw_curve(run_of(tmp_path / "one", "jct_s", 80.0, 60.0, 45.0))
    assert picture == tmp_path / "one" / "curve.png"
    pixels = imread(picture)
    assert pixels.shape[0] > 300
    assert pixels.shape[1] > 600
    assert pixels.std() > 0.05  # not an empty sheet


def test_several_runs_in_one_picture(tmp_path: Path) -> None:
    runs = [run_of(tmp_path / name, "jct_s", 80.0, 60.0) for name in ("one", "two")]
    draw_curves(runs[:1], tmp_path / "alone.png")
    draw_curves(runs, tmp_path / "both.png")
    assert (imread(tmp_path / "alone.png") != imread(tmp_path / "both.png")).any()


def test_runs_that_measure_different_things_are_refused(tmp_path: Path) -> None:
    runs = [run_of(tmp_path / metric, metric, 80.0) for metric in ("jct_s", "makespan_s")]
    with pytest.raises(InputError, match="the runs measure jct_s, makespan_s; expected one"):
        draw_curves(runs, tmp_path / "both.png")
    assert not (tmp_path / "both.png").exists()


def test_a_run_without_a_validation_is_refused(tmp_path: Path) -> None:
    run = run_of(tmp_path / "one", "jct_s")
    with pytest.raises(InputError, match="has no validation yet; nothing to draw"):
        draw_curve(run)
    assert not (tmp_path / "one" / "curve.png").exists()
