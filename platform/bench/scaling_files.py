"""Scaling as a table and as a picture."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter

from loadmaster.platform.bench.scaling import Point
from loadmaster.platform.evaluation.chart_style import (
    BESIDE,
    DPI,
    NEWCOMER,
    PALETTE,
    QUIET,
    STYLE,
)


def write_scaling(points: Sequence[Point], title: str, folder: Path) -> None:
    """scaling.csv and scaling.png."""
    rows = [asdict(point) for point in points]
    with (folder / "scaling.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows({name: round(value, 4) for name, value in row.items()} for row in rows)
    with mpl.rc_context(STYLE):
        draw_scaling(points, title).savefig(folder / "scaling.png", dpi=DPI)


def draw_scaling(points: Sequence[Point], title: str) -> Figure:
    """Decisions per second over workers, beside what perfect scaling would give."""
    figure = Figure(figsize=(7.5, 4.4), layout="constrained")
    axes = figure.subplots()
    workers = [point.workers for point in points]
    for name, colour, values in (
        ("rollouts", NEWCOMER, [point.rollouts_per_s for point in points]),
        ("whole iterations", PALETTE[1], [point.iterations_per_s for point in points]),
    ):
        ideal = [values[0] * count / workers[0] for count in workers]
        axes.plot(workers, ideal, color=QUIET, linewidth=1.2, linestyle=(0, (4, 3)))
        axes.plot(workers, values, color=colour, linewidth=2.2, marker="o", label=name)
        axes.annotate(name, (workers[-1], values[-1]), xytext=(8, 0), color=colour, **BESIDE)
    best = points[0].rollouts_per_s * workers[-1] / workers[0]
    axes.annotate("ideal", (workers[-1], best), xytext=(8, 0), color=QUIET, **BESIDE)
    axes.set_xlabel("rollout workers")
    axes.set_ylabel("decisions per second")
    axes.set_title(title, loc="left", fontsize=11)
    axes.xaxis.set_major_locator(FixedLocator(workers))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    return figure
