"""Charts of a comparison: the primary metric, and the jobs of every policy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from numpy.typing import NDArray

from loadmaster.envs.metrics import Metric
from loadmaster.platform.evaluation import report
from loadmaster.platform.evaluation.charts import (
    DASHES,
    FAINT,
    HALO,
    INK,
    LABEL_STYLE,
    LEARNED_COLOUR,
    PALETTE,
    QUIET,
    legend_outside,
    plain_log,
    save,
)
from loadmaster.platform.evaluation.comparison import Comparison

SIZE_BINS = 8  # quantiles of work
TIME_POINTS = 400
REWARD_TICKS = (-1000, -100, -10, -1, -0.1, 0, 0.1, 1, 10, 100, 1000)
PERCENT_TICKS = (-80, -50, -20, 0, 10, 20, 50, 200, 1000, 5000, 20_000)


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
    means = (comparison.summaries[policy][0].mean for policy in policies)
    digits = report.decimals(metric, means)
    for row, policy in enumerate(policies):
        summary = comparison.summaries[policy][0]
        low, high = summary.interval.low, summary.interval.high
        colour = _colour_of(comparison, policy)
        if metric.relative:
            axes[0].barh(row, summary.mean, 0.62, color=colour, alpha=0.85)
            axes[0].plot([low, high], [row, row], color=INK, linewidth=1.6, path_effects=[HALO])
            end = np.nanmax([summary.mean, high, 0])
        else:  # a bar from an arbitrary zero would mean nothing
            axes[0].plot([low, high], [row, row], color=colour, linewidth=2.5)
            axes[0].plot(summary.mean, row, "o", color=colour, markersize=6)
            end = np.nanmax([summary.mean, high])
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
    if metric.relative or not log_beyond(axes[0], metric):
        axes[0].xaxis.set_major_locator(MaxNLocator(6))
    if axes[0].dataLim.x1 >= 10_000:
        axes[0].xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,g}"))
    if metric.relative and axes[0].dataLim.x0 >= 0:
        axes[0].set_xlim(left=0)
    return figure


def _draw_differences(comparison: Comparison, axes: Axes) -> None:
    metric = comparison.primary
    form, unit = report.difference_form(metric, 0.0), report.difference_unit(metric)
    for row, policy in enumerate(comparison.policies):
        if policy == comparison.best_baseline:
            axes.annotate("best baseline", (0, row), (6, 0), **LABEL_STYLE, color=QUIET)
            continue
        value, interval = comparison.differences[policy].of(metric)
        ends, colour = (interval.low, interval.high), _colour_of(comparison, policy)
        axes.plot(ends, [row, row], color=colour, linewidth=2.5)
        axes.plot(value, row, "o", color=colour, markersize=6)
        end = np.nanmax([value, ends[1]])
        label = f"{value:{form}}{unit}"
        axes.annotate(label, (end, row), (6, 0), path_effects=[HALO], **LABEL_STYLE)
    axes.axvline(0, color=QUIET, linewidth=1)
    scale = f", log scale beyond {beyond:g}" if (beyond := log_beyond(axes, metric)) else ""
    of = f"difference from {comparison.best_baseline}{', %' if metric.relative else ''}"
    axes.set_xlabel(f"{of}\n(paired, 95% interval{scale})")


def log_beyond(axes: Axes, metric: Metric) -> float:
    """Make the x axis logarithmic on both sides of 0 where a value is far out; from where on, or 0.

    This keeps small differences apart where one policy is far worse.
    """
    low, high = axes.dataLim.x0, axes.dataLim.x1
    linear, ticks = (20.0, PERCENT_TICKS) if metric.relative else (0.1, REWARD_TICKS)
    plain = FuncFormatter(lambda x, _: f"{x:,g}")
    if max(-low, high) <= 5 * linear:
        axes.xaxis.set_major_formatter(plain)
        return 0.0
    axes.set_xscale("symlog", linthresh=linear)
    axes.xaxis.set_major_formatter(plain)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(low * 1.25 if low < 0 else low, max(high, linear) * 3)
    return linear


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
    adapter = comparison.adapter
    if policy in adapter.references:
        return INK
    if policy not in adapter.baselines:
        return LEARNED_COLOUR
    return PALETTE[_family_number(comparison, policy) % len(PALETTE)]


def _family_number(comparison: Comparison, policy: str) -> int:
    adapter = comparison.adapter
    families = list(dict.fromkeys(adapter.families.get(name, name) for name in adapter.baselines))
    return families.index(adapter.families.get(policy, policy))


def _line_style(comparison: Comparison, policy: str) -> dict[str, Any]:
    first = policy == comparison.policies[0]
    learned = list(comparison.learned)
    if policy in learned:
        number = learned.index(policy)
    elif policy in comparison.adapter.baselines:  # those beyond the palette repeat its colours
        number = _family_number(comparison, policy) // len(PALETTE)
    else:
        number = 0
    return {
        "color": _colour_of(comparison, policy),
        "linewidth": 2.6 if first else 1.6,
        "linestyle": DASHES[number % len(DASHES)],
    }
