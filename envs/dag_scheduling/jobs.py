"""Jobs as data: a bank of DAG templates in flat arrays, ready for compiled code.

A workload describes its jobs once, as `Job` and `Stage` records; `build_workload` checks them and
lays them out in a `JobBank`. Episodes then refer to templates by number and copy nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.errors import InputError

# The three kinds of task duration a profile distinguishes.
FRESH, FIRST, REST = 0, 1, 2

Waves = Mapping[int, Sequence[int]]  # executors the job held when measured -> task durations, ms


@dataclass(frozen=True)
class Stage:
    """One stage of a job: identical tasks that may run in parallel once all parents are done."""

    tasks: int
    parents: tuple[int, ...]
    first: Waves  # an executor's first task in this stage
    rest: Waves = field(default_factory=dict)  # its later tasks in this stage
    fresh: Waves = field(default_factory=dict)  # its first task in this job
    cpu: float = 0.0  # what an executor must offer, 1.0 being the largest there is
    memory: float = 0.0


@dataclass(frozen=True)
class Job:
    """A job template: stages by number; a stage's parents may stand anywhere in the list."""

    name: str
    stages: tuple[Stage, ...]


class JobBank(NamedTuple):
    """All templates of a workload. T templates, S stages in all, L executor levels."""

    first_stage: NDArray[np.int64]  # (T + 1,) stages of template t: first_stage[t]..[t + 1]
    tasks: NDArray[np.int64]  # (S,)
    mean_ms: NDArray[np.float64]  # (S,) over every duration known of the stage
    critical_ms: NDArray[np.float64]  # (S,) longest path of mean durations to the job's end
    height: NDArray[np.int64]  # (S,) edges on the longest path to the job's end; 0 = a leaf
    demand: NDArray[np.float64]  # (S, 2) CPU and memory an executor must offer
    work_ms: NDArray[np.float64]  # (T,) sum over stages of tasks * mean duration
    child_first: NDArray[np.int64]  # (S + 1,)
    child: NDArray[np.int64]  # (edges,) numbered within the job
    parent_first: NDArray[np.int64]  # (S + 1,)
    parent: NDArray[np.int64]  # (edges,) numbered within the job
    levels: NDArray[np.int64]  # (L,) executor counts that have durations of their own, ascending
    wave_first: NDArray[np.int64]  # (S, 3, L) where the list starts in durations_ms
    wave_count: NDArray[np.int64]  # (S, 3, L) never 0
    cold_start: NDArray[np.int64]  # (S, L) 1: no fresh list was measured, add the warm-up delay
    durations_ms: NDArray[np.int32]  # all lists, one after another


@dataclass(frozen=True)
class Workload:
    """A named bank of job templates."""

    name: str
    bank: JobBank
    job_names: tuple[str, ...]
    stages_max: int  # the most stages any template has


def build_workload(name: str, jobs: Sequence[Job]) -> Workload:
    """Check every job and lay the templates out in arrays."""
    if not jobs:
        raise InputError(f"workload {name!r} holds no jobs; expected at least one")
    levels = sorted({level for job in jobs for stage in job.stages for level in stage.first})
    pool = _DurationPool(levels)
    offsets, mean, critical, height, work = [0], [], [], [], []
    children: list[list[int]] = []
    parents: list[Sequence[int]] = []
    for job in jobs:
        order = _topological_order(job)
        job_mean = [pool.add(job, number) for number in range(len(job.stages))]
        job_children: list[list[int]] = [[] for _ in job.stages]
        for number, stage in enumerate(job.stages):
            for parent in stage.parents:
                job_children[parent].append(number)
        job_critical, job_height = list(job_mean), [0] * len(job.stages)
        for number in reversed(order):
            for child in job_children[number]:
                job_critical[number] = max(
                    job_critical[number], job_mean[number] + job_critical[child]
                )
                job_height[number] = max(job_height[number], 1 + job_height[child])
        offsets.append(offsets[-1] + len(job.stages))
        mean += job_mean
        critical += job_critical
        height += job_height
        work.append(sum(s.tasks * m for s, m in zip(job.stages, job_mean, strict=True)))
        children += job_children
        parents += [stage.parents for stage in job.stages]
    stages = [stage for job in jobs for stage in job.stages]
    bank = JobBank(
        first_stage=np.array(offsets, np.int64),
        tasks=np.array([stage.tasks for stage in stages], np.int64),
        mean_ms=np.array(mean),
        critical_ms=np.array(critical),
        height=np.array(height, np.int64),
        demand=np.array([(stage.cpu, stage.memory) for stage in stages], np.float64),
        work_ms=np.array(work),
        child_first=_starts(children),
        child=np.array([c for group in children for c in group], np.int64),
        parent_first=_starts(parents),
        parent=np.array([p for group in parents for p in group], np.int64),
        levels=np.array(levels, np.int64),
        wave_first=np.array(pool.starts, np.int64),
        wave_count=np.array(pool.counts, np.int64),
        cold_start=np.array(pool.cold, np.int64),
        durations_ms=np.array(pool.durations, np.int32),
    )
    return Workload(
        name, bank, tuple(job.name for job in jobs), max(len(job.stages) for job in jobs)
    )


