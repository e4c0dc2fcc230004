"""How training speeds up with rollout workers, in one run on one machine.

Two questions for each number of workers. Rollouts alone: every worker gets the same amount, so
twice the workers roll out twice the sequences. Whole iterations: the very iterations that
`loadmaster train` begins with, the same for all, so more workers share out the same work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from loadmaster.platform.bench.measurements import Figure
from loadmaster.platform.ray.session import ray_session
from loadmaster.platform.rl.rollout import Recording, RolloutSpec
from loadmaster.platform.training.config import Recipe, TrainingConfig
from loadmaster.platform.training.trainer import Trainer

SECONDS = 3.0  # of rollouts, and of iterations, for each number of workers
ITERATIONS = 2  # at the least, however long they take
ALL = 1.0  # share of decisions recorded in rollouts alone


@dataclass(frozen=True)
class Point:
    """What so many workers reached."""

    workers: int
    rollout_decisions_per_s: float
    rollout_efficiency: float  # of each worker, beside those of the smallest group
    iteration_seconds: float
    iteration_rollout_seconds: float  # of those; the others are the update
    iteration_speedup: float  # over the smallest group


class Taken(NamedTuple):
    """What one iteration took."""

    seconds: float
    rollout_seconds: float


def measure_scaling(
    recipe: Recipe,
    workers: Sequence[int],
    config: TrainingConfig,
    say: Callable[[str], None],
    reached: Callable[[Point], None],
) -> list[Point]:
    """One point for each number of workers, fewest first; `reached` hears of each at once."""
    sizes = sorted(workers)
    points: list[Point] = []
    say(f"starting Ray and {count(sizes[-1])}")
    with (
        ray_session(cpus=sizes[-1] + 1),
        TemporaryDirectory(prefix="lm-bench-") as folder,
        _trainer(recipe, config, sizes[-1]) as trainer,
    ):
        say("warming up: one iteration")
        trainer.algorithm.roll_out(_one_for_each(sizes[-1], config))  # they load compiled loops
        trainer.step()
        start = Path(folder) / "start"
        trainer.save(start)
        iterations = None  # as many for all as the first ones find time for
        with _called_up(trainer.algorithm.env_runner_group) as call_up:
            for size in sizes:
                call_up(size)
                say(f"{count(size)}: rollouts")
                speed = _rollout_speed(trainer.algorithm, config, size)
                say(f"{count(size)}: whole iterations")
                trainer.restore(start)
                taken = _iterations(trainer, iterations)
                iterations = len(taken)
                points.append(_point(size, speed, taken, points))
                reached(points[-1])
    return points


def _point(size: int, speed: float, taken: Sequence[Taken], before: Sequence[Point]) -> Point:
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
def _called_up(group: Any) -> Iterator[Callable[[int], None]]:
    """Leaves RLlib's group as few of its workers as are called up; the others wait outside.

    All start together, which takes as long as starting one does. At the end they are back in the
    group, whose own end is theirs.
    """
    manager = group._worker_manager  # the group itself would end those that leave it
    outside = [manager.remove_actor(each) for each in list(manager.actor_ids())]

    def call_up(size: int) -> None:
        missing = size - manager.num_actors()
        manager.add_actors([outside.pop() for _ in range(missing)])

    try:
        yield call_up
    finally:
        manager.add_actors(outside)


def _rollout_speed(algorithm: Any, config: TrainingConfig, workers: int) -> float:
    """Decisions per second on the clock: weights out, recordings back, nothing learnt."""
    batches = _batches(config, workers)
    decisions, began = 0, time.perf_counter()
    while True:
        groups: list[list[Recording]] = algorithm.roll_out(next(batches))
        decisions += sum(recording.decisions for group in groups for recording in group)
        spent = time.perf_counter() - began
        if spent >= SECONDS:
            return decisions / spent


def _batches(config: TrainingConfig, workers: int) -> Iterator[list[RolloutSpec]]:
    """The same number of sequences for each worker, again and again, never the same sequences."""
    sequences = workers * max(1, config.rollouts.sequences // max(1, config.rollouts.workers))
    following = 0
    while True:
        yield [
            RolloutSpec(following + sequence, luck, ALL, _horizon_s(config))
            for sequence in range(sequences)
            for luck in range(config.rollouts.per_sequence)
        ]
        following += sequences


def _one_for_each(workers: int, config: TrainingConfig) -> list[RolloutSpec]:
    """A rollout for each worker, of one sequence: two at least, to be a group."""
    return [RolloutSpec(0, luck, ALL, _horizon_s(config)) for luck in range(max(2, workers))]


def _horizon_s(config: TrainingConfig) -> float | None:
    horizon = config.training.horizon
    return horizon.at(0) if horizon else None


def _iterations(trainer: Trainer, exactly: int | None) -> list[Taken]:
    """So many, or as many as are begun in the time there is."""
    taken: list[Taken] = []
    while len(taken) != exactly:
        figures = trainer.step()
        taken.append(Taken(figures["seconds"], figures["rollout_seconds"]))
        spent = sum(each.seconds for each in taken)
        if exactly is None and len(taken) >= ITERATIONS and spent >= SECONDS:
            break
    return taken


def figures_of(system: str, points: Sequence[Point]) -> Iterator[Figure]:
    """The points as a benchmark's lines."""
    for point in points:
        name = f"{system}/scaling/workers-{point.workers}"
        speed, efficiency = point.rollout_decisions_per_s, 100 * point.rollout_efficiency
        yield Figure(f"{name}/rollout_decisions_per_s", speed, "decisions/s")
        yield Figure(f"{name}/rollout_efficiency", efficiency, "%")
        for part in ("iteration_seconds", "iteration_rollout_seconds"):
            yield Figure(f"{name}/{part}", getattr(point, part), "s", higher_is_better=False)
        yield Figure(f"{name}/iteration_speedup", point.iteration_speedup, "times")


def count(workers: int) -> str:
    return f"{workers} worker{'s' if workers > 1 else ''}"
