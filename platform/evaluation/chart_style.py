"""How charts look: colours, headings, legends, axes."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from loadmaster.platform.evaluation.comparison import OPTIMUM, Comparison
from loadmaster.platform.evaluation.formatting import ORACLE, title

# Paul Tol's muted scheme: nine colours that stay apart under every common colour blindness.
PALETTE = (
    "#CC6677",
    "#332288",
    "#117733",
    "#88CCEE",
    "#AA4499",
    "#44AA99",
    "#882255",
    "#999933",
    "#DDCC77",
)
NEWCOMER = "#D55E00"  # a policy that is no baseline stands out
DASHES = ("-", "--", ":", "-.")  # tell several of them apart
INK, QUIET, FAINT = "#222222", "#6B6B6B", "#D0D0D0"
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#ECECEC",
    "grid.linewidth": 0.8,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "legend.frameon": False,
}
DPI = 150
HALO = withStroke(linewidth=4, foreground="white")  # keeps a dark line visible on a dark bar
BESIDE: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 9}


def new_figure(
    comparison: Comparison,
    heading: str,
    size: tuple[float, float],
    columns: int = 1,
    panels: int | None = None,
    share: bool = False,
) -> tuple[Figure, list[Axes]]:
    """A figure with its headings, and as many panels as asked for."""
    count = panels or columns
    rows = -(-count // columns)
    room = (0.01, 0.01, 0.98, 0.99 - 0.62 / size[1])  # all but the headings
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(rect=room))
    figure.text(0.015, 1 - 0.1 / size[1], heading, va="top", fontsize=13, fontweight="bold")
    oracles = f"; {ORACLE} an oracle" if comparison.oracles else ""
    below = f"{title(comparison)}, the same for all{oracles}"
    figure.text(0.015, 1 - 0.36 / size[1], below, va="top", fontsize=9.5, color=QUIET)
    grid = figure.subplots(rows, columns, sharex=share, sharey=share, squeeze=False)
    axes = list(grid.flat)
    for empty in axes[count:]:
        empty.remove()
    return figure, axes[:count]


def colour_of(comparison: Comparison, policy: str) -> str:
    """The same policy has the same colour in every chart and every run."""
    if policy == OPTIMUM:
        return INK
    subject = comparison.subject
    if policy not in subject.baselines:
        return NEWCOMER
    # Variants of one kind share its colour.
    kinds = list(dict.fromkeys(subject.families.get(name, name) for name in subject.baselines))
    return PALETTE[kinds.index(subject.families.get(policy, policy)) % len(PALETTE)]


def line_style(comparison: Comparison, policy: str) -> dict[str, Any]:
    first = policy == comparison.policies[0]
    learned = list(comparison.learned)
    place = learned.index(policy) if policy in learned else 0
    return {
        "color": colour_of(comparison, policy),
        "linewidth": 2.6 if first else 1.6,
        "linestyle": DASHES[place % len(DASHES)],
    }


def legend_beside(axes: Axes, heading: str) -> None:
    """Beside the chart and in order of rank, so that nothing is covered."""
    legend = axes.legend(
        title=heading, loc="upper left", bbox_to_anchor=(1.01, 1), alignment="left", fontsize=9.5
    )
    for handle in legend.get_lines():
        handle.set_linewidth(4)


def plain_log(axis: Axis, labels: int) -> None:
    """1, 2, 5, 10, ... instead of powers, while there is room; no ticks without a number."""
    low, high = axis.get_view_interval()
    decades = np.log10(high / low)
    if decades < 0.7:
        axis.set_major_locator(MaxNLocator(min(4, labels)))
    else:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if 3 * decades <= labels else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_locator(NullLocator())


def short(value: float) -> str:
    """Three digits, or all of a large number's."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.3g}"


def capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]
