"""Style of all charts, and the charts of a comparison as PNG, without a display or global state."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from loadmaster.models.files import atomic_binary_file
from loadmaster.platform.evaluation import report
from loadmaster.platform.evaluation.comparison import OPTIMUM, Comparison

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
SIZE_BINS = 8  # quantiles of work
TIME_POINTS = 400
PERCENT_TICKS = (-80, -50, -20, 0, 10, 20, 50, 200, 1000, 5000, 20_000)


def save(path: Path, draw: Callable[[], Figure]) -> None:
    """Draw in the common style and replace a PNG atomically."""
    with mpl.rc_context(STYLE), atomic_binary_file(path) as file:
        draw().savefig(file, format="png", dpi=DPI)


def legend_outside(axes: Axes, heading: str) -> None:
    """Put the legend to the right of the axes, where it covers nothing."""
    legend = axes.legend(
        title=heading, loc="upper left", bbox_to_anchor=(1.01, 1), alignment="left", fontsize=9.5
    )
    for handle in legend.get_lines():
        handle.set_linewidth(4)


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
    axes: Axes, sizes: Sequence[int], speedups: Sequence[float], label: str, title: str
) -> None:
    """Times as fast by the number of workers, or of what `label` names, beside the ideal."""
    ideal = [each / sizes[0] for each in (0, sizes[-1])]
    axes.plot((0, sizes[-1]), ideal, color=QUIET, linestyle=(0, (4, 3)), label="ideal")
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


def draw_all(comparison: Comparison, jobs: pd.DataFrame | None, folder: Path) -> None:
    """Draw every chart that applies; those of jobs need the job table."""
    charts: dict[str, Callable[[], Figure]] = {"summary.png": lambda: draw_summary(comparison)}
    if jobs is not None:
        finished = jobs.dropna(subset=["jct_s"])
        charts["jobs_in_system.png"] = lambda: draw_jobs_in_system(comparison, jobs)
        if len(finished):
            charts["jct_distribution.png"] = lambda: draw_jct(comparison, finished)
            charts["slowdown_by_size.png"] = lambda: draw_slowdown(comparison, finished)
    for name, draw in charts.items():
        save(folder / name, draw)


def draw_summary(comparison: Comparison) -> Figure:
    """The primary metric with its interval, and the paired differences."""
    policies, metric = comparison.policies, comparison.primary
    panels = 2 if comparison.differences else 1
    size = (5.5 + 4.5 * (panels - 1), 1.9 + 0.42 * len(policies))
    figure, axes = _new_figure(
        comparison, f"{metric.label[:1].upper()}{metric.label[1:]} by policy", size, panels
    )
    digits = report.decimals(comparison.summaries[policy][0].mean for policy in policies)
    for row, policy in enumerate(policies):
        summary = comparison.summaries[policy][0]
        low, high = summary.interval.low, summary.interval.high
        axes[0].barh(row, summary.mean, 0.62, color=_colour_of(comparison, policy), alpha=0.85)
        axes[0].plot([low, high], [row, row], color=INK, linewidth=1.6, path_effects=[HALO])
        end = np.nanmax([summary.mean, high, 0])
        label = report.figure_text(summary.mean, digits)
        axes[0].annotate(label, (end, row), (5, 0), **LABEL_STYLE)
    axes[0].set_xlabel(f"{metric.title}\n(mean and 95% interval)")
    if comparison.differences:
        _draw_differences(comparison, axes[1])
    names = [report.marked(comparison, policy) for policy in policies]
    for panel in axes:
        panel.set_yticks(range(len(policies)), names if panel is axes[0] else [], color=INK)
        panel.set_ylim(len(policies) - 0.4, -0.6)
        panel.grid(False, axis="y")
        panel.tick_params(axis="y", length=0)
        panel.margins(x=0.16)
    axes[0].xaxis.set_major_locator(MaxNLocator(6))
    if axes[0].dataLim.x1 >= 10_000:
        axes[0].xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,g}"))
    if axes[0].dataLim.x0 >= 0:
        axes[0].set_xlim(left=0)
    return figure


def _draw_differences(comparison: Comparison, axes: Axes) -> None:
    reach = [0.0]
    for row, policy in enumerate(comparison.policies):
        if policy == comparison.best_baseline:
            axes.annotate("best baseline", (0, row), (6, 0), **LABEL_STYLE, color=QUIET)
            continue
        difference, colour = comparison.differences[policy], _colour_of(comparison, policy)
        ends = (difference.percent_interval.low, difference.percent_interval.high)
        axes.plot(ends, [row, row], color=colour, linewidth=2.5)
        axes.plot(difference.percent, row, "o", color=colour, markersize=6)
        farthest = np.nanmax([difference.percent, ends[1]])
        axes.annotate(f"{difference.percent:+,.1f}%", (farthest, row), (6, 0), **LABEL_STYLE)
        reach += [difference.percent, *ends]
    scale = ""
    if np.nanmax(np.abs(reach)) > 100:
        # Keeps the small differences apart where one policy is far worse.
        axes.set_xscale("symlog", linthresh=20)
        axes.xaxis.set_major_locator(FixedLocator(PERCENT_TICKS))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlim(np.nanmin(reach) - 5, np.nanmax(reach) * 3)
        scale = ", log scale beyond 20"
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,g}"))
    axes.axvline(0, color=QUIET, linewidth=1)
    axes.set_xlabel(f"difference from {comparison.best_baseline}, %\n(paired, 95% interval{scale})")


def draw_jct(comparison: Comparison, jobs: pd.DataFrame) -> Figure:
    """Cumulative distribution of the job completion time, over all jobs of all seeds."""
    figure, (axes,) = _new_figure(
        comparison, "Job completion time, all jobs of all seeds", (9, 5.2)
    )
    for policy in comparison.representatives:
        times = np.sort(jobs.loc[jobs["policy"] == policy, "jct_s"].to_numpy())
        if not len(times):
            continue  # no job finished before the horizon
        share = np.arange(1, len(times) + 1) / len(times)
        median = report.short_number(float(np.median(times)))
        label = f"{report.marked(comparison, policy)}  ({median} s)"
        axes.step(times, share, where="post", label=label, **_line_style(comparison, policy))
    axes.set(xscale="log", ylim=(0, 1.01))
    plain_log(axes.xaxis, labels=9)
    axes.set(xlabel="job completion time, s (log scale)", ylabel="share of jobs finished by then")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:.0%}"))
    legend_outside(axes, _legend(comparison, "median"))
    return figure


def draw_slowdown(comparison: Comparison, jobs: pd.DataFrame) -> Figure:
    """One panel per policy: median and quartiles by job size, the other policies in grey."""
    policies = comparison.representatives
    columns = min(4, len(policies))
    size = (max(6.5, 1 + 2.5 * columns), 2 + 2.4 * -(-len(policies) // columns))
    figure, panels = _new_figure(
        comparison, "Slowdown by job size", size, columns, len(policies), share=True
    )
    curves = {p: _slowdown_curve(jobs[jobs["policy"] == p], _size_edges(jobs)) for p in policies}
    for axes, policy in zip(panels, policies, strict=True):
        for other in policies:
            axes.plot(*curves[other][:2], color=FAINT, linewidth=1)
        work, median, low, high = curves[policy]
        axes.fill_between(work, low, high, color=_colour_of(comparison, policy), alpha=0.2, lw=0)
        axes.plot(work, median, marker="o", markersize=3.5, **_line_style(comparison, policy))
        axes.set_title(report.marked(comparison, policy), loc="left", fontsize=10)
        axes.set(xscale="log", yscale="log")
        plain_log(axes.xaxis, labels=5)
        plain_log(axes.yaxis, labels=9)
    labels = comparison.setup.job_labels
    figure.supxlabel(f"{labels.work} (log scale)", fontsize=10)
    figure.supylabel(f"slowdown: {labels.slowdown} (log scale)", fontsize=10)
    return figure


def draw_jobs_in_system(comparison: Comparison, jobs: pd.DataFrame) -> Figure:
    """Jobs waiting or running over time: mean over the episodes that have not reached a horizon."""
    figure, (axes,) = _new_figure(comparison, "Jobs in system over time", (9, 5.2))
    cut = jobs[jobs["completion_s"].isna()].drop_duplicates(["policy", "seed"])["end_s"]
    # Beyond the median horizon too few episodes are left for a mean.
    last = float(cut.median() if len(cut) else jobs["completion_s"].max())
    times = np.linspace(0, last, TIME_POINTS)
    for policy in comparison.representatives:
        own = jobs[jobs["policy"] == policy]
        curves = [_present(episode, times) for _, episode in own.groupby("seed")]
        present = np.nanmean(curves, axis=0)
        mean = report.short_number(float(np.mean(present)))
        label = f"{report.marked(comparison, policy)}  ({mean})"
        axes.plot(times, present, label=label, **_line_style(comparison, policy))
    axes.set(xlim=(0, last), ylim=(0, None))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,g}"))
    axes.set(xlabel="time since the episode's start, s", ylabel="jobs in system, mean over seeds")
    legend_outside(axes, _legend(comparison, "mean over this time"))
    return figure


def _legend(comparison: Comparison, figure: str) -> str:
    """Heading of a legend whose labels show `figure` after each name."""
    some = len(comparison.representatives) < len(comparison.policies)
    return f"policy ({figure})" + ("\nthe best of each family" if some else "")


def _present(episode: pd.DataFrame, times: NDArray[np.float64]) -> NDArray[np.float64]:
    """(times,) jobs in system; nan after the horizon of an episode that was cut off."""
    arrived = np.searchsorted(np.sort(episode["arrival_s"]), times, side="right")
    left = np.searchsorted(np.sort(episode["completion_s"].dropna()), times, side="right")
    present = (arrived - left).astype(np.float64)
    if episode["completion_s"].isna().any():
        present[times > episode["end_s"].iloc[0]] = np.nan
    return present


def _size_edges(jobs: pd.DataFrame) -> NDArray[np.float64]:
    """(bins + 1,) quantiles of the jobs' work."""
    edges = np.quantile(jobs["work_s"], np.linspace(0, 1, SIZE_BINS + 1))
    return np.unique(edges)


