"""Table and chart of `bench scaling`, rewritten after every point."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter

from loadmaster.envs.errors import InputError
from loadmaster.models.files import (
    atomic_binary_file,
    atomic_text_file,
    missing_folders,
    remove_empty_folders,
)
from loadmaster.platform.bench.scaling import Point
from loadmaster.platform.evaluation.chart_style import (
    DPI,
    HALO,
    INK,
    LABEL_STYLE,
    LEARNED_COLOUR,
    PALETTE,
    QUIET,
    STYLE,
)

FILES = TABLE, CHART = "scaling.csv", "scaling.png"


def check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be written, before the work starts; leave nothing there."""
    made = missing_folders(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as fault:
        raise InputError(
            f"cannot write to --output {str(folder)!r}: {fault.strerror}; "
            "expected a folder that can be made or written to"
        ) from None
    finally:
        remove_empty_folders(made)


def write_scaling(points: Sequence[Point], title: str, folder: Path) -> None:
    """Replace both files atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_text_file(folder / TABLE) as file:
        table = csv.DictWriter(file, [field.name for field in fields(Point)], lineterminator="\n")
        table.writeheader()
        for point in points:
            table.writerow({name: round(value, 4) for name, value in asdict(point).items()})
    with mpl.rc_context(STYLE), atomic_binary_file(folder / CHART) as picture:
        draw_scaling(points, title).savefig(picture, format="png", dpi=DPI)


def draw_scaling(points: Sequence[Point], title: str) -> Figure:
    """Draw rollout speed beside the ideal, and seconds per iteration."""
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    rollouts, iterations = figure.subplots(1, 2)
    _draw_rollouts(rollouts, points)
    _draw_iterations(iterations, points)
    return figure


def _draw_rollouts(axes: Axes, points: Sequence[Point]) -> None:
    workers = [point.workers for point in points]
    speeds = [point.rollout_decisions_per_s for point in points]
    ideal = [speeds[0] * each / workers[0] for each in (0, workers[-1])]
    axes.plot((0, workers[-1]), ideal, color=QUIET, linestyle=(0, (4, 3)), label="ideal")
    label = "measured (and how much of the ideal)"
    axes.plot(workers, speeds, color=LEARNED_COLOUR, linewidth=2.2, marker="o", label=label)
    for point in points[1:]:
        axes.annotate(
            f"{100 * point.rollout_efficiency:.0f}%",
            (point.workers, point.rollout_decisions_per_s),
            xytext=(7, -9),
            color=LEARNED_COLOUR,
            path_effects=[HALO],
            **LABEL_STYLE,
        )
    axes.set_title("Rollouts, as much for each worker", loc="left", fontsize=11)
    axes.set_xlabel("rollout workers")
    axes.set_ylabel("decisions per second")
    axes.xaxis.set_major_locator(FixedLocator(workers))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_xlim(0, workers[-1] * 1.1)
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left")


def _draw_iterations(axes: Axes, points: Sequence[Point]) -> None:
    places = range(len(points))  # equally spaced, not to scale
    rollouts = [point.iteration_rollout_seconds for point in points]
    updates = [point.iteration_seconds - point.iteration_rollout_seconds for point in points]
    axes.bar(places, updates, 0.62, color=PALETTE[1], label="update")
    axes.bar(places, rollouts, 0.62, bottom=updates, color=LEARNED_COLOUR, label="rollouts")
    for place, point in zip(places, points, strict=True):
        text = f"{point.iteration_seconds:.2f} s"
        if place:
            text += f"\n{point.iteration_speedup:.2f}x"
        axes.annotate(
            text,
            (place, point.iteration_seconds),
            xytext=(0, 4),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=9,
            color=INK,
        )
    axes.set_title("Whole iterations, the same for all", loc="left", fontsize=11)
    axes.set_xlabel("rollout workers")
    axes.set_ylabel("seconds an iteration (and times as fast)")
    axes.set_xticks(places, [str(point.workers) for point in points])
    axes.set_xlim(-0.6, max(len(points), 3) - 0.4)  # keeps a single bar narrow
    axes.grid(visible=False, axis="x")
    axes.set_ylim(0, 1.25 * max(point.iteration_seconds for point in points))
    axes.legend(loc="upper right", ncols=2)
