"""A few successive decisions of a learned policy as a figure."""

from collections.abc import Sequence
from typing import IO, Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling.decision_state import RECONSIDERING
from loadmaster.envs.gpu_scheduling.jobs import WHOLE
from loadmaster.platform.evaluation.charts import DPI, FAINT, INK, PALETTE, QUIET, STYLE
from loadmaster.platform.systems.das.decision_trace import Place, RecordedEpisode, Step

DECISIONS = 6
COLUMNS = 2  # of decisions
ROWS = 8  # jobs of a decision
WRITTEN = 12  # machines at most, else cells are too small for numbers
STOP, GROUND = "#B3261E", "#F4F4F1"
KEY = (
    "Left: priority, mean and one standard deviation; the highest goes first. Right: affinity "
    "of a job to a machine, darkest for the highest; framed: placed; hatched: does not fit.\n"
    "Reconsidering: in colour, machines of running jobs; struck out: stopped; green: jobs that "
    "start there next. Above the maps, GPU type and price of a GPU-hour."
)


def draw_picture(
    episodes: Sequence[RecordedEpisode], title: str, file: IO[bytes], kind: str
) -> None:
    """Draw decisions of the first policy that has a trace."""
    for episode in episodes:
        if episode.case is not None and episode.case.steps:
            with mpl.rc_context({**STYLE, "axes.grid": False, "hatch.linewidth": 0.6}):
                figure = _draw(episode, select_steps(episode.case.steps), title)
                figure.savefig(file, format=kind, dpi=DPI)
            return
    raise InputError(
        f"{episodes[0].policy} has no decision that --picture could show; expected a policy "
        "that orders and places jobs, and an episode in which it has a choice"
    )


