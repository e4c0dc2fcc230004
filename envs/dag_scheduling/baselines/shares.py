"""Policies that share the cluster among jobs: FIFO, fair, weighted fair."""

from __future__ import annotations

import numpy as np

from loadmaster.envs.compiled import inner
from loadmaster.envs.dag_scheduling import observation as seen
from loadmaster.envs.dag_scheduling.observation import Observation

EVERYTHING = 1e9  # as exponent of the work: every job may have the whole cluster (FIFO)


@inner
def total_weight(view: Observation, alpha: float) -> float:
    """Sum of work^alpha over the jobs that have tasks to give away."""
    whole = 0.0
    if alpha != EVERYTHING:
        for job in range(int(view.cluster[seen.JOBS])):
            if view.jobs[job, seen.UNPLACED] > 0:
                whole += view.jobs[job, seen.WORK_S] ** alpha
    return whole


@inner
def executor_cap(view: Observation, job: int, alpha: float, whole: float) -> int:
    """The job's share of the executors, by work^alpha of the `whole`.

    alpha 0 is the fair share ceil(E / jobs), 1 the naive weighted one; EVERYTHING is no cap.
    """
    total = view.cluster[seen.TOTAL_EXECUTORS]
    if alpha == EVERYTHING or whole <= 0:
        return int(total)
    # The small allowance keeps 50 * (1 / 5) at 10, not at 11.
    return int(np.ceil(total * view.jobs[job, seen.WORK_S] ** alpha / whole - 1e-9))


@inner
def first_stage_of(view: Observation, job: int) -> int:
    """The job's schedulable stage that became runnable first, else its first one; -1 for none."""
    best, best_unlocked = -1, np.float32(np.inf)
    for row in range(int(view.cluster[seen.STAGES])):
        if view.stage_job[row] != job or view.schedulable[row] == 0:
            continue
        unlocked = np.float32(1e30)
        if view.stages[row, seen.RUNNABLE] == 1:
            unlocked = view.stages[row, seen.UNLOCKED]
        if unlocked < best_unlocked:
            best, best_unlocked = row, unlocked
    return best


@inner
def limit_for(view: Observation, row: int, executors: int) -> int:
    """The parallelism limit that gives `executors` of the free ones to this stage."""
    return int(view.jobs[view.stage_job[row], seen.MIN_LIMIT]) - 1 + executors


@inner
def own_room(view: Observation, job: int, cap: int, release: bool) -> int:
    """How many of its own free executors the source job keeps: all, or what its share allows."""
    free = int(view.cluster[seen.FREE_EXECUTORS])
    return min(free, cap - int(view.jobs[job, seen.EXECUTORS]) + free) if release else free


@inner
def share(view: Observation, alpha: float, release: bool) -> tuple[int, int]:
    """Executors stay with their job while it has work; others go to the first job below its cap.

    With `release`, those beyond their job's share leave it as well, if another job has room.
    """
    jobs, free = int(view.cluster[seen.JOBS]), int(view.cluster[seen.FREE_EXECUTORS])
    whole = total_weight(view, alpha)
    own = -1
    for job in range(jobs):
        if view.jobs[job, seen.IS_SOURCE] == 1:
            own = first_stage_of(view, job)
            room = own_room(view, job, executor_cap(view, job, alpha, whole), release)
            if own >= 0 and room > 0:
                return own, limit_for(view, own, room)
    for job in range(jobs):
        room = executor_cap(view, job, alpha, whole) - int(view.jobs[job, seen.EXECUTORS])
        if room > 0 and view.jobs[job, seen.IS_SOURCE] == 0:
            row = first_stage_of(view, job)
            if row >= 0:
                return row, limit_for(view, row, min(free, room))
    if own >= 0:
        return own, limit_for(view, own, free)
    return len(view.schedulable) - 1, 1  # every job has its share: the rest idles