def _starts(groups: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum([len(group) for group in groups])]).astype(np.int64)


def _topological_order(job: Job) -> list[int]:
    """Parents before children, or an InputError for what is no DAG."""
    if not job.stages:
        raise InputError(f"job {job.name!r} has no stages; expected at least one")
    left, children = [], [[] for _ in job.stages]  # type: tuple[list[int], list[list[int]]]
    for number, stage in enumerate(job.stages):
        if stage.tasks < 1:
            raise InputError(
                f"job {job.name!r}: stage {number} has {stage.tasks} tasks; expected 1 or more"
            )
        for parent in stage.parents:
            if not 0 <= parent < len(job.stages):
                raise InputError(
                    f"job {job.name!r}: stage {number} names parent {parent}; "
                    f"expected 0 to {len(job.stages) - 1}"
                )
            children[parent].append(number)
        left.append(len(stage.parents))
    order = [number for number, count in enumerate(left) if count == 0]
    for number in order:  # grows while it is walked: Kahn's algorithm
        for child in children[number]:
            left[child] -= 1
            if left[child] == 0:
                order.append(child)
    if len(order) < len(job.stages):
        stuck = sorted(set(range(len(job.stages))) - set(order))
        raise InputError(
            f"job {job.name!r} is cyclic: stages {stuck} wait for one another; expected a DAG"
        )
    return order


class _DurationPool:
    """Collects duration lists, and settles once which list serves where a profile has a gap."""

    def __init__(self, levels: Sequence[int]) -> None:
        self.levels = levels
        self.durations: list[int] = []
        self.starts: list[Any] = []  # (S, 3, L)
        self.counts: list[Any] = []  # (S, 3, L)
        self.cold: list[list[int]] = []  # (S, L)

    def add(self, job: Job, number: int) -> float:
        """Store stage `number` of `job`; its mean duration in ms."""
        stage = job.stages[number]
        everything = [d for w in (stage.first, stage.rest, stage.fresh) for ds in w.values() for d in ds]
        if not everything or min(everything) < 0:
            raise InputError(
                f"job {job.name!r}: stage {number} has "
                f"{'a negative task duration' if everything else 'no task durations'}; "
                "expected at least one, all of 0 ms or more"
            )
        placed: dict[int, tuple[int, int]] = {}  # id of a list -> where it lies

        def place(durations: Sequence[int]) -> tuple[int, int]:
            if id(durations) not in placed:
                placed[id(durations)] = (len(self.durations), len(durations))
                self.durations += [round(d) for d in durations]
            return placed[id(durations)]

        rows: list[list[tuple[int, int]]] = [[], [], []]
        cold = []
        measured = [level for level in self.levels if level in stage.first]
        for level in self.levels:
            # A level the stage was never measured at (it has fewer tasks than that): the largest.
            key = level if level in stage.first else measured[-1]
            fresh, first, rest = (w.get(key, ()) for w in (stage.fresh, stage.first, stage.rest))
            some = first or fresh or rest or everything
            rows[FRESH].append(place(fresh or some))
            rows[FIRST].append(place(first or some))
            rows[REST].append(place(rest or some))
            cold.append(0 if fresh else 1)
        self.starts.append([[start for start, _ in row] for row in rows])
        self.counts.append([[count for _, count in row] for row in rows])
        self.cold.append(cold)
        return float(np.mean(everything))
