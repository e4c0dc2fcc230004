"""Six generated jobs, two small, two medium and two large.

They have the sizes of six production jobs in Alibaba's trace of 2018 that ran for over 2,000
minutes: tasks, sources, sinks, levels and edges, and the share of tasks that take about as long as
the longest; the others take a tenth of that or less, and never need a second instance.
"""

from typing import NamedTuple

import numpy as np

from loadmaster.envs.stream_scaling.jobs import Job, Task, build_job


class Size(NamedTuple):
    tasks: int
    sources: int
    sinks: int
    levels: int  # of tasks behind the sources
    edges: int
    long: int  # tasks with a duration close to the longest


SIZES = {
    "small-1": Size(10, 4, 1, 3, 11, 10),
    "small-2": Size(13, 1, 1, 2, 22, 13),
    "medium-1": Size(21, 8, 1, 4, 23, 9),
    "medium-2": Size(25, 6, 1, 6, 35, 25),
    "large-1": Size(52, 1, 1, 7, 91, 37),
    "large-2": Size(57, 7, 5, 6, 99, 33),
}
LONG, SHORT = (0.62, 1.0), (0.02, 0.1)  # durations relative to the longest
CHAINED = 0.2  # share of the tasks with one parent
SEED = 2022


def generated_job(name: str) -> Job:
    """The job of that name; always the same."""
    size = SIZES[name]
    rng = np.random.default_rng([SEED, list(SIZES).index(name)])
    level = _levels(size, rng)
    parents = _parents(size, level, rng)
    durations = rng.uniform(*SHORT, size.tasks)
    long = rng.permutation(size.tasks)[: size.long]
    durations[long] = rng.uniform(*LONG, size.long)
    durations[long[0]] = 1.0
    children = np.bincount(np.concatenate([own for own in parents if own]), minlength=size.tasks)
    tasks: list[Task] = []
    for number, own in enumerate(parents):
        kind = "source" if not own else "task" if children[number] else "sink"
        tasks.append(
            Task(
                name=f"{kind}-{number + 1}",
                duration=float(durations[number]),
                parents=tuple(tasks[parent].name for parent in own),
                chained=len(own) == 1 and bool(rng.random() < CHAINED),
            )
        )
    return build_job(name, tasks)


def _levels(size: Size, rng: np.random.Generator) -> list[int]:
    """Level of each task, in ascending order; every level has one, the last the sinks."""
    between = size.tasks - size.sources - size.sinks
    inner = [*range(1, size.levels), *rng.integers(1, size.levels, between - size.levels + 1)]
    return [0] * size.sources + sorted(inner) + [size.levels] * size.sinks


def _parents(size: Size, level: list[int], rng: np.random.Generator) -> list[list[int]]:
    """Parents of each task: one of the level before, then random ones of earlier levels.

    Every task but the sinks gets a child.
    """
    numbers = range(size.tasks)
    parents: list[list[int]] = [[] for _ in numbers]

    def earlier(child: int) -> list[int]:
        return [one for one in numbers if level[one] < level[child]]

    for child in numbers:
        if level[child]:
            before = [one for one in numbers if level[one] == level[child] - 1]
            parents[child].append(int(rng.choice(before)))
    for parent in range(size.tasks - size.sinks):
        if not any(parent in own for own in parents):
            later = [one for one in numbers if level[one] > level[parent]]
            parents[int(rng.choice(later))].append(parent)
    behind = [one for one in numbers if level[one]]
    while sum(map(len, parents)) < size.edges:
        child = int(rng.choice(behind))
        free = [one for one in earlier(child) if one not in parents[child]]
        if free:
            parents[child].append(int(rng.choice(free)))
    return [sorted(own) for own in parents]