def select_steps(steps: Sequence[Step], count: int = DECISIONS) -> Sequence[Step]:
    """The window of successive decisions with the most choices and preemptions."""

    def value(step: Step) -> float:
        hidden = min(2.0, max(0, len(step.jobs) - ROWS) / ROWS)  # not all jobs can be drawn
        if step.kind == RECONSIDERING:
            return (6 if step.stopped else -1) - hidden
        return min(len(step.startable) - 1, ROWS // 2) - hidden

    values = np.array([value(step) for step in steps])
    first = int(np.convolve(values, np.ones(min(count, len(steps))), "valid").argmax())
    return steps[first : first + count]


def _draw(episode: RecordedEpisode, steps: Sequence[Step], title: str) -> Figure:
    rows = -(-len(steps) // COLUMNS)
    columns = min(COLUMNS, len(steps))
    wide, high = 6.6 * columns, 0.9 + 3.1 * rows
    figure = Figure(figsize=(wide, high))
    heading = f"{episode.policy}, decision by decision: which job goes first, and where"
    figure.text(0.012, 1 - 0.1 / high, heading, va="top", fontsize=13, fontweight="bold")
    figure.text(0.012, 1 - 0.37 / high, title, va="top", fontsize=8.5, color=QUIET, wrap=True)
    names = 1.25 / wide  # width of the jobs' names
    grid = figure.add_gridspec(
        rows, columns, wspace=1.4 / (wide / columns - 1.4), hspace=0.6,
        left=names, right=0.99, top=1 - 1.4 / high, bottom=0.95 / high,
    )  # fmt: skip
    for place, step in enumerate(steps):
        pair = grid[divmod(place, columns)].subgridspec(1, 2, width_ratios=[1, 2.6], wspace=0.05)
        left, right = (figure.add_subplot(pair[0, side]) for side in (0, 1))
        shown = _shown(step)
        _draw_priorities(left, episode, step, shown)
        _draw_map(right, episode, step, shown)
        start, top = left.get_position().x0 - names + 0.012, left.get_position().y1
        words = f"{place + 1}  ·  {_situation(episode, step)}"
        figure.text(start, top + 0.43 / high, words, fontsize=9.5, fontweight="bold")
        figure.text(start, top + 0.24 / high, _outcome(episode, step), fontsize=9)
    figure.text(0.012, 0.08 / high, KEY, va="bottom", fontsize=8, color=QUIET)
    return figure


def _shown(step: Step) -> list[int]:
    """Rows of the jobs to draw by descending priority, with all that are placed or stopped."""
    order = step.order.tolist()
    concerned = {place.job for place in (*step.placed, *step.then)} | set(step.stopped)
    first = sorted(order, key=lambda row: step.jobs[row] not in concerned)[:ROWS]
    return [row for row in order if row in set(first)]


def _draw_priorities(axes: Axes, episode: RecordedEpisode, step: Step, shown: list[int]) -> None:
    jobs = episode.jobs
    height = np.arange(len(shown))
    axes.barh(
        height, 2 * step.std[shown], left=(step.mean - step.std)[shown], height=0.42, color=FAINT
    )
    colours = [INK if step.heeded[row] else QUIET for row in shown]
    axes.scatter(step.mean[shown], height, marker="|", s=90, linewidths=2.4, c=colours)
    names = []
    for row in shown:
        job = step.jobs[row]
        gang = f"{jobs.instances[job]} x " if jobs.instances[job] > 1 else ""
        names.append(f"{jobs.job_id[job]}: {gang}{jobs.gpu[job] / WHOLE:g} GPU")
    axes.set_yticks(height, names, fontsize=8)
    for label, row in zip(axes.get_yticklabels(), shown, strict=True):
        label.set_color(STOP if int(step.jobs[row]) in step.stopped else INK)
    axes.set_ylim(max(len(shown), 4) - 0.5, -0.5)
    axes.xaxis.set_major_locator(MaxNLocator(3))
    axes.tick_params(axis="x", labelsize=8)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("priority", fontsize=8.5, labelpad=1)
    axes.spines["left"].set_visible(False)
    axes.use_sticky_edges = False
    axes.margins(x=0.08)
    axes.autoscale_view(scaley=False)


def _draw_map(axes: Axes, episode: RecordedEpisode, step: Step, shown: list[int]) -> None:
    rack = episode.cluster.rack
    machines = len(rack)
    left = np.arange(machines) + 0.25 * rack - 0.46  # of the cells, with space between racks
    startable = step.startable.tolist()
    for height, row in enumerate(shown):
        job = int(step.jobs[row])
        affinity = step.affinity[startable.index(row)] if row in startable else None
        for machine in range(machines):
            held, placed, then = (
                next((one.instances for one in places if one[:2] == (job, machine)), 0)
                for places in (step.held, step.placed, step.then)
            )
            corner = (left[machine], height - 0.42)
            _draw_cell(axes, corner, step, job, machine, affinity, held, placed, then)
    axes.set_xlim(-0.6, left[-1] + 1.06)
    axes.set_ylim(max(len(shown), 4) - 0.5, -0.5)
    axes.set_yticks([])
    firsts = np.flatnonzero(np.diff(rack, prepend=-1))  # machines of the racks
    labelled = np.arange(machines) if machines <= WRITTEN else firsts
    axes.set_xticks(left[labelled] + 0.46, labelled + 1, fontsize=8)
    axes.tick_params(axis="x", length=0, pad=1)
    axes.set_xlabel("machine", fontsize=8.5, labelpad=1)
    axes.spines[:].set_visible(False)
    names = episode.gpu_names
    for first in firsts:
        if first and machines > WRITTEN and names[first - 1] == names[first]:
            continue
        axes.text(
            left[first], 1.02, f"{names[first]} ${episode.cluster.price_per_s[first] * 3600:.2f}",
            transform=axes.get_xaxis_transform(), fontsize=8, color=QUIET,
        )  # fmt: skip


def _draw_cell(
    axes: Axes,
    corner: tuple[float, float],
    step: Step,
    job: int,
    machine: int,
    affinity: np.ndarray | None,
    held: int,
    placed: int,
    then: int,
) -> None:
    """Draw the cell of a job with these numbers of instances on the machine."""
    wide, high = 0.92, 0.84
    text, ink = "", INK
    fill: dict[str, Any] = {"ec": "none"}
    if affinity is not None and not np.isnan(affinity[machine]):
        lowest, highest = np.nanmin(affinity), np.nanmax(affinity)
        share = (affinity[machine] - lowest) / (highest - lowest) if highest > lowest else 0.5
        fill["fc"] = mpl.colormaps["Blues"](0.06 + 0.8 * share)
        text, ink = f"{affinity[machine]:.2f}", "white" if share > 0.62 else INK
    elif held:
        fill["fc"] = PALETTE[job % len(PALETTE)]
        text, ink = _instances(held), "white"
    else:
        hatch = None if step.kind == RECONSIDERING else "/////"
        fill = {"fc": GROUND, "ec": FAINT, "lw": 0, "hatch": hatch}
    axes.add_patch(Rectangle(corner, wide, high, **fill))
    frames = []
    if held and job in step.stopped:
        frames.append(STOP)
        across = [corner[0], corner[0] + wide], [corner[1] + high, corner[1]]
        axes.plot(*across, color=STOP, lw=2, solid_capstyle="butt")
    if placed:
        frames.append(INK)
        text += f"\n{_instances(placed)}" if placed > 1 else ""
    if then and not held:
        frames.append(PALETTE[2])
        text, ink = _instances(then), PALETTE[2]
    for colour in frames:
        axes.add_patch(Rectangle(corner, wide, high, fill=False, lw=2, ec=colour, zorder=3))
    if len(step.free) <= WRITTEN:
        axes.text(
            corner[0] + wide / 2, corner[1] + 0.44, text,
            ha="center", va="center", fontsize=7, color=ink, linespacing=0.95,
        )  # fmt: skip


def _instances(count: int) -> str:
    return f"x{count}" if count > 1 else "•"


def _situation(episode: RecordedEpisode, step: Step) -> str:
    free, gpus = step.free.sum() / WHOLE, episode.cluster.gpu_capacity.sum() / WHOLE
    when = f"{step.time_s / 3600:.2f} h" if step.time_s >= 3600 else f"{step.time_s:.0f} s"
    jobs, running = len(step.jobs), int(step.running.sum())
    phase = f"placing: {jobs} waiting, {len(step.startable)} could start"
    if step.kind == RECONSIDERING:
        phase = f"reconsidering: {jobs - running} waiting, {running} running"
    return f"{when}  ·  {phase}, {free:g} of {gpus:g} GPUs free"


def _outcome(episode: RecordedEpisode, step: Step) -> str:
    names = episode.jobs.job_id

    def starts(places: Sequence[Place]) -> str:
        rank = {int(step.jobs[row]): place for place, row in enumerate(step.order)}
        jobs = sorted({place.job for place in places}, key=lambda job: rank.get(job, len(rank)))
        parts = []
        for job in jobs[:3]:
            machines = sorted(place.machine + 1 for place in places if place.job == job)
            where = " + ".join(map(str, machines)) if len(machines) < 4 else "several"
            parts.append(f"job {names[job]} to {where}")
        if len(jobs) > 3:
            parts.append(f"{len(jobs) - 3} more")
        return ", ".join(parts)

    if step.kind != RECONSIDERING:
        return starts(step.placed)
    if not step.stopped:
        return "no job is stopped"
    stopped = ", ".join(str(names[job]) for job in step.stopped[:3])
    more = f" and {len(step.stopped) - 3} more" if len(step.stopped) > 3 else ""
    then = f"; then {starts(step.then)}" if step.then else ""
    return f"stops {'job' if len(step.stopped) == 1 else 'jobs'} {stopped}{more}{then}"
