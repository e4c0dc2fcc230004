"""Speed of training with more and more rollout workers, in one run on one machine.

For each number of workers two things are measured. Rollouts alone: every worker gets the same
amount of work, so twice the workers run twice the sequences. Whole iterations: the first iterations
of `loadmaster train`, the same for every number of workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from loadmaster.envs.errors import counted
from loadmaster.platform.bench.measurements import Figure
from loadmaster.platform.ray.session import ray_session
from loadmaster.platform.rl.algorithm import value_at
from loadmaster.platform.rl.rollout import Recording, RolloutSpec
from loadmaster.platform.training.config import Recipe, TrainingConfig
from loadmaster.platform.training.trainer import Trainer

SECONDS = 3.0  # of rollouts, and of iterations, for each number of workers
ITERATIONS = 2  # at the least, however long they take
ALL = 1.0  # share of decisions recorded in rollouts alone


@dataclass(frozen=True)
class Point:
    """Measurements with one number of workers."""

    workers: int
    rollout_decisions_per_s: float
    rollout_efficiency: float  # per worker, relative to the smallest number of workers
    iteration_seconds: float
    iteration_rollout_seconds: float  # of those; the others are the update
    iteration_speedup: float  # relative to the smallest number of workers


class IterationTime(NamedTuple):
    seconds: float
    rollout_seconds: float


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
        trainer.algorithm.roll_out(_one_for_each(sizes[-1], config))  # loads the compiled loops
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
    size: int, speed: float, taken: Sequence[IterationTime], before: Sequence[Point]
) -> Point:
    seconds = sum(each.seconds for each in taken) / len(taken)
    rollouts = sum(each.rollout_seconds for each in taken) / len(taken)
    if not before:
        return Point(size, speed, 1.0, seconds, rollouts, 1.0)
    first = before[0]
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
    batches = _batches(config, workers)
    decisions, began = 0, time.perf_counter()
    while True:
        groups: list[list[Recording]] = algorithm.roll_out(next(batches))
        decisions += sum(recording.decisions for group in groups for recording in group)
        spent = time.perf_counter() - began
        if spent >= SECONDS:
            return decisions / spent


def _batches(config: TrainingConfig, workers: int) -> Iterator[list[RolloutSpec]]:
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


def _one_for_each(workers: int, config: TrainingConfig) -> list[RolloutSpec]:
    """One rollout per worker of the same sequence; at least two, which a group needs."""
    horizon_s = _horizon_s(config)
    return [RolloutSpec(0, seed, ALL, horizon_s) for seed in range(max(2, workers))]


def _horizon_s(config: TrainingConfig) -> float | None:
    horizon = config.training.horizon
    return value_at(horizon, 0) if horizon else None


def _iterations(trainer: Trainer, exactly: int | None) -> list[IterationTime]:
    """Run exactly so many iterations, or as many as start within SECONDS."""
    taken: list[IterationTime] = []
    while len(taken) != exactly:
        figures = trainer.step()
        taken.append(IterationTime(figures["seconds"], figures["rollout_seconds"]))
        spent = sum(each.seconds for each in taken)
        if exactly is None and len(taken) >= ITERATIONS and spent >= SECONDS:
            break
    return taken


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
