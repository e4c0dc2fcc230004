"""From a rule's number to its decision, in compiled code."""

from __future__ import annotations

import numpy as np

from loadmaster.envs.compiled import compiled, njit_inline, njit_internal
from loadmaster.envs.dag_scheduling import baselines as rule
from loadmaster.envs.dag_scheduling import observation as seen
from loadmaster.envs.dag_scheduling.observation import Observation
from loadmaster.envs.random import splitmix64

# Policies that share the cluster among jobs: FIFO, fair, weighted fair.


EVERYTHING = 1e9  # as exponent of the work: every job may have the whole cluster (FIFO)


@njit_internal
def total_weight(view: Observation, alpha: float) -> float:
    """Sum of work^alpha over the jobs that have tasks to give away."""
    whole = 0.0
    if alpha != EVERYTHING:
        for job in range(int(view.cluster[seen.JOBS])):
            if view.jobs[job, seen.UNPLACED] > 0:
                whole += view.jobs[job, seen.WORK_S] ** alpha
    return whole


@njit_internal
def executor_cap(view: Observation, job: int, alpha: float, whole: float) -> int:
    """The job's share of the executors, by work^alpha of the `whole`.

    alpha 0 is the fair share ceil(E / jobs), 1 the naive weighted one; EVERYTHING is no cap.
    """
    total = view.cluster[seen.TOTAL_EXECUTORS]
    if alpha == EVERYTHING or whole <= 0:
        return int(total)
    # The small allowance keeps 50 * (1 / 5) at 10, not at 11.
    return int(np.ceil(total * view.jobs[job, seen.WORK_S] ** alpha / whole - 1e-9))


@njit_internal
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


@njit_internal
def limit_for(view: Observation, row: int, executors: int) -> int:
    """The parallelism limit that gives `executors` of the free ones to this stage."""
    return int(view.jobs[view.stage_job[row], seen.MIN_LIMIT]) - 1 + executors


@njit_internal
def own_room(view: Observation, job: int, cap: int, release: bool) -> int:
    """How many of its own free executors the source job keeps: all, or what its share allows."""
    free = int(view.cluster[seen.FREE_EXECUTORS])
    return min(free, cap - int(view.jobs[job, seen.EXECUTORS]) + free) if release else free


@njit_internal
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


# Policies that rank stages and give the best one all it can use.


@njit_inline
def shortest_job_critical_path(view: Observation) -> tuple[int, int]:
    """The job with the least work in all; in it, the stage with the longest way to the end."""
    best = -1
    for row in range(int(view.cluster[seen.STAGES])):
        if view.schedulable[row] == 0:
            continue
        if best >= 0:
            work = view.jobs[view.stage_job[row], seen.WORK_S]
            least = view.jobs[view.stage_job[best], seen.WORK_S]
            same_job = view.stage_job[row] == view.stage_job[best]
            longer = view.stages[row, seen.CRITICAL_S] > view.stages[best, seen.CRITICAL_S]
            if not (work < least or (same_job and longer)):
                continue
        best = row
    return best, int(view.cluster[seen.TOTAL_EXECUTORS])


@njit_internal
def alignment(view: Observation, row: int) -> float:
    """How well a stage fills what is free: executors it can use times what it asks of each."""
    usable = min(view.stages[row, seen.UNASSIGNED], view.stages[row, seen.FITTING])
    asked = 1.0 + view.stages[row, seen.CPU] + view.stages[row, seen.MEMORY]
    return usable / view.cluster[seen.TOTAL_EXECUTORS] * asked


@njit_inline
def pack(view: Observation) -> tuple[int, int]:
    """Tetris (SIGCOMM 2014): alignment, less the job's remaining work on the same scale.

    An executor stays with its job while that has a stage for it: Tetris penalises what is remote,
    and a move between jobs is remote indeed.
    """
    stages = int(view.cluster[seen.STAGES])
    packed, work, at_home = 0.0, 0.0, False
    for row in range(stages):
        if view.schedulable[row] == 1:
            packed += alignment(view, row)
            work += view.jobs[view.stage_job[row], seen.WORK_LEFT_S]
            at_home = at_home or view.jobs[view.stage_job[row], seen.IS_SOURCE] == 1
    scale = packed / max(work, 1e-9)  # mean alignment over mean work: Tetris' epsilon
    best, best_score = -1, -np.inf
    for row in range(stages):
        job = view.stage_job[row]
        if view.schedulable[row] == 1 and at_home == (view.jobs[job, seen.IS_SOURCE] == 1):
            score = alignment(view, row) - scale * view.jobs[job, seen.WORK_LEFT_S]
            if score > best_score:
                best, best_score = row, score
    return best, int(view.cluster[seen.TOTAL_EXECUTORS])


