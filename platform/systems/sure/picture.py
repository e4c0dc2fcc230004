"""A streaming job's episode as a figure: series, instances of tasks, what a decision read."""

from collections.abc import Sequence
from typing import IO

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from loadmaster.platform.evaluation.charts import INK
from loadmaster.platform.replay.series_picture import (
    LIMIT,
    POLICY_COLOURS,
    SERIES_HIGH,
    create_rows,
    label_limit,
    label_policies,
    save_picture,
    time_axis,
    title_charts,
    use_log_scale,
)
from loadmaster.platform.systems.sure.decision_trace import RecordedEpisode, Step, unit

TASK_HIGH = 0.17  # inches of a task's row
LEAST_HIGH, MOST_HIGH = 1.2, 4.6  # inches of a map
TASKS_NAMED = 28  # in a map; of more, every second or third


def draw_picture(
    episodes: Sequence[RecordedEpisode], title: str, file: IO[bytes], kind: str
) -> None:
    """Draw the episodes, and a decision of the first policy whose decisions have subgraphs."""
    save_picture(lambda: _draw(episodes, title), file, kind)


def select_step(steps: Sequence[Step]) -> Step | None:
    """The decision with subgraphs that changes the most instances; the first one, if none else."""
    with_reads = [step for step in steps if step.read is not None]
    later = with_reads[1:] or with_reads  # the first one leaves the initial plan
    return max(later, key=lambda s: int(np.abs(s.after - s.before).sum()), default=None)


def _draw(episodes: Sequence[RecordedEpisode], title: str) -> Figure:
    names = episodes[0].job.names
    map_high = min(max(TASK_HIGH * len(names), LEAST_HIGH), MOST_HIGH)
    traced = [(each.policy, each.trace) for each in episodes if each.trace is not None]
    step = select_step(traced[0][1].steps) if traced else None
    heights = [SERIES_HIGH] * 4 + [map_high] * (len(episodes) + (step is not None))
    figure, grid, axes = create_rows(heights, _headings(episodes), title)
    _draw_series(axes[:4], episodes)
    most = max(int(each.parallelism.max()) for each in episodes if each.parallelism is not None)
    for row, (episode, colour) in enumerate(zip(episodes, POLICY_COLOURS, strict=False), start=4):
        image = _draw_instances(axes[row], episode, colour, most)
        figure.colorbar(image, figure.add_subplot(grid[row, 1]), ticks=[1, most])
    last = axes[3 + len(episodes)]
    for own in axes[: 4 + len(episodes)]:
        time_axis(own, unit(episodes), max(each.end_s for each in episodes), own is last)
    if step is not None:
        policy, trace = traced[0]
        image = _draw_reads(axes[-1], names, step, policy, trace.history)
        bar = figure.colorbar(image, figure.add_subplot(grid[len(heights) - 1, 1]))
        bar.ax.yaxis.set_major_locator(MaxNLocator(3))
    return figure


def _headings(episodes: Sequence[RecordedEpisode]) -> list[str]:
    return [
        f"{each.policy}: reward {each.reward:.3f}, latency {each.figures['latency']:,.1f} s, "
        f"{each.instances.mean():,.0f} instances, {each.figures['restarts']:.1f} restarts a day"
        for each in episodes
    ]


def _hours(episode: RecordedEpisode) -> np.ndarray:
    """(minutes,) in the unit of the time axis."""
    return (np.arange(len(episode.load)) + 0.5) * 60 / unit([episode]).seconds


def _draw_series(axes: Sequence[Axes], episodes: Sequence[RecordedEpisode]) -> None:
    load, latency, lag, instances = axes
    load.plot(_hours(episodes[0]), episodes[0].load, color=INK, lw=0.7)
    for episode, colour in zip(episodes, POLICY_COLOURS, strict=False):
        time = _hours(episode)
        latency.plot(time, 60 * episode.latency_min, color=colour, lw=0.8, label=episode.policy)
        lag.plot(time, np.maximum(episode.lag, 1), color=colour, lw=0.8)
        instances.step(time, episode.instances, color=colour, lw=1.2, where="mid")
    target_s = 60 * episodes[0].target_min
    latency.axhline(target_s, color=LIMIT, lw=0.9, ls="--")
    label_limit(latency, target_s, f"target {target_s:g} s")
    label_policies(latency)
    for own in (latency, lag):
        use_log_scale(own)
    load.set_ylim(bottom=0)
    instances.set_ylim(bottom=0)
    titles = ("Load, records a minute", "Latency, s", "Lag, records", "Instances in total")
    title_charts(axes, titles)


def _draw_instances(axes: Axes, episode: RecordedEpisode, colour: str, most: int) -> AxesImage:
    assert episode.parallelism is not None
    scale, tasks = 60 / unit([episode]).seconds, len(episode.job.names)
    end = len(episode.load) * scale
    image = axes.imshow(
        episode.parallelism.T, aspect="auto", cmap="Blues", vmin=0, vmax=max(most, 2),
        interpolation="nearest", extent=(0, end, tasks - 0.5, -0.5),
    )  # fmt: skip
    axes.plot(
        episode.restart_minutes * scale, np.full(len(episode.restart_minutes), 1.02), "v",
        transform=axes.get_xaxis_transform(), clip_on=False, color=INK, ms=3, mew=0,
    )  # fmt: skip
    _name_tasks(axes, episode.job.names)
    axes.set_title(
        f"{episode.policy}: instances of every task; triangles: restarts",
        loc="left", fontsize=9, weight="bold", pad=9, color=colour,
    )  # fmt: skip
    return image


def _name_tasks(axes: Axes, names: Sequence[str]) -> None:
    every = -(-len(names) // TASKS_NAMED)
    shown = range(0, len(names), every)
    axes.set_yticks(shown, [names[task][-12:] for task in shown], fontsize=7.5)
    axes.tick_params(axis="y", length=0)
    axes.spines[:].set_visible(False)


def _draw_reads(
    axes: Axes, names: Sequence[str], step: Step, policy: str, history: int
) -> AxesImage:
    """The snapshots that each task read, by weight."""
    assert step.read is not None
    seen = np.full((len(names), history), np.nan)
    for task, (ages, weights) in enumerate(zip(step.read.snapshot, step.read.weight, strict=True)):
        seen[task, ages[ages >= 0]] = weights[ages >= 0]
    image = axes.imshow(
        seen, aspect="auto", cmap="Blues", vmin=0, vmax=float(np.nanmax(seen)),
        interpolation="nearest", extent=(-0.5, history - 0.5, len(names) - 0.5, -0.5),
    )  # fmt: skip
    axes.invert_xaxis()
    axes.set_facecolor("#F4F4F1")
    _name_tasks(axes, names)
    axes.set_xlabel("minutes before the decision", fontsize=8.5, labelpad=1)
    instances = f"{step.before.sum()} to {step.after.sum()} instances"
    gate = f"acts with {step.probability:.0%}" if step.act else "holds"
    axes.set_title(
        f"{policy}, minute {step.minute:,}: the gate {gate}, {instances}. Snapshots that each "
        "task read, and their weights",
        loc="left", fontsize=9, weight="bold", pad=4,
    )  # fmt: skip
    return image
