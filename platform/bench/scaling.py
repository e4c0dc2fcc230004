"""How training speeds up with rollout workers, in one run on one machine.

Every worker gets the same amount of work, whatever their number: twice the workers roll out twice
the sequences. The group of workers grows while it is measured, so each starts only once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from loadmaster.platform.bench.results import Figure
from loadmaster.platform.bench.training import every_decision
from loadmaster.platform.ray_session import ray_session
from loadmaster.platform.rllib.recording import Assignment, Recording
from loadmaster.platform.systems import find_system
from loadmaster.platform.training.config import TrainingConfig
from loadmaster.platform.training.trainer import Trainer, quiet_rllib

SECONDS = 3.0  # of rollouts for each number of workers


@dataclass(frozen=True)
class Point:
    """What so many workers reached."""

    workers: int
    rollouts_per_s: float  # decisions, in rollouts alone
    iterations_per_s: float  # decisions, in whole iterations: rollouts and the update
    rollout_efficiency: float  # of each worker, beside those of the smallest group
    iteration_efficiency: float


def scaling_config(system: str) -> TrainingConfig:
    """The system's defaults, so that all sizes do the same work."""
    return every_decision(find_system(system).recipe.config_class())


def measure_scaling(
    system: str, workers: Sequence[int], config: TrainingConfig, say: Callable[[str], None]
) -> list[Point]:
    """One point for each number of workers, fewest first."""
    sizes = sorted(workers)
    per_worker = max(1, config.rollouts.sequences // max(1, config.rollouts.workers))
    first = config.rollouts.model_copy(update={"workers": sizes[0]})
    say(f"starting Ray and {_workers(sizes[0])}")
    speeds = []
    with ray_session(cpus=sizes[-1] + 1):
        trainer = Trainer(find_system(system).recipe, config.model_copy(update={"rollouts": first}))
        try:
            batch = next(_batches(config, per_worker))
            trainer.algorithm.learn(trainer.algorithm.roll_out(batch))  # the first is slower
            for size in sizes:
                missing = size - trainer.algorithm.env_runner_group.num_remote_env_runners()
                if missing:
                    say(f"adding {_workers(missing)}")
                    with quiet_rllib():
                        trainer.algorithm.env_runner_group.add_workers(missing, validate=True)
                say(f"{_workers(size)}: rollouts, then one whole iteration")
                speeds.append(_speeds(trainer.algorithm, config, size * per_worker))
        finally:
            trainer.stop()
    return [
        Point(
            size,
            rollouts,
            iterations,
            (rollouts / size) / (speeds[0][0] / sizes[0]),
            (iterations / size) / (speeds[0][1] / sizes[0]),
        )
        for size, (rollouts, iterations) in zip(sizes, speeds, strict=True)
    ]


def _speeds(algorithm: Any, config: TrainingConfig, sequences: int) -> tuple[float, float]:
    """Decisions per second on the clock: in rollouts, and in a whole iteration."""
    batches = _batches(config, sequences)
    algorithm.roll_out(next(batches))  # workers load their compiled loops
    decisions, began = 0, time.perf_counter()
    while True:
        groups = algorithm.roll_out(next(batches))
        decisions += _decisions(groups)
        spent = time.perf_counter() - began
        if spent >= SECONDS:
            break
    began = time.perf_counter()
    groups = algorithm.roll_out(next(batches))
    algorithm.learn(groups)
    return decisions / spent, _decisions(groups) / (time.perf_counter() - began)


def _batches(config: TrainingConfig, sequences: int) -> Iterator[list[Assignment]]:
    """An iteration's rollouts, again and again, never of the same sequences."""
    horizon = config.training.horizon
    horizon_s = horizon.at(0) if horizon else None
    following = 0
    while True:
        yield [
            Assignment(following + sequence, luck, config.rollouts.keep, horizon_s)
            for sequence in range(sequences)
            for luck in range(config.rollouts.per_sequence)
        ]
        following += sequences


def figures_of(system: str, points: Sequence[Point]) -> Iterator[Figure]:
    """The points as a benchmark's lines."""
    for point in points:
        name = f"{system}/scaling/workers-{point.workers}"
        yield Figure(f"{name}/rollout_decisions_per_s", point.rollouts_per_s, "decisions/s")
        yield Figure(f"{name}/rollout_efficiency", 100 * point.rollout_efficiency, "%")
        yield Figure(f"{name}/iteration_decisions_per_s", point.iterations_per_s, "decisions/s")
        yield Figure(f"{name}/iteration_efficiency", 100 * point.iteration_efficiency, "%")


def _decisions(groups: Sequence[Sequence[Recording]]) -> int:
    return sum(recording.decisions for group in groups for recording in group)


def _workers(count: int) -> str:
    return f"{count} worker{'s' if count > 1 else ''}"
