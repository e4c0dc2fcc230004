"""Style of all charts, and the parts they share: PNG without a display or global state."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from loadmaster.models.files import atomic_binary_file

# Paul Tol's muted scheme: nine colours that remain distinct under common colour blindness.
PALETTE = (
    "#CC6677", "#332288", "#117733", "#88CCEE", "#AA4499", "#44AA99", "#882255", "#999933",
    "#DDCC77",
)  # fmt: skip
LEARNED_COLOUR = "#D55E00"  # colour of learned policies
DASHES = ("-", "--", ":", "-.")  # line styles of learned policies
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
# Keywords of annotations to the right of a mark.
LABEL_STYLE: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 9}


def save(path: Path, draw: Callable[[], Figure]) -> None:
    """Draw in the common style and replace a PNG atomically."""
    with mpl.rc_context(STYLE), atomic_binary_file(path) as file:
        draw().savefig(file, format="png", dpi=DPI)


def legend_outside(axes: Axes, heading: str) -> None:
    """Put the legend to the right of the axes, where it covers nothing."""
    legend = axes.legend(
        title=heading, loc="upper left", bbox_to_anchor=(1.01, 1), alignment="left", fontsize=9.5,
        handlelength=2.6,
    )  # fmt: skip
    for handle in legend.get_lines():
        handle.set_linewidth(2.6)  # dashes are as long as lines are wide


def plain_log(axis: Axis, labels: int) -> None:
    """Label a log axis 1, 2, 5, 10, ... if at most `labels` fit, else powers of ten only."""
    low, high = axis.get_view_interval()
    decades = np.log10(high / low)
    if decades < 0.7:
        axis.set_major_locator(MaxNLocator(min(4, labels)))
    else:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if 3 * decades <= labels else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_locator(NullLocator())


def draw_speedup(
    axes: Axes,
    sizes: Sequence[int],
    speedups: Sequence[float],
    label: str,
    title: str,
    limits: Sequence[tuple[int, float]] = (),
) -> None:
    """Times as fast by the number of workers, or of what `label` names, beside the ideal.

    `limits`: sizes, and how much faster processes are that exchange nothing.
    """
    ideal = [each / sizes[0] for each in (0, sizes[-1])]
    axes.plot((0, sizes[-1]), ideal, color=QUIET, linestyle=(0, (4, 3)), label="ideal")
    if limits:
        axes.plot(*zip(*limits, strict=True), color=INK, marker=".", label="sharing nothing")
    axes.plot(sizes, speedups, color=LEARNED_COLOUR, linewidth=2.2, marker="o", label="measured")
    for size, speedup in list(zip(sizes, speedups, strict=True))[1:]:
        axes.annotate(
            f"{speedup:.1f}x",
            (size, speedup),
            xytext=(7, -9),
            color=LEARNED_COLOUR,
            path_effects=[HALO],
            **LABEL_STYLE,
        )
    axes.set_title(title, loc="left", fontsize=11)
    axes.set(xlabel=label, ylabel="times as fast", xticks=sizes)
    axes.set(xlim=(0, sizes[-1] * 1.12), ylim=(0, None))
    axes.legend(loc="upper left")
