"""Parts that pictures of series over time share: rows of charts, headings, the time axis."""

from collections.abc import Callable, Sequence
from typing import IO, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.ticker import FuncFormatter, LogLocator, MultipleLocator, NullLocator

from loadmaster.platform.evaluation.charts import DPI, FAINT, QUIET, STYLE
from loadmaster.platform.replay.adapters import Unit

POLICY_COLOURS = ("#2754D3", "#C64A10")  # as on the page
LIMIT = "#B3261E"
WIDE = 11.0  # inches
SERIES_HIGH = 0.95  # inches of a chart
GAP_HIGH, LINE_HIGH = 0.38, 0.24  # inches between charts, and of a line of the heading
LABELS = 8  # of the time axis at most


def save_picture(draw: Callable[[], Figure], file: IO[bytes], kind: str) -> None:
    """Draw a figure in the style of pictures of series, and write it."""
    with mpl.rc_context({**STYLE, "axes.grid": False, "font.size": 9}):
        draw().savefig(file, format=kind, dpi=DPI)


class Rows(NamedTuple):
    """A figure with a chart in each row, and a narrow column at its right for colour bars."""

    figure: Figure
    grid: GridSpec
    axes: list[Axes]


def create_rows(heights: Sequence[float], headings: Sequence[str], title: str) -> Rows:
    """A figure whose rows have these heights in inches, below a line for each policy."""
    head = 0.1 + LINE_HIGH * len(headings)
    high = sum(heights) + GAP_HIGH * len(heights) + head + 0.9
    figure = Figure(figsize=(WIDE, high))
    for line, text in enumerate(headings):
        where = 1 - (0.1 + LINE_HIGH * line) / high
        figure.text(0.012, where, text, va="top", fontsize=12, weight="bold")
    figure.text(0.012, 1 - (head + 0.04) / high, title, va="top", fontsize=8.5, color=QUIET)
    grid = GridSpec(
        len(heights), 2, figure, height_ratios=heights, width_ratios=[1, 0.012], wspace=0.02,
        hspace=GAP_HIGH * len(heights) / sum(heights),
        left=0.09, right=0.955, top=1 - (head + 0.55) / high, bottom=0.5 / high,
    )  # fmt: skip
    return Rows(figure, grid, [figure.add_subplot(grid[row, 0]) for row in range(len(heights))])


def title_charts(axes: Sequence[Axes], titles: Sequence[str]) -> None:
    for own, text in zip(axes, titles, strict=True):
        own.set_title(text, loc="left", fontsize=9, weight="bold", pad=4)


def label_policies(axes: Axes) -> None:
    """Legend above the right end of a chart."""
    axes.legend(loc="lower right", bbox_to_anchor=(1, 0.98), ncols=2, fontsize=9, borderpad=0)


def label_limit(axes: Axes, value: float, text: str) -> None:
    """Name a limit below its line, at the right end."""
    axes.annotate(
        text, (1, value), xycoords=("axes fraction", "data"),
        xytext=(-2, -2), textcoords="offset points", ha="right", va="top", color=LIMIT, fontsize=8,
    )  # fmt: skip


def use_log_scale(axes: Axes, subs: Sequence[float] = (1.0,)) -> None:
    """Labels are at powers of ten times each of `subs`."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=subs, numticks=5))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))


def time_axis(axes: Axes, used: Unit, end_s: float, labelled: bool) -> None:
    """Time from 0 to the end in a unit, with grid lines; labels are optional."""
    end = end_s / used.seconds
    axes.set_xlim(0, end)
    step = next((each for each in used.steps if end / each <= LABELS), None)
    if step is not None:
        axes.xaxis.set_major_locator(MultipleLocator(step))
    axes.grid(axis="x", color=FAINT, lw=0.5)
    axes.tick_params(axis="x", labelbottom=labelled, length=3 if labelled else 0)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} {used.name}"))