@njit_inline
def troublesome_first(
    view: Observation, alpha: float, threshold: float, release: bool
) -> tuple[int, int]:
    """Graphene* (OSDI 2016, as Decima's authors adapted it): long or demanding stages first.

    A stage is troublesome if its tasks are nearly as long, or ask nearly as much, as any of its
    job (by `threshold`). What leads to one counts as one. Jobs are held to their weighted shares.
    """
    stages, free = int(view.cluster[seen.STAGES]), int(view.cluster[seen.FREE_EXECUTORS])
    whole = total_weight(view, alpha)
    best, best_score, best_room = -1, -np.inf, 0
    job, own, room, longest, hungriest = -1, False, 0, 0.0, 0.0
    for row in range(stages):
        if view.stage_job[row] != job:  # rows come job by job
            job = view.stage_job[row]
            own = view.jobs[job, seen.IS_SOURCE] == 1
            cap = executor_cap(view, job, alpha, whole)
            room = min(free, cap - int(view.jobs[job, seen.EXECUTORS]))
            if own:
                room = own_room(view, job, cap, release)
            longest, hungriest = 0.0, 0.0
            other = row
            while other < stages and view.stage_job[other] == job:
                longest = max(longest, view.stages[other, seen.LONGEST_AHEAD_S])
                hungriest = max(hungriest, view.stages[other, seen.DEMAND_AHEAD])
                other += 1
        if view.schedulable[row] == 0 or (room <= 0 and not own):
            continue
        troublesome = view.stages[row, seen.LONGEST_AHEAD_S] >= threshold * longest or (
            hungriest > 0 and view.stages[row, seen.DEMAND_AHEAD] >= threshold * hungriest
        )
        # Own executors first (no move) but last beyond the share, then troublesome stages, then
        # the better packing.
        home = 0.0 if not own else (100.0 if room > 0 else -100.0)
        score = home + 10.0 * troublesome + alignment(view, row)
        if score > best_score:
            best, best_score, best_room = row, score, room if room > 0 else free
    if best == -1:
        return len(view.schedulable) - 1, 1
    return best, limit_for(view, best, best_room)


@njit_inline
def any_legal(view: Observation, seed: int, count: int) -> tuple[int, int]:
    """A stage and a limit at random among the legal ones; idling is not among them."""
    stages = int(view.cluster[seen.STAGES])
    options = 0
    for row in range(stages):
        options += view.schedulable[row]
    pick = int(splitmix64(seed, 2 * count) % np.uint64(options))
    row = -1
    while pick >= 0:
        row += 1
        pick -= view.schedulable[row]
    low = int(view.jobs[view.stage_job[row], seen.MIN_LIMIT])
    span = int(view.cluster[seen.TOTAL_EXECUTORS]) - low + 1
    return row, low + int(splitmix64(seed, 2 * count + 1) % np.uint64(span))


@compiled
def decide(
    rule_number: int,
    alpha: float,
    threshold: float,
    release: bool,
    view: Observation,
    seed: int,
    count: int,
) -> tuple[int, int]:
    """(stage row, parallelism limit). `seed` and `count` feed the one rule that draws at random."""
    if rule_number == rule.FIFO:
        alpha = EVERYTHING
    if rule_number == rule.FIFO or rule_number == rule.FAIR or rule_number == rule.WEIGHTED:
        return share(view, alpha, release)
    if rule_number == rule.SHORTEST:
        return shortest_job_critical_path(view)
    if rule_number == rule.PACK:
        return pack(view)
    if rule_number == rule.TROUBLESOME:
        return troublesome_first(view, alpha, threshold, release)
    return any_legal(view, seed, count)
