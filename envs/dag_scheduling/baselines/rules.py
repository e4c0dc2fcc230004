"""The heuristics' decision rules, compiled."""

import numpy as np

from loadmaster.envs.compiled import compiled, njit_inline, njit_internal, splitmix64
from loadmaster.envs.dag_scheduling import baselines as rules
from loadmaster.envs.dag_scheduling import observation as obs
from loadmaster.envs.dag_scheduling.baselines.remaining_work import least_work_left
from loadmaster.envs.dag_scheduling.observation import Observation

UNCAPPED = 1e9  # as exponent of the work: every job may have the whole cluster (FIFO)


@njit_internal
def total_weight(view: Observation, alpha: float) -> float:
    """Sum work^alpha over the jobs that have unassigned tasks."""
    whole = 0.0
    if alpha != UNCAPPED:
        for job in range(int(view.cluster[obs.JOBS])):
            if view.jobs[job, obs.UNPLACED] > 0:
                whole += view.jobs[job, obs.WORK_S] ** alpha
    return whole


@njit_internal
def executor_cap(view: Observation, job: int, alpha: float, whole: float) -> int:
    """Return the job's share of the executors, work^alpha / `whole`.

    alpha 0 is the fair share ceil(E / jobs), 1 the naive weighted one.
    """
    total = view.cluster[obs.TOTAL_EXECUTORS]
    if alpha == UNCAPPED or whole <= 0:
        return int(total)
    # The tolerance keeps 50 * (1 / 5) at 10, not at 11.
    return int(np.ceil(total * view.jobs[job, obs.WORK_S] ** alpha / whole - 1e-9))


@njit_internal
def first_stage_of(view: Observation, job: int) -> int:
    """Find the job's schedulable stage that became runnable first, or else its first; -1: none."""
    best, best_unlocked = -1, np.float32(np.inf)
    for row in range(int(view.cluster[obs.STAGES])):
        if view.stage_job[row] != job or view.schedulable[row] == 0:
            continue
        unlocked = np.float32(1e30)
        if view.stages[row, obs.RUNNABLE] == 1:
            unlocked = view.stages[row, obs.UNLOCKED]
        if unlocked < best_unlocked:
            best, best_unlocked = row, unlocked
    return best


@njit_internal
def limit_for(view: Observation, row: int, executors: int) -> int:
    """Return the parallelism limit that places `executors` free ones at this stage."""
    return int(view.jobs[view.stage_job[row], obs.MIN_LIMIT]) - 1 + executors


@njit_internal
def own_quota(view: Observation, job: int, cap: int, release: bool) -> int:
    """Count the free executors the source job keeps: all, or with `release` up to its share."""
    free = int(view.cluster[obs.FREE_EXECUTORS])
    return min(free, cap - int(view.jobs[job, obs.EXECUTORS]) + free) if release else free


@njit_internal
def share(view: Observation, alpha: float, release: bool) -> tuple[int, int]:
    """FIFO, fair, weighted fair: own job first, then the first job below its share.

    With `release`, executors beyond their job's share leave it if another job is below its own.
    """
    jobs, free = int(view.cluster[obs.JOBS]), int(view.cluster[obs.FREE_EXECUTORS])
    whole = total_weight(view, alpha)
    own = -1
    for job in range(jobs):
        if view.jobs[job, obs.IS_SOURCE] == 1:
            own = first_stage_of(view, job)
            quota = own_quota(view, job, executor_cap(view, job, alpha, whole), release)
            if own >= 0 and quota > 0:
                return own, limit_for(view, own, quota)
    for job in range(jobs):
        quota = executor_cap(view, job, alpha, whole) - int(view.jobs[job, obs.EXECUTORS])
        if quota > 0 and view.jobs[job, obs.IS_SOURCE] == 0:
            row = first_stage_of(view, job)
            if row >= 0:
                return row, limit_for(view, row, min(free, quota))
    if own >= 0:
        return own, limit_for(view, own, free)
    return len(view.schedulable) - 1, 1  # every job has its share: idle


@njit_inline
def shortest_job_critical_path(view: Observation) -> tuple[int, int]:
    """Choose the job with the least total work, and in it the stage on the critical path."""
    best = -1
    for row in range(int(view.cluster[obs.STAGES])):
        if view.schedulable[row] == 0:
            continue
        if best >= 0:
            work = view.jobs[view.stage_job[row], obs.WORK_S]
            least = view.jobs[view.stage_job[best], obs.WORK_S]
            same_job = view.stage_job[row] == view.stage_job[best]
            longer = view.stages[row, obs.CRITICAL_S] > view.stages[best, obs.CRITICAL_S]
            if not (work < least or (same_job and longer)):
                continue
        best = row
    return best, int(view.cluster[obs.TOTAL_EXECUTORS])


@njit_internal
def alignment(view: Observation, row: int) -> float:
    """Return the share of executors the stage can use, times the demand on each."""
    usable = min(view.stages[row, obs.UNASSIGNED], view.stages[row, obs.FITTING])
    demand = 1.0 + view.stages[row, obs.CPU] + view.stages[row, obs.MEMORY]
    return usable / view.cluster[obs.TOTAL_EXECUTORS] * demand


