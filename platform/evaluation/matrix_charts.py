"""Chart of a matrix: the difference from the best rule in every setting, coloured by outcome."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from loadmaster.envs.metrics import Metric
from loadmaster.platform.evaluation import report
from loadmaster.platform.evaluation.charts import INK, QUIET
from loadmaster.platform.evaluation.comparison_charts import log_beyond
from loadmaster.platform.evaluation.matrix import OUTCOMES, MatrixResult
from loadmaster.platform.evaluation.statistics import Interval

# Okabe and Ito's green, a grey and their vermilion: distinct under common colour blindness.
COLOURS = {"win": "#009E73", "tie": "#8C8C8C", "loss": "#D55E00"}
HEADINGS_INCHES = 0.62


def draw_matrix(result: MatrixResult, subtitle: str) -> Figure:
    """One line a setting, in the order of the file; the mean over all settings at the bottom."""
    rows, summary, metric = result.rows, result.summary, result.rows[0].metric
    size = (10.0, 1.9 + 0.3 * (len(rows) + 1))
    inside = (0.01, 0.01, 0.98, 0.99 - HEADINGS_INCHES / size[1])
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(rect=inside))
    labels = " or ".join(dict.fromkeys(row.metric.label for row in rows))
    heading = f"Difference from the best rule in {labels}"
    figure.text(0.015, 1 - 0.1 / size[1], heading, va="top", fontsize=13, fontweight="bold")
    figure.text(0.015, 1 - 0.36 / size[1], subtitle, va="top", fontsize=9.5, color=QUIET)
    axes = figure.subplots()
    for place, row in enumerate(rows):
        value, interval = row.difference.of(row.metric)
        text = f"{_signed(value, row.metric)}  {row.rule}"
        _draw_difference(axes, place, value, interval, COLOURS[row.outcome], text)
    overall, bottom = summary.difference, len(rows) + 0.4
    text = _signed(overall.mean, metric)
    _draw_difference(axes, bottom, overall.mean, overall.interval, INK, text, "D")
    axes.axvline(0, color=QUIET, linewidth=1)
    places, names = [*range(len(rows)), bottom], [row.entry.name for row in rows]
    axes.set_yticks(places, [*names, "mean of all settings"], color=INK)
    axes.set_ylim(bottom + 0.7, -0.7)
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.05)
    scale = f"; log scale beyond {beyond:g}" if (beyond := log_beyond(axes, metric)) else ""
    better = "left" if metric.sign > 0 else "right"
    what = f"paired difference{', %' if metric.relative else ''}, 95% interval{scale}"
    axes.set_xlabel(
        f"{what}\n{better} of 0: better than the best rule, which is named on the right"
    )
    handles = [
        Line2D([], [], color=COLOURS[one], marker="o", label=f"{one} ({count})", linewidth=2.5)
        for one, count in ((one, summary.outcomes[one]) for one in OUTCOMES)
    ]
    figure.legend(handles=handles, loc="upper right", ncols=len(handles), fontsize=9.5)
    return figure


def _draw_difference(
    axes: Axes,
    place: float,
    value: float,
    interval: Interval,
    colour: str,
    text: str,
    marker: str = "o",
) -> None:
    """A point with its interval, and its text to the right of the axes."""
    axes.plot((interval.low, interval.high), (place, place), color=colour, linewidth=2.5)
    axes.plot(value, place, marker, color=colour, markersize=5.5)
    axes.text(1.01, place, text, va="center", fontsize=9, transform=axes.get_yaxis_transform())


def _signed(value: float, metric: Metric) -> str:
    return f"{value:{report.difference_form(metric, value)}}{report.difference_unit(metric)}"
