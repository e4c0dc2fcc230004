"""An application's episode as a figure: series, restarts, margins, known applications."""

from collections.abc import Sequence
from typing import IO

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loadmaster.envs.pod_scaling.settings import STEP_S
from loadmaster.envs.pod_scaling.state import Floats
from loadmaster.models.aware.settings import MARGINS
from loadmaster.platform.evaluation.charts import INK, PALETTE, QUIET
from loadmaster.platform.replay.adapters import count
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
from loadmaster.platform.systems.aware.decision_trace import SOURCES, STATES, RecordedEpisode, unit

SHOWN = 8  # known applications
LONGEST = 32  # characters of a name in a heading
LINE_HIGH = 0.2  # inches of one of them
LABELS_HIGH = 0.25  # inches of the time axis above them
MIB_PER_GIB = 1024
TITLES = (
    "Load, requests a second",
    "p99, s",
    "Replicas; triangles: restarts, crosses: OOM kills",
    "CPU, cores: limit, and use as area",
    "Memory, GiB: limit, and use as area",
)


def draw_picture(
    episodes: Sequence[RecordedEpisode], title: str, file: IO[bytes], kind: str
) -> None:
    """Draw the episodes, and what is known of the first learned policy's decisions."""
    save_picture(lambda: _draw(episodes, title), file, kind)


def _draw(episodes: Sequence[RecordedEpisode], title: str) -> Figure:
    acted = [each for each in episodes if any(step.margins for step in each.trace or ())]
    known = next((each for each in episodes if each.known), None)
    logged = episodes[0].sources is not None
    heights = [SERIES_HIGH] * (len(TITLES) + bool(acted) + logged)
    heights += [LINE_HIGH * min(len(known.known), SHOWN) + LABELS_HIGH] if known else []
    figure, _, axes = create_rows(heights, [_heading(each) for each in episodes], title)
    _draw_series(axes[: len(TITLES)], episodes)
    over_time = axes[: len(TITLES) + bool(acted) + logged]
    if acted:
        _draw_actions(axes[len(TITLES)], acted[0])
    if logged:
        _draw_sources(over_time[-1], episodes[0])
    for own in over_time:
        end_s = max(each.end_s for each in episodes)
        time_axis(own, unit(episodes), end_s, own is over_time[-1])
    if known:
        _draw_known(axes[-1], known, LABELS_HIGH / figure.get_figheight())
    return figure


def _heading(episode: RecordedEpisode) -> str:
    figures = episode.figures
    name = episode.policy
    name = name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
    return (
        f"{name}: reward {figures['reward']:.3f}, {figures['violations']:.0f}% of the "
        f"steps above the SLO, {count(int(np.nansum(episode.restarts)), 'restart')}, "
        f"{count(int(np.nansum(episode.ooms)), 'OOM kill')}"
    )


def _times(episode: RecordedEpisode) -> Floats:
    """(steps,) middle of each control step in the unit of the time axis."""
    return (np.arange(len(episode.p99_s)) + 0.5) * STEP_S / unit([episode]).seconds


