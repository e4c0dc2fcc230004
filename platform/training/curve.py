"""Learning curves as pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle, product
from pathlib import Path
from typing import IO, Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from loadmaster.models.files import atomic_binary_file
from loadmaster.platform.evaluation.chart_style import (
    DASHES,
    DPI,
    HALO,
    INK,
    NEWCOMER,
    PALETTE,
    QUIET,
    STYLE,
    legend_beside,
)
from loadmaster.platform.training.broken_axis import fold_axis, fold_for
from loadmaster.platform.training.history import Effort, History, common_metric, read_history
from loadmaster.platform.training.run_folder import RunFolder
from loadmaster.platform.training.wording import with_unit

MILLIONS_FROM = 2e6  # decisions
LONGEST = 32  # letters of a name in the legend
LEVEL: dict[str, Any] = {"linewidth": 1.2, "linestyle": (0, (4, 3))}


def draw_curve(run: RunFolder) -> Path:
    """RUN/curve.png."""
    history, path = read_history(run.path), run.path / "curve.png"
    with atomic_binary_file(path) as file:
        draw_curves([history], file)
    return path


def draw_curves(
    histories: Sequence[History],
    file: IO[bytes],
    against: Effort = "decisions",
    kind: str = "png",
) -> None:
    """Validation from untrained on, a dot where it was best; the best baselines as lines."""
    metric = with_unit(common_metric(histories))
    scale, effort = _effort(histories, against)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.5, 4.2), layout="constrained")
        axes = figure.subplots()
        for history, style in zip(histories, _styles(), strict=False):
            _draw(axes, history, against, scale, style)
        levels = _draw_baselines(axes, histories)
        fold = fold_for([history.values for history in histories], levels)
        if fold is not None:
            fold_axis(axes, fold)
            metric += f"\n(squeezed above {fold.at:,g})"
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=against == "iterations"))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axes.set_xlabel(effort)
        axes.set_ylabel(metric)
        axes.set_title("Greedy policy on sequences it never learns from", loc="left", fontsize=11)
        if len(histories) > 1:
            legend_beside(axes, "run (best)")
            entries = axes.get_legend_handles_labels()[1]
            lines = sum(1 + entry.count("\n") for entry in entries)
            figure.set_size_inches(9, max(4.6, 1 + 0.22 * lines))
        figure.savefig(file, format=kind, dpi=DPI)


def _styles() -> Iterator[dict[str, Any]]:
    """Forty that can be told apart, and then those again."""
    like_the_first, *others = PALETTE
    each = product(DASHES, (NEWCOMER, *others, like_the_first))
    return ({"color": colour, "linestyle": dash} for dash, colour in cycle(each))


def _effort(histories: Sequence[History], against: Effort) -> tuple[float, str]:
    """What the x axis counts in, and says."""
    if against == "iterations":
        return 1.0, "iterations"
    if against == "minutes":
        return 1.0, "minutes of rolling out and learning"
    if max(history.points[-1].decisions for history in histories) >= MILLIONS_FROM:
        return 1e6, "decisions rolled out, in millions"
    return 1e3, "decisions rolled out, in thousands"


def _draw(axes: Axes, history: History, against: Effort, scale: float, style: Any) -> None:
    effort = [getattr(point, against) / scale for point in history.points]
    values = [point.validation for point in history.points]
    best = history.best
    label = f"{_literal(history.name)}  ({best.validation:,.1f})"
    axes.plot(effort, values, linewidth=2, label=label, **style)
    axes.plot(getattr(best, against) / scale, best.validation, "o", color=style["color"])


def _literal(name: str) -> str:
    """Names are no formulas, and one that begins with _ is to be in the legend too."""
    name = name if len(name) <= LONGEST else f"…{name[1 - LONGEST :]}"
    name = name.replace("$", r"\$")
    return f"\u200b{name}" if name.startswith("_") else name


def _draw_baselines(axes: Axes, histories: Sequence[History]) -> list[float]:
    """One line for all where they share it, else each run's in its colour; the levels."""
    found: dict[tuple[str, float], list[tuple[str, str]]] = {}  # runs and their colours
    for history, style in zip(histories, _styles(), strict=False):
        if history.best_baseline is not None:
            runs = found.setdefault(history.best_baseline, [])
            runs.append((history.name, style["color"]))
    if len(found) == 1:
        ((name, value),) = found
        axes.axhline(value, color=INK, **LEVEL)
        # Where the curves are not: left of one that crosses the line late, else right of all.
        left = any(
            h.points[len(h.points) // 2].validation > value > h.best.validation for h in histories
        )
        below = sum(h.points[0 if left else -1].validation < value for h in histories)
        above = 2 * below >= len(histories)
        axes.annotate(
            f"{name}, the best baseline: {value:,.1f}",
            (0 if left else 1, value),
            xycoords=("axes fraction", "data"),
            xytext=(3 if left else -2, 5 if above else -5),
            textcoords="offset points",
            ha="left" if left else "right",
            va="bottom" if above else "top",
            color=QUIET,
            fontsize=9,
            path_effects=[HALO],
        )
    else:
        for (name, value), ((first, colour), *others) in found.items():
            more = f" and {len(others)} more" if others else ""
            label = f"{name}, the best baseline\nof {_literal(first)}{more}  ({value:,.1f})"
            axes.axhline(value, color=colour, label=label, **LEVEL)
    return [value for _, value in found]
