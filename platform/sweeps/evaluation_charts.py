"""Charts of a sweep's evaluation, by the kinds of its searched settings.

Choices of two numbers: a heat map of the primary measure and of the decision time. A choice of one
number: a line of each measure. Otherwise: the difference of each group from the first.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from loadmaster.envs.metrics import Measure
from loadmaster.platform.evaluation.charts import (
    HALO,
    INK,
    LABEL_STYLE,
    LEARNED_COLOUR,
    QUIET,
    plain_log,
    save,
)
from loadmaster.platform.evaluation.report import short_number
from loadmaster.platform.sweeps.evaluation import DECISION_MS, SweepEvaluation
from loadmaster.platform.sweeps.records import short_names
from loadmaster.platform.sweeps.space import Dimension

COLUMNS = 3  # of panels


def draw_all(evaluation: SweepEvaluation, subtitle: str, folder: Path) -> None:
    """Draw the chart that fits the searched settings."""
    dimensions = evaluation.dimensions
    numbers = all(is_number(dimension) for dimension in dimensions)
    if numbers and len(dimensions) == 2:
        save(folder / "heat_map.png", lambda: draw_heat_maps(evaluation, subtitle))
    elif numbers and len(dimensions) == 1:
        save(folder / "lines.png", lambda: draw_lines(evaluation, subtitle))
    else:
        save(folder / "differences.png", lambda: draw_differences(evaluation, subtitle))


def is_number(dimension: Dimension) -> bool:
    """Whether a searched setting is a choice of numbers."""
    return dimension.kind == "choice" and all(
        isinstance(value, int | float) and not isinstance(value, bool)
        for value in dimension.arguments
    )


def draw_heat_maps(evaluation: SweepEvaluation, subtitle: str) -> Figure:
    """The first setting by columns, the second by rows."""
    measures = _shown(evaluation)
    across, up = short_names([dimension.name for dimension in evaluation.dimensions])
    values = [list(group.searched.values()) for group in evaluation.groups]
    columns, rows = (sorted({own[place] for own in values}) for place in (0, 1))
    size = (1.2 + len(measures) * (1.8 + 0.8 * len(columns)), 2.2 + 0.6 * len(rows))
    heading = evaluation.sweep.settings.purpose
    figure, panels = _new_figure(heading, subtitle, size, len(measures), len(measures))
    for axes, measure in zip(panels, measures, strict=True):
        table = np.full((len(rows), len(columns)), np.nan)
        for group, (column, row) in zip(evaluation.groups, values, strict=True):
            mean = evaluation.figure(group, measure).mean
            table[rows.index(row), columns.index(column)] = mean
        better_is_dark = "Oranges" if measure.better == "higher" else "Oranges_r"
        axes.imshow(table, cmap=better_is_dark, origin="lower", aspect="auto", alpha=0.6)
        for (row, column), value in np.ndenumerate(table):
            text = "" if np.isnan(value) else _short(measure, value)
            axes.text(column, row, text, ha="center", va="center", fontsize=9)
        axes.set_xticks(range(len(columns)), [f"{value:g}" for value in columns])
        axes.set_yticks(range(len(rows)), [f"{value:g}" for value in rows])
        axes.set(xlabel=across, ylabel=up)
        axes.set_title(measure.title, loc="left", fontsize=10)
        axes.grid(False)
    return figure


def draw_lines(evaluation: SweepEvaluation, subtitle: str) -> Figure:
    """Every measure by the searched number, with its interval as a band."""
    measures = [measure for measure in evaluation.measures if measure.better is not None]
    (name,) = short_names([dimension.name for dimension in evaluation.dimensions])
    x = [next(iter(group.searched.values())) for group in evaluation.groups]
    rows = -(-len(measures) // COLUMNS)
    heading = evaluation.sweep.settings.purpose
    figure, panels = _new_figure(heading, subtitle, (10, 1 + 2.4 * rows), COLUMNS, len(measures))
    for axes, measure in zip(panels, measures, strict=True):
        found = [evaluation.figure(group, measure) for group in evaluation.groups]
        low = [each.interval.low for each in found]
        high = [each.interval.high for each in found]
        axes.fill_between(x, low, high, color=LEARNED_COLOUR, alpha=0.2, linewidth=0)
        axes.plot(x, [each.mean for each in found], "o-", color=LEARNED_COLOUR, markersize=4)
        axes.set_title(measure.title, loc="left", fontsize=10)
        axes.set(xlabel=name, xticks=x)
    return figure


def draw_differences(evaluation: SweepEvaluation, subtitle: str) -> Figure:
    """Difference of each group from the first in the primary measure, beside its decision time."""
    measures, groups = _shown(evaluation), evaluation.groups
    size = (4.5 + 3.5 * len(measures), 1.9 + 0.42 * len(groups))
    heading = evaluation.sweep.settings.purpose
    figure, panels = _new_figure(heading, subtitle, size, len(measures), len(measures))
    primary = measures[0]
    for axes, measure in zip(panels, measures, strict=True):
        for row, group in enumerate(groups):
            found = evaluation.figure(group, measure)
            value, ends = found.mean, found.interval
            if measure is primary:
                value, ends = found.difference, found.difference_interval
            if row == 0 and measure is primary:
                label = f"{_short(primary, found.mean)}, the first"
                axes.annotate(label, (0, row), (6, 0), color=QUIET, **LABEL_STYLE)
                continue
            axes.plot((ends.low, ends.high), (row, row), color=LEARNED_COLOUR, linewidth=2.5)
            axes.plot(value, row, "o", color=LEARNED_COLOUR, markersize=6)
            end = np.nanmax([value, ends.high])
            label = f"{'+' if measure is primary and value > 0 else ''}{_short(measure, value)}"
            axes.annotate(label, (end, row), (6, 0), path_effects=[HALO], **LABEL_STYLE)
        axes.set_yticks(range(len(groups)), [""] * len(groups))
        axes.set_ylim(len(groups) - 0.4, -0.6)
        axes.margins(x=0.2)
        axes.grid(False, axis="y")
        if measure is DECISION_MS:
            axes.set_xscale("log")
            plain_log(axes.xaxis, 8)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.set_xlabel(f"{measure.title}\n(mean, 95% interval)")
    panels[0].set_yticks(range(len(groups)), [group.label for group in groups], color=INK)
    panels[0].axvline(0, color=QUIET, linewidth=1)
    change = f"{primary.title}, difference from {groups[0].label}"
    panels[0].set_xlabel(f"{change}\n(paired, 95% interval)")
    return figure


def _shown(evaluation: SweepEvaluation) -> list[Measure]:
    """The primary measure, and the decision time where it is known."""
    primary = evaluation.measures[0]
    return [primary, *(m for m in evaluation.measures if m is DECISION_MS)]


def _short(measure: Measure, value: float) -> str:
    return short_number(value) if measure.relative else f"{value:.4f}"


def _new_figure(
    heading: str, subtitle: str, size: tuple[float, float], columns: int, count: int
) -> tuple[Figure, Sequence[Axes]]:
    """A figure with heading and subtitle, and its panels row by row."""
    layout = ConstrainedLayoutEngine(rect=(0.01, 0.01, 0.98, 0.99 - 0.62 / size[1]))
    figure = Figure(figsize=size, layout=layout)
    figure.text(0.015, 1 - 0.1 / size[1], heading, va="top", fontsize=13, fontweight="bold")
    figure.text(0.015, 1 - 0.36 / size[1], subtitle, va="top", fontsize=9.5, color=QUIET)
    grid = list(figure.subplots(-(-count // columns), columns, squeeze=False).flat)
    for empty in grid[count:]:
        empty.remove()
    return figure, grid[:count]