def _draw_series(axes: Sequence[Axes], episodes: Sequence[RecordedEpisode]) -> None:
    load, p99, replicas, cpu, memory = axes
    first = episodes[0]
    load.plot(_times(first), first.load, color=INK, lw=0.9)
    p99.step(_times(first), first.slo_s, color=LIMIT, lw=0.9, ls="--", where="mid")
    label_limit(p99, float(first.slo_s[-1]), f"SLO {first.slo_s[-1]:.3g} s")
    for number, (episode, colour) in enumerate(zip(episodes, POLICY_COLOURS, strict=False)):
        time = _times(episode)
        p99.plot(time, np.maximum(episode.p99_s, 1e-3), color=colour, lw=1.0, label=episode.policy)
        for counts, mark in ((episode.restarts, "v"), (episode.ooms, "x")):
            at = time[np.nan_to_num(counts) > 0]
            replicas.plot(
                at, np.full(len(at), 0.08 + 0.13 * number), mark, color=colour, ms=4,
                transform=replicas.get_xaxis_transform(),
            )  # fmt: skip
        replicas.step(time, episode.replicas, color=colour, lw=1.2, where="mid")
        for own, limit, used, scale in (
            (cpu, episode.cores, episode.used_cores, 1),
            (memory, episode.mib, episode.used_mib, MIB_PER_GIB),
        ):
            own.step(time, limit / scale, color=colour, lw=1.2, where="mid")
            own.fill_between(time, used / scale, step="mid", color=colour, alpha=0.18, lw=0)
    use_log_scale(p99, (1.0, 2.0, 5.0))
    label_policies(p99)
    for own in (load, replicas, cpu, memory):
        own.set_ylim(bottom=0)
    title_charts(axes, TITLES)


def _draw_actions(axes: Axes, episode: RecordedEpisode) -> None:
    """Actions of the actor by decision."""
    steps = [step for step in episode.trace or () if step.margins]
    time = np.array([step.step for step in steps]) * STEP_S / unit([episode]).seconds
    for name, colour in zip(MARGINS, PALETTE, strict=False):
        values = [{each.name: each.action for each in step.margins}[name] for step in steps]
        axes.step(time, values, color=colour, lw=1.0, where="post", label=name)
    axes.set_ylim(-1.05, 1.05)
    axes.axhline(0, color=QUIET, lw=0.5)
    axes.legend(
        loc="lower right", bbox_to_anchor=(1, 0.98), ncols=len(MARGINS), fontsize=8, borderpad=0
    )
    title_charts([axes], ["Margins, relative to the rule's"])


def _draw_sources(axes: Axes, episode: RecordedEpisode) -> None:
    """What decided, and the state of the lifecycle."""
    assert episode.sources is not None
    assert episode.states is not None
    time = _times(episode)
    for row, (numbers, names) in enumerate(((episode.sources, SOURCES), (episode.states, STATES))):
        for number, name in enumerate(names):
            at = time[numbers == number]
            if not name or not len(at):
                continue
            colour = PALETTE[(3 * row + number) % len(PALETTE)]
            axes.plot(at, np.full(len(at), 1 - row), "s", color=colour, ms=5, label=name)
    axes.set_yticks([1, 0], ["decided by", "lifecycle"])
    axes.set_ylim(-0.6, 1.6)
    axes.legend(loc="lower right", bbox_to_anchor=(1, 0.98), ncols=5, fontsize=8, borderpad=0)
    title_charts([axes], ["What decided, and the lifecycle"])


def _draw_known(axes: Axes, episode: RecordedEpisode, room: float) -> None:
    """The nearest known applications; `room` is the share of the figure left free above them."""
    nearest = episode.known[:SHOWN]
    box = axes.get_position()
    axes.set_position((box.x0, box.y0, box.width, box.height - room))
    places = np.arange(len(nearest))
    similarity = [each.similarity for each in nearest]
    axes.barh(places, similarity, height=0.6, color=PALETTE[3])
    for place, value in zip(places, similarity, strict=True):
        axes.annotate(
            f"{value:.3f}", (max(value, 0), place), xytext=(4, 0), textcoords="offset points",
            va="center", fontsize=8,
        )  # fmt: skip
    axes.set_yticks([])
    for place, each in zip(places, nearest, strict=True):
        axes.annotate(
            each.application.name, (0, place), xytext=(4, 0), textcoords="offset points",
            va="center", fontsize=8, color=INK,
        )  # fmt: skip
    axes.set_xlim(0, 1.06)
    axes.invert_yaxis()
    title = (
        f"Nearest of {len(episode.known)} known applications to {episode.application}: cosine "
        "similarity of the embeddings"
    )
    title_charts([axes], [title])
