"""Learning curves as pictures."""

from collections.abc import Iterator, Sequence
from itertools import cycle, product
from pathlib import Path
from typing import IO, Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from loadmaster.envs.metrics import Measure
from loadmaster.models.files import atomic_binary_file
from loadmaster.platform.evaluation import charts
from loadmaster.platform.training.history import (
    Effort,
    History,
    common_metric,
    read_history,
)
from loadmaster.platform.training.run_folder import RunFolder

MILLIONS_FROM = 2e6  # decisions
LONGEST = 32  # letters of a name in the legend
LOG_FROM = 3.0  # logarithmic axis if the highest value is so many times the lowest
LEVEL: dict[str, Any] = {"linewidth": 1.2, "linestyle": (0, (4, 3))}


def draw_curve(run: RunFolder) -> Path:
    """Draw RUN/curve.png."""
    history, path = read_history(run.path), run.path / "curve.png"
    with atomic_binary_file(path) as file:
        draw_curves([history], file)
    return path


def draw_curves(
    histories: Sequence[History], file: IO[bytes], against: Effort = "decisions", kind: str = "png"
) -> None:
    """Validation over effort, a dot at the best; best baselines as horizontal lines."""
    metric = common_metric(histories)
    scale, effort = _effort(histories, against)
    with mpl.rc_context(charts.STYLE):
        figure = Figure(figsize=(7.5, 4.2), layout="constrained")
        axes = figure.subplots()
        for history, style in zip(histories, _styles(), strict=False):
            _draw(axes, history, against, scale, style)
        _draw_baselines(axes, histories, metric)
        axes.margins(y=0.1)  # room for the label of a line at the edge
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=against == "iterations"))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        # An untrained policy may be at 330 where trained ones are between 93 and 100.
        values = [value for history in histories for value in history.values]
        if metric.relative and max(values) >= LOG_FROM * min(values) > 0:
            axes.set_yscale("log")
            charts.plain_log(axes.yaxis, 8)
        axes.set_xlabel(effort)
        axes.set_ylabel(metric.title)
        axes.set_title("Greedy policy on sequences it never learns from", loc="left", fontsize=11)
        if len(histories) > 1:
            charts.legend_outside(axes, "run (best)")
            entries = axes.get_legend_handles_labels()[1]
            lines = sum(1 + entry.count("\n") for entry in entries)
            figure.set_size_inches(9, max(4.6, 1 + 0.22 * lines))
        figure.savefig(file, format=kind, dpi=charts.DPI)


def _styles() -> Iterator[dict[str, Any]]:
    """Forty distinguishable line styles, repeated."""
    similar, *others = charts.PALETTE  # similar to NEWCOMER, so it comes last
    each = product(charts.DASHES, (charts.LEARNED_COLOUR, *others, similar))
    return ({"color": colour, "linestyle": dash} for dash, colour in cycle(each))


def _effort(histories: Sequence[History], against: Effort) -> tuple[float, str]:
    """Unit and label of the x axis."""
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
    label = f"{_literal(history.name)}  ({history.metric.figure(best.validation)})"
    axes.plot(effort, values, linewidth=2, label=label, **style)
    axes.plot(getattr(best, against) / scale, best.validation, "o", color=style["color"])


def _literal(name: str) -> str:
    """Escape a name for matplotlib: no formulas, and a leading _ would hide it in the legend."""
    name = name if len(name) <= LONGEST else f"…{name[1 - LONGEST :]}"
    name = name.replace("$", r"\$")
    return f"\u200b{name}" if name.startswith("_") else name


def _draw_baselines(axes: Axes, histories: Sequence[History], metric: Measure) -> None:
    """Draw one line if all runs share the best baseline, else one a run."""
    found: dict[tuple[str, float], list[tuple[str, str]]] = {}  # runs and their colours
    for history, style in zip(histories, _styles(), strict=False):
        if history.best_baseline is not None:
            runs = found.setdefault(history.best_baseline, [])
            runs.append((history.name, style["color"]))
    if len(found) == 1:
        ((name, value),) = found
        axes.axhline(value, color=charts.INK, **LEVEL)
        # Beside the curves: on the left if one crosses the line late, else on the right.
        left = any(
            (h.points[len(h.points) // 2].validation - value) * (value - h.best.validation) > 0
            for h in histories
        )
        below = sum(h.points[0 if left else -1].validation < value for h in histories)
        above = 2 * below >= len(histories)
        axes.annotate(
            f"{name}, the best baseline: {metric.figure(value)}",
            (0 if left else 1, value),
            xycoords=("axes fraction", "data"),
            xytext=(3 if left else -2, 5 if above else -5),
            textcoords="offset points",
            ha="left" if left else "right",
            va="bottom" if above else "top",
            color=charts.QUIET,
            fontsize=9,
            path_effects=[charts.HALO],
        )
    else:
        for (name, value), ((first, colour), *others) in found.items():
            more = f" and {len(others)} more" if others else ""
            label = (
                f"{name}, the best baseline\nof {_literal(first)}{more}  ({metric.figure(value)})"
            )
            axes.axhline(value, color=colour, label=label, **LEVEL)
