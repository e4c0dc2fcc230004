"""Speed of training with more and more rollout workers, in one run on one machine.

For each number of workers the first iterations of `loadmaster train` are measured, the same for
every number, and the parts of their time. Beside it, as many workers do the same work at once and
exchange nothing: how much faster they are is what the machine allows. From the largest number, a
calculation gives the time with more workers than the machine has.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import ray
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Chart
from ray.rllib.core.columns import Columns

from loadmaster.envs.errors import InputError, counted
from loadmaster.models.files import atomic_text_file
from loadmaster.platform.bench.measurements import Figure
from loadmaster.platform.evaluation import charts
from loadmaster.platform.evaluation.report import short_number
from loadmaster.platform.ray.session import ray_session
from loadmaster.platform.rl.base import END_SEED
from loadmaster.platform.rl.rollout import RolloutSpec
from loadmaster.platform.rl.workers import EngineRunner
from loadmaster.platform.training.config import BaseConfig, Recipe, TrainingConfig
from loadmaster.platform.training.trainer import Trainer

ROLLOUTS = 64  # an iteration, at the least: more workers need more to do
SECONDS = 4.0  # of iterations for each number of workers
ITERATIONS = 4  # at the least, however long they take
COPIED_ROLLOUTS, COPIES = 4, 3  # of each worker that exchanges nothing; repeats
FILES = TABLE, CHART, CALCULATED = "scaling.csv", "scaling.png", "calculated.csv"

# Parts of an iteration's time, as columns of the table and colours of the chart.
PARTS = {
    "rollout_seconds": "rollouts",
    "advantage_seconds": "advantages",
    "gradient_seconds": "gradients",
    "exchange_seconds": "exchange",
    "other_seconds": "calls and state",
}

# Assumptions of the calculation.
LATENCY_S = 50e-6  # of a message between two machines
BANDWIDTH = 10e9 / 8  # bytes/s of a machine's network
LARGER = (100, 1000)  # workers


@dataclass(frozen=True)
class Point:
    """An iteration with one number of workers."""

    workers: int
    rollouts: int
    iteration_seconds: float
    rollout_seconds: float
    advantage_seconds: float  # in the driver
    gradient_seconds: float  # mean over the learners
    exchange_seconds: float  # sums of gradients, and waiting for the slowest learner
    other_seconds: float
    decisions_per_s: float
    speedup: float  # relative to the smallest number of workers
    efficiency: float  # of a worker, relative to the smallest number
    # Of workers that exchange nothing, relative to the smallest number: their mean, the slowest.
    independent: float | None = None
    independent_slowest: float | None = None


def measure_scaling(
    recipe: Recipe,
    workers: Sequence[int],
    config: BaseConfig,
    report_step: Callable[[str], None],
    on_point: Callable[[Point], None],
) -> tuple[list[Point], list[Point]]:
    """Measured points, fewest workers first, each passed to `on_point` at once; calculated ones."""
    if not isinstance(config, TrainingConfig):
        raise InputError(
            f"{recipe.system} learns in one process; expected a system whose workers learn"
        )
    sizes, points = sorted(workers), list[Point]()
    config = _with_more_rollouts(config)
    report_step(f"starting Ray and {counted(sizes[-1], 'worker')}")
    with (
        ray_session(cpus=sizes[-1] + 1 + config.resources.learners),
        TemporaryDirectory(prefix="lm-bench-") as folder,
        _trainer(recipe, config, sizes[-1]) as trainer,
    ):
        report_step("warming up: one iteration")
        trainer.step()
        start = Path(folder) / "start"
        trainer.save(start)
        iterations = None  # set by the first measurement
        alone_s = 0.0  # of the fewest workers that exchange nothing
        with _active_workers(trainer.algorithm.env_runner_group) as activate:
            for size in sizes:
                activate(size)
                report_step(f"{counted(size, 'worker')}: iterations")
                trainer.restore(start)
                trainer.step()  # forms the group of learners
                taken = _iterations(trainer, iterations)
                iterations = len(taken)
                point = _point(size, taken, points)
                if not config.resources.learners:
                    report_step(f"{counted(size, 'worker')} that share nothing")
                    mean_s, slowest_s = _independent(trainer, config)
                    alone_s = alone_s or mean_s
                    more = size / sizes[0] * alone_s
                    point = replace(
                        point, independent=more / mean_s, independent_slowest=more / slowest_s
                    )
                points.append(point)
                on_point(points[-1])
        weights = sum(table.numel() for table in trainer.weights().values())
    steps = config.training.epochs * config.training.minibatches
    return points, [calculated(points[-1], more, weights, steps) for more in LARGER]


def _with_more_rollouts(config: TrainingConfig) -> TrainingConfig:
    rollouts = config.rollouts
    sequences = max(rollouts.sequences, -(-ROLLOUTS // rollouts.per_sequence))
    changed = rollouts.model_copy(update={"sequences": sequences})
    return config.model_copy(update={"rollouts": changed})


def _point(size: int, steps: Sequence[Mapping[str, float]], before: Sequence[Point]) -> Point:
    def mean(name: str) -> float:
        return fmean(step.get(name, 0.0) for step in steps)

    seconds = mean("seconds")
    parts = {name: mean(name) for name in PARTS if name != "other_seconds"}
    speedup = before[0].iteration_seconds / seconds if before else 1.0
    return Point(
        workers=size,
        rollouts=int(mean("rollouts")),
        iteration_seconds=seconds,
        **parts,
        other_seconds=max(0.0, seconds - sum(parts.values())),
        decisions_per_s=mean("decisions") / seconds,
        speedup=speedup,
        efficiency=speedup * (before[0].workers if before else size) / size,
    )


def calculated(point: Point, workers: int, weights: int, steps: int) -> Point:
    """The point with more workers, each with as many rollouts as now.

    Rollouts and gradients take as long as now. The driver's parts grow with the workers: it makes
    the calls and computes the advantages of all rollouts. A sum over the gradients is an exchange
    in 2 log2(workers) rounds; waiting for the slowest learner stays as it is.
    """
    more = workers / point.workers

    def network_s(size: int) -> float:
        return steps * (2 * math.ceil(math.log2(size)) * LATENCY_S + 8 * weights / BANDWIDTH)

    waiting_s = point.exchange_seconds
    parts = {
        "rollout_seconds": point.rollout_seconds,
        "advantage_seconds": point.advantage_seconds * more,
        "gradient_seconds": point.gradient_seconds,
        "exchange_seconds": waiting_s + network_s(workers),
        "other_seconds": point.other_seconds * more,
    }
    seconds = sum(parts.values())
    decisions = point.decisions_per_s * point.iteration_seconds * more
    speedup = point.speedup * (decisions / seconds) / point.decisions_per_s
    return Point(
        workers=workers,
        rollouts=round(point.rollouts * more),
        iteration_seconds=seconds,
        **parts,
        decisions_per_s=decisions / seconds,
        speedup=speedup,
        efficiency=speedup / (point.speedup / point.efficiency) / more,
    )


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


def _iterations(trainer: Trainer, exactly: int | None) -> list[Mapping[str, float]]:
    """Run exactly so many iterations, or as many as start within SECONDS."""
    steps: list[Mapping[str, float]] = []
    began = time.perf_counter()
    while len(steps) != exactly:
        steps.append(trainer.step())
        spent = time.perf_counter() - began
        if exactly is None and len(steps) >= ITERATIONS and spent >= SECONDS:
            break
    return steps


def _independent(trainer: Trainer, config: TrainingConfig) -> tuple[float, float]:
    """Seconds of every worker for the same rollouts and the same steps alone: mean and slowest."""
    weights = ray.put(trainer.algorithm.module_weights())
    learning = config.training
    share = partial(
        _learn_alone,
        weights=weights,
        keep=config.rollouts.keep,
        epochs=learning.epochs,
        minibatches=learning.minibatches,
    )
    repeats = []
    for _ in range(1 + COPIES):
        seconds = trainer.algorithm.env_runner_group.foreach_env_runner(
            share, local_env_runner=False
        )
        repeats.append((fmean(seconds), max(seconds)))
    means, slowest = zip(*repeats[1:], strict=True)
    return median(means), median(slowest)


def _learn_alone(
    runner: EngineRunner, weights: Any, keep: float, epochs: int, minibatches: int
) -> float:
    """Roll out and learn without advantages, outside of the group of learners; its seconds."""
    runner.group, runner.learner.peers = 0, None
    specs = [RolloutSpec(END_SEED - 1 - own, own, keep) for own in range(COPIED_ROLLOUTS)]
    own_weights = ray.get(weights)
    began = time.perf_counter()
    samples = runner.sample(own_weights, specs)
    runner.call_learner(
        "learn",
        specs,
        more=[{Columns.ADVANTAGES: np.zeros(len(own.kept), np.float32)} for own in samples],
        epochs=epochs,
        minibatches=minibatches,
        learning_rate=0.0,
        seed=0,
    )
    return time.perf_counter() - began


def figures_of(system: str, points: Sequence[Point]) -> Iterator[Figure]:
    """Points as figures of `loadmaster bench`."""
    for point in points:
        name = f"{system}/scaling/workers-{point.workers}"
        yield Figure(f"{name}/decisions_per_s", point.decisions_per_s, "decisions/s")
        for part in ("iteration_seconds", *PARTS):
            yield Figure(f"{name}/{part}", getattr(point, part), "s", higher_is_better=False)
        yield Figure(f"{name}/speedup", point.speedup, "times")
        if point.independent is not None and point.independent_slowest is not None:
            yield Figure(f"{name}/independent", point.independent, "times")
            yield Figure(f"{name}/independent_slowest", point.independent_slowest, "times")


def in_words(point: Point, fewest: int) -> str:
    speed = f"{short_number(point.decisions_per_s)} decisions/s"
    iteration = f"{point.iteration_seconds:.2f} s an iteration of {point.rollouts} rollouts"
    if point.workers > fewest:
        iteration += f" ({point.speedup:.2f}x as fast as with {fewest}"
        if point.independent is not None:
            iteration += f"; sharing nothing {point.independent:.2f}x"
        iteration += ")"
    return f"{counted(point.workers, 'worker')}: {iteration}, {speed}"


def write_scaling(
    points: Sequence[Point], larger: Sequence[Point], title: str, folder: Path
) -> None:
    """Replace tables and chart atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in ((TABLE, points), (CALCULATED, larger)):
        if rows:
            with atomic_text_file(folder / name) as file:
                pd.DataFrame(rows).round(4).to_csv(file, index=False, lineterminator="\n")
    charts.save(folder / CHART, lambda: draw_scaling(points, title))


