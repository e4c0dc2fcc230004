"""Speed of training with more and more rollout workers, in one run on one machine.

For each number of workers two things are measured. Rollouts alone: every worker gets the same
amount of work, so twice the workers run twice the sequences. Whole iterations: the first iterations
of `loadmaster train`, the same for every number of workers.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Chart
from matplotlib.ticker import FuncFormatter

from loadmaster.envs.errors import counted
from loadmaster.models.files import atomic_text_file
from loadmaster.platform.bench.measurements import Figure
from loadmaster.platform.evaluation import charts
from loadmaster.platform.evaluation.report import short_number
from loadmaster.platform.ray.session import ray_session
from loadmaster.platform.rl.algorithm import value_at
from loadmaster.platform.rl.rollout import Recording, RolloutSpec
from loadmaster.platform.training.config import Recipe, TrainingConfig
from loadmaster.platform.training.trainer import Trainer

SECONDS = 3.0  # of rollouts, and of iterations, for each number of workers
ITERATIONS = 2  # at the least, however long they take
ALL = 1.0  # share of decisions recorded in rollouts alone
FILES = TABLE, CHART = "scaling.csv", "scaling.png"


@dataclass(frozen=True)
class Point:
    """Measurements with one number of workers."""

    workers: int
    rollout_decisions_per_s: float
    rollout_efficiency: float  # per worker, relative to the smallest number of workers
    iteration_seconds: float
    iteration_rollout_seconds: float  # of those; the others are the update
    iteration_speedup: float  # relative to the smallest number of workers


def measure_scaling(
    recipe: Recipe,
    workers: Sequence[int],
    config: TrainingConfig,
    report_step: Callable[[str], None],
    on_point: Callable[[Point], None],
) -> list[Point]:
    """Measure one point per number of workers, fewest first; `on_point` receives each at once."""
    sizes = sorted(workers)
    points: list[Point] = []
    report_step(f"starting Ray and {counted(sizes[-1], 'worker')}")
    with (
        ray_session(cpus=sizes[-1] + 1),
        TemporaryDirectory(prefix="lm-bench-") as folder,
        _trainer(recipe, config, sizes[-1]) as trainer,
    ):
        report_step("warming up: one iteration")
        # One rollout per worker loads the compiled loops; a group needs at least two.
        seeds, horizon_s = range(max(2, sizes[-1])), _horizon_s(config)
        trainer.algorithm.roll_out([RolloutSpec(0, seed, ALL, horizon_s) for seed in seeds])
        trainer.step()
        start = Path(folder) / "start"
        trainer.save(start)
        iterations = None  # set by the first measurement
        with _active_workers(trainer.algorithm.env_runner_group) as activate:
            for size in sizes:
                activate(size)
                report_step(f"{counted(size, 'worker')}: rollouts")
                speed = _rollout_speed(trainer.algorithm, config, size)
                report_step(f"{counted(size, 'worker')}: whole iterations")
                trainer.restore(start)
                taken = _iterations(trainer, iterations)
                iterations = len(taken)
                points.append(_point(size, speed, taken, points))
                on_point(points[-1])
    return points


def _point(
    size: int, speed: float, steps: Sequence[Mapping[str, float]], before: Sequence[Point]
) -> Point:
    seconds = fmean(step["seconds"] for step in steps)
    rollouts = fmean(step["rollout_seconds"] for step in steps)
    first = before[0] if before else Point(size, speed, 1.0, seconds, rollouts, 1.0)
    efficiency = (speed / size) / (first.rollout_decisions_per_s / first.workers)
    return Point(size, speed, efficiency, seconds, rollouts, first.iteration_seconds / seconds)


@contextmanager
def _trainer(recipe: Recipe, config: TrainingConfig, workers: int) -> Iterator[Trainer]:
    rollouts = config.rollouts.model_copy(update={"workers": workers})
    trainer = Trainer(recipe, config.model_copy(update={"rollouts": rollouts}))
    try:
        yield trainer
    finally:
        trainer.stop()


@contextmanager
def _active_workers(group: Any) -> Iterator[Callable[[int], None]]:
    """Remove all workers from RLlib's group; the function given adds them back up to a number.

    All workers are started at once, which takes as long as starting one. At the end all are back
    in the group, which stops them.
    """
    manager = group._worker_manager  # the group's own removal would stop the workers
    inactive = [manager.remove_actor(each) for each in list(manager.actor_ids())]

    def activate(size: int) -> None:
        missing = size - manager.num_actors()
        manager.add_actors([inactive.pop() for _ in range(missing)])

    try:
        yield activate
    finally:
        manager.add_actors(inactive)


def _rollout_speed(algorithm: Any, config: TrainingConfig, workers: int) -> float:
    """Decisions per wall-clock second: weights out, recordings back, no update."""
    made = batches(config, workers)
    decisions, began = 0, time.perf_counter()
    while True:
        groups: list[list[Recording]] = algorithm.roll_out(next(made))
        decisions += sum(recording.decisions for group in groups for recording in group)
        spent = time.perf_counter() - began
        if spent >= SECONDS:
            return decisions / spent


def batches(config: TrainingConfig, workers: int) -> Iterator[list[RolloutSpec]]:
    """Endless batches with the same number of new sequences for each worker."""
    sequences = workers * max(1, config.rollouts.sequences // max(1, config.rollouts.workers))
    following = 0
    while True:
        yield [
            RolloutSpec(following + sequence, action_seed, ALL, _horizon_s(config))
            for sequence in range(sequences)
            for action_seed in range(config.rollouts.per_sequence)
        ]
        following += sequences


def _horizon_s(config: TrainingConfig) -> float | None:
    horizon = config.training.horizon
    return value_at(horizon, 0) if horizon else None


def _iterations(trainer: Trainer, exactly: int | None) -> list[Mapping[str, float]]:
    """Run exactly so many iterations, or as many as start within SECONDS."""
    steps: list[Mapping[str, float]] = []
    while len(steps) != exactly:
        steps.append(trainer.step())
        spent = sum(step["seconds"] for step in steps)
        if exactly is None and len(steps) >= ITERATIONS and spent >= SECONDS:
            break
    return steps


def figures_of(system: str, points: Sequence[Point]) -> Iterator[Figure]:
    """Points as figures of `loadmaster bench`."""
    for point in points:
        name = f"{system}/scaling/workers-{point.workers}"
        speed, efficiency = point.rollout_decisions_per_s, 100 * point.rollout_efficiency
        yield Figure(f"{name}/rollout_decisions_per_s", speed, "decisions/s")
        yield Figure(f"{name}/rollout_efficiency", efficiency, "%")
        for part in ("iteration_seconds", "iteration_rollout_seconds"):
            yield Figure(f"{name}/{part}", getattr(point, part), "s", higher_is_better=False)
        yield Figure(f"{name}/iteration_speedup", point.iteration_speedup, "times")


def in_words(point: Point, fewest: int) -> str:
    rollouts = f"{short_number(point.rollout_decisions_per_s)} decisions/s in rollouts"
    iteration = f"{point.iteration_seconds:.2f} s an iteration"
    if point.workers > fewest:
        rollouts += f" ({100 * point.rollout_efficiency:.0f}% of the ideal)"
        iteration += f" ({point.iteration_speedup:.2f}x as fast as with {fewest})"
    return f"{counted(point.workers, 'worker')}: {rollouts}, {iteration}"


def write_scaling(points: Sequence[Point], title: str, folder: Path) -> None:
    """Replace table and chart atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_text_file(folder / TABLE) as file:
        pd.DataFrame(points).round(4).to_csv(file, index=False, lineterminator="\n")
    charts.save(folder / CHART, lambda: draw_scaling(points, title))