def _slowdown_curve(
    jobs: pd.DataFrame, edges: NDArray[np.float64]
) -> tuple[NDArray[np.float64], ...]:
    """Median work, and median and quartiles of the slowdown, for every non-empty bin."""
    number = np.clip(np.searchsorted(edges, jobs["work_s"], side="right") - 1, 0, len(edges) - 2)
    grouped = jobs.groupby(number)
    slowdown = grouped["slowdown"]
    columns = [grouped["work_s"].median(), *(slowdown.quantile(q) for q in (0.5, 0.25, 0.75))]
    return tuple(column.to_numpy() for column in columns)


def _new_figure(
    comparison: Comparison,
    heading: str,
    size: tuple[float, float],
    columns: int = 1,
    panels: int | None = None,
    share: bool = False,
) -> tuple[Figure, list[Axes]]:
    """Make a figure with heading and subtitle, and its panels row by row."""
    count = panels or columns
    rows = -(-count // columns)
    headings_inches = 0.8 if comparison.few_seeds else 0.62
    below_headings = (0.01, 0.01, 0.98, 0.99 - headings_inches / size[1])
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(rect=below_headings))
    figure.text(0.015, 1 - 0.1 / size[1], heading, va="top", fontsize=13, fontweight="bold")
    subtitle = f"{report.title(comparison)}, the same for all"
    if comparison.oracles:
        subtitle += f"; {report.ORACLE} an oracle"
    if comparison.few_seeds:
        subtitle += f"\n{report.few_seeds_note(comparison)}"
    figure.text(0.015, 1 - 0.36 / size[1], subtitle, va="top", fontsize=9.5, color=QUIET)
    grid = figure.subplots(rows, columns, sharex=share, sharey=share, squeeze=False)
    axes = list(grid.flat)
    for empty in axes[count:]:
        empty.remove()
    return figure, axes[:count]


def _colour_of(comparison: Comparison, policy: str) -> str:
    """Colour by family of baselines; the same in every chart and every run."""
    if policy == OPTIMUM:
        return INK
    adapter = comparison.adapter
    if policy not in adapter.baselines:
        return LEARNED_COLOUR
    families = list(dict.fromkeys(adapter.families.get(name, name) for name in adapter.baselines))
    return PALETTE[families.index(adapter.families.get(policy, policy)) % len(PALETTE)]


def _line_style(comparison: Comparison, policy: str) -> dict[str, Any]:
    first = policy == comparison.policies[0]
    learned = list(comparison.learned)
    number = learned.index(policy) if policy in learned else 0
    return {
        "color": _colour_of(comparison, policy),
        "linewidth": 2.6 if first else 1.6,
        "linestyle": DASHES[number % len(DASHES)],
    }