def draw_scaling(points: Sequence[Point], title: str) -> Chart:
    """Draw the speedup with the ideal, and the parts of an iteration."""
    figure = Chart(figsize=(10, 4.4), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    speedup, parts = figure.subplots(1, 2)
    sizes, speedups = zip(*((point.workers, point.speedup) for point in points), strict=True)
    limits = [(point.workers, point.independent) for point in points if point.independent]
    charts.draw_speedup(
        speedup, sizes, speedups, "rollout workers", "Times as fast, end to end", limits
    )
    _draw_parts(parts, points)
    return figure


def _draw_parts(axes: Axes, points: Sequence[Point]) -> None:
    places = range(len(points))  # equally spaced, not to scale
    below = [0.0] * len(points)
    colours = (charts.LEARNED_COLOUR, *charts.PALETTE[1:])
    for (name, label), colour in zip(PARTS.items(), colours, strict=False):
        seconds = [getattr(point, name) for point in points]
        axes.bar(places, seconds, 0.62, bottom=below, color=colour, label=label)
        below = [low + own for low, own in zip(below, seconds, strict=True)]
    for place, point in zip(places, points, strict=True):
        style = {**charts.LABEL_STYLE, "ha": "center", "va": "bottom", "color": charts.INK}
        text = f"{point.iteration_seconds:.2f} s"
        axes.annotate(text, (place, below[place]), xytext=(0, 4), **style)
    axes.set_title(
        f"Where an iteration's time goes ({points[0].rollouts} rollouts)", loc="left", fontsize=11
    )
    axes.set(xlabel="rollout workers", ylabel="seconds")
    axes.set_xticks(places, [str(point.workers) for point in points])
    axes.set_xlim(-0.6, max(len(points), 3) - 0.4)  # keeps a single bar narrow
    axes.grid(visible=False, axis="x")
    axes.set_ylim(0, 1.2 * max(below))
    axes.legend(loc="upper right")