def draw_scaling(points: Sequence[Point], title: str) -> Chart:
    """Draw rollout speed beside the ideal, and seconds per iteration."""
    figure = Chart(figsize=(10, 4.4), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    rollouts, iterations = figure.subplots(1, 2)
    _draw_rollouts(rollouts, points)
    _draw_iterations(iterations, points)
    return figure


def _draw_rollouts(axes: Axes, points: Sequence[Point]) -> None:
    workers = [point.workers for point in points]
    speeds = [point.rollout_decisions_per_s for point in points]
    ideal = [speeds[0] * each / workers[0] for each in (0, workers[-1])]
    axes.plot((0, workers[-1]), ideal, color=charts.QUIET, linestyle=(0, (4, 3)), label="ideal")
    label = "measured (and how much of the ideal)"
    axes.plot(workers, speeds, color=charts.LEARNED_COLOUR, linewidth=2.2, marker="o", label=label)
    for point in points[1:]:
        axes.annotate(
            f"{100 * point.rollout_efficiency:.0f}%",
            (point.workers, point.rollout_decisions_per_s),
            xytext=(7, -9),
            color=charts.LEARNED_COLOUR,
            path_effects=[charts.HALO],
            **charts.LABEL_STYLE,
        )
    axes.set_title("Rollouts, as much for each worker", loc="left", fontsize=11)
    axes.set(xlabel="rollout workers", ylabel="decisions per second", xticks=workers)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set(xlim=(0, workers[-1] * 1.1), ylim=(0, None))
    axes.legend(loc="upper left")


def _draw_iterations(axes: Axes, points: Sequence[Point]) -> None:
    places = range(len(points))  # equally spaced, not to scale
    rollouts = [point.iteration_rollout_seconds for point in points]
    updates = [point.iteration_seconds - point.iteration_rollout_seconds for point in points]
    axes.bar(places, updates, 0.62, color=charts.PALETTE[1], label="update")
    axes.bar(places, rollouts, 0.62, bottom=updates, color=charts.LEARNED_COLOUR, label="rollouts")
    for place, point in zip(places, points, strict=True):
        text = f"{point.iteration_seconds:.2f} s"
        if place:
            text += f"\n{point.iteration_speedup:.2f}x"
        style = {**charts.LABEL_STYLE, "ha": "center", "va": "bottom", "color": charts.INK}
        axes.annotate(text, (place, point.iteration_seconds), xytext=(0, 4), **style)
    axes.set_title("Whole iterations, the same for all", loc="left", fontsize=11)
    axes.set(xlabel="rollout workers", ylabel="seconds an iteration (and times as fast)")
    axes.set_xticks(places, [str(point.workers) for point in points])
    axes.set_xlim(-0.6, max(len(points), 3) - 0.4)  # keeps a single bar narrow
    axes.grid(visible=False, axis="x")
    axes.set_ylim(0, 1.25 * max(point.iteration_seconds for point in points))
    axes.legend(loc="upper right", ncols=2)
