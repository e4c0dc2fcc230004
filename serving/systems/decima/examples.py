"""States to look at and to measure with: one by hand, two as a busy cluster has them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from loadmaster.serving.systems.decima.schema import (
    EXAMPLE,
    DecimaState,
    ExecutorClass,
    Job,
    Source,
    Stage,
)


@cache
def examples() -> Mapping[str, DecimaState]:
    """tiny: 2 jobs, 4 stages; small: 5 jobs, 30 stages; large: 100 jobs, 1,000 stages."""
    return MappingProxyType(
        {
            "tiny": DecimaState.model_validate(EXAMPLE),
            "small": busy_cluster(jobs=5, stages=6, executors=50, free=3, seed=1),
            "large": busy_cluster(jobs=100, stages=10, executors=500, free=3, seed=2),
        }
    )


def busy_cluster(jobs: int, stages: int, executors: int, free: int, seed: int) -> DecimaState:
    """Jobs midway, each with its share of the executors at work; the first one's are asked about.

    The same for the same numbers, on any machine.
    """
    draw = random.Random(seed)
    share = max(1, (executors - free) // jobs)
    made = tuple(_job(number, jobs, stages, share, draw) for number in range(jobs))
    source = Source(job=made[0].id)
    return DecimaState(
        executors=(ExecutorClass(count=executors, free=free),), jobs=made, source=source
    )


def _job(number: int, jobs: int, stages: int, share: int, draw: random.Random) -> Job:
    done = draw.randrange(stages // 2)
    made = []
    for place in range(stages):
        tasks = draw.randrange(1, 4 * share + 2)
        finished = started = 0
        if place < done:
            finished = started = tasks
        elif place == done:  # in progress; those after it wait for it
            tasks = max(tasks, share + 1)
            finished = draw.randrange(tasks - share)
            started = finished + share
        parents = {place - 1, draw.randrange(place)} if place > done else set(range(place)[-1:])
        made.append(
            Stage(
                id=str(place),
                tasks=tasks,
                task_ms=round(draw.uniform(200, 4000), 3),
                started=started,
                finished=finished,
                parents=tuple(str(parent) for parent in sorted(parents) if place > 0),
                unlocked=(number + 1) * stages + place if place <= done else 0,
            )
        )
    return Job(id=str(number), age_s=round(25.0 * (jobs - number), 3), stages=tuple(made))
