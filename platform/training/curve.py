"""Learning curves as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loadmaster.envs.errors import InputError
from loadmaster.platform.evaluation.chart_style import DPI, INK, NEWCOMER, PALETTE, QUIET, STYLE
from loadmaster.platform.training.run_folder import RunFolder
from loadmaster.platform.training.wording import unit, word


def draw_curve(run: RunFolder) -> Path:
    """RUN/curve.png."""
    path = run.path / "curve.png"
    draw_curves([run], path)
    return path


def draw_curves(runs: Sequence[RunFolder], path: Path) -> None:
    """Validation over decisions, from untrained on; the best baseline of the first as a line."""
    metrics = {str(run.manifest.get("metric")) for run in runs}
    if len(metrics) > 1:
        raise InputError(f"the runs measure {', '.join(sorted(metrics))}; expected one metric")
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.5, 4.2), layout="constrained")
        axes = figure.subplots()
        colours = (NEWCOMER, *PALETTE)
        for run, colour in zip(runs, colours, strict=False):
            _draw(axes, run, colour)
        _baseline(axes, runs[0])
        axes.set_xlabel("decisions learnt from, in thousands")
        axes.set_ylabel(_label(metrics.pop()))
        axes.set_title("Greedy policy on sequences it never learns from", loc="left", fontsize=11)
        if len(runs) > 1:
            axes.legend()
        figure.savefig(path, dpi=DPI)


def _label(metric: str) -> str:
    return f"{word(metric)},{unit(metric)}" if unit(metric) else word(metric)


def _draw(axes: Axes, run: RunFolder, colour: str) -> None:
    points = [
        (row.get("decisions_in_all", 0.0) / 1000, row["validation"])
        for row in run.rows()
        if "validation" in row
    ]
    if not points:
        raise InputError(f"{str(run.path)!r} has no validation yet; nothing to draw")
    axes.plot(*zip(*points, strict=True), color=colour, linewidth=2, label=run.path.name)


def _baseline(axes: Axes, run: RunFolder) -> None:
    baselines: dict[str, float] = run.manifest.get("baselines", {})
    if not baselines:
        return
    name = min(baselines, key=lambda each: baselines[each])
    axes.axhline(baselines[name], color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
    axes.annotate(
        f"{name}, the best baseline: {baselines[name]:.1f}",
        (0, baselines[name]),
        xycoords=("axes fraction", "data"),
        xytext=(6, 4),
        textcoords="offset points",
        ha="left",
        color=QUIET,
        fontsize=9,
    )