@njit_inline
def pack(view: Observation) -> tuple[int, int]:
    """Tetris (SIGCOMM 2014): alignment minus the job's remaining work on the same scale.

    An executor stays with its job while that has a stage for it, as Tetris penalises remote
    placement.
    """
    stages = int(view.cluster[obs.STAGES])
    packed, work, own_only = 0.0, 0.0, False
    for row in range(stages):
        if view.schedulable[row] == 1:
            packed += alignment(view, row)
            work += view.jobs[view.stage_job[row], obs.WORK_LEFT_S]
            own_only = own_only or view.jobs[view.stage_job[row], obs.IS_SOURCE] == 1
    scale = packed / max(work, 1e-9)  # mean alignment over mean work: Tetris' epsilon
    best, best_score = -1, -np.inf
    for row in range(stages):
        job = view.stage_job[row]
        if view.schedulable[row] == 1 and own_only == (view.jobs[job, obs.IS_SOURCE] == 1):
            score = alignment(view, row) - scale * view.jobs[job, obs.WORK_LEFT_S]
            if score > best_score:
                best, best_score = row, score
    return best, int(view.cluster[obs.TOTAL_EXECUTORS])


@njit_inline
def troublesome_first(
    view: Observation, alpha: float, threshold: float, release: bool
) -> tuple[int, int]:
    """Graphene* (OSDI 2016, as adapted by Decima's authors): long or demanding stages first.

    A stage is troublesome if its tasks, or those of a descendant, reach `threshold` times the
    longest duration or largest demand in its job. Jobs are held to their weighted shares.
    """
    stages, free = int(view.cluster[obs.STAGES]), int(view.cluster[obs.FREE_EXECUTORS])
    whole = total_weight(view, alpha)
    best, best_score, best_quota = -1, -np.inf, 0
    job, own, quota, longest, most_demanding = -1, False, 0, 0.0, 0.0
    for row in range(stages):
        if view.stage_job[row] != job:  # rows are sorted by job
            job = view.stage_job[row]
            own = view.jobs[job, obs.IS_SOURCE] == 1
            cap = executor_cap(view, job, alpha, whole)
            quota = min(free, cap - int(view.jobs[job, obs.EXECUTORS]))
            if own:
                quota = own_quota(view, job, cap, release)
            longest, most_demanding = 0.0, 0.0
            other = row
            while other < stages and view.stage_job[other] == job:
                longest = max(longest, view.stages[other, obs.LONGEST_AHEAD_S])
                most_demanding = max(most_demanding, view.stages[other, obs.DEMAND_AHEAD])
                other += 1
        if view.schedulable[row] == 0 or (quota <= 0 and not own):
            continue
        troublesome = view.stages[row, obs.LONGEST_AHEAD_S] >= threshold * longest or (
            most_demanding > 0 and view.stages[row, obs.DEMAND_AHEAD] >= threshold * most_demanding
        )
        # Own job first (no move) but last beyond its share, then troublesome stages, then packing.
        priority = 0.0 if not own else (100.0 if quota > 0 else -100.0)
        score = priority + 10.0 * troublesome + alignment(view, row)
        if score > best_score:
            best, best_score, best_quota = row, score, quota if quota > 0 else free
    if best == -1:
        return len(view.schedulable) - 1, 1
    return best, limit_for(view, best, best_quota)


@njit_inline
def any_legal(view: Observation, seed: int, count: int) -> tuple[int, int]:
    """Draw a legal stage and a limit uniformly; never idle."""
    stages = int(view.cluster[obs.STAGES])
    options = 0
    for row in range(stages):
        options += view.schedulable[row]
    pick = int(splitmix64(seed, 2 * count) % np.uint64(options))
    row = -1
    while pick >= 0:
        row += 1
        pick -= view.schedulable[row]
    low = int(view.jobs[view.stage_job[row], obs.MIN_LIMIT])
    span = int(view.cluster[obs.TOTAL_EXECUTORS]) - low + 1
    return row, low + int(splitmix64(seed, 2 * count + 1) % np.uint64(span))


@compiled
def decide(parameters: rules.Rule, view: Observation, seed: int, count: int) -> tuple[int, int]:
    """Return (stage row, parallelism limit); `seed` and `count` key the draws of RANDOM."""
    rule, values = parameters
    release = values[rules.RELEASE] > 0
    if rule in (rules.FIFO, rules.FAIR, rules.WEIGHTED):
        return share(view, UNCAPPED if rule == rules.FIFO else values[rules.ALPHA], release)
    if rule == rules.SHORTEST:
        return shortest_job_critical_path(view)
    if rule == rules.PACK:
        return pack(view)
    if rule == rules.TROUBLESOME:
        return troublesome_first(view, values[rules.ALPHA], values[rules.THRESHOLD], release)
    if rule == rules.RANDOM:
        return any_legal(view, seed, count)
    return least_work_left(view, rule, values)
