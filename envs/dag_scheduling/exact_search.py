"""The best schedule there is, by exhaustive search: how far from it a policy is on tiny instances.

Every legal decision is tried at every round (depth first), with the same jobs and the same luck
as any policy meets. A branch is cut when even its shortest continuation cannot beat the best
schedule found so far, so the result is exact. Small clusters with a handful of tasks take
seconds; anything larger is refused.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, njit_inline, njit_internal
from loadmaster.envs.dag_scheduling import observation as seen
from loadmaster.envs.dag_scheduling import state as at
from loadmaster.envs.dag_scheduling.actions import apply_action, executors_granted
from loadmaster.envs.dag_scheduling.baselines import BASELINES
from loadmaster.envs.dag_scheduling.jobs import JobTemplates, Workload
from loadmaster.envs.dag_scheduling.observation import Observation, blank_observation, observe
from loadmaster.envs.dag_scheduling.rollout import (
    EpisodeResult,
    episode_result,
    initial_state,
    run_baseline,
)
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.simulator import advance
from loadmaster.envs.dag_scheduling.state import SimState
from loadmaster.envs.dag_scheduling.vector_env import state_of, view_of
from loadmaster.envs.errors import InputError

DECISIONS_TRIED_MAX = 5_000_000
_FOUND, _TOO_MANY, _TOO_DEEP = 0, 1, 2


def optimal_result(
    settings: DagSchedulingSettings, seed: int, workload: Workload, *, record: bool = False
) -> EpisodeResult:
    """The episode of `seed` under the best decisions for the objective; InputError if too large."""
    bank, jobs = workload.bank, settings.total_jobs
    start = initial_state(settings, workload, seed, slots=jobs)
    counter = at.JOB_MS if settings.objective == "jct" else at.NOW
    # Any policy's cost is an upper bound to begin with; good ones cut most of the tree.
    best = 1 + min(
        int(run_baseline(at.snapshot(start), bank, baseline).clock[counter])
        for baseline in BASELINES.values()
    )
    tasks = sum(
        int(bank.tasks[bank.first_stage[t] : bank.first_stage[t + 1]].sum())
        for t in start.arrivals[:, 1]
    )
    depth = 8 + 4 * tasks
    if depth > 2000:
        raise _too_large(f"it has {tasks} tasks")
    blank = blank_observation(len(start.stages), jobs, 0)
    states = SimState._make(np.stack([table] * depth) for table in start)
    views = Observation._make(np.stack([table] * depth) for table in blank)
    rows = np.zeros((depth, len(start.stages)), np.int64)
    plan, best_plan = np.zeros((depth, 2), np.int64), np.zeros((depth, 2), np.int64)
    shortest = _shortest_tasks(bank)
    status = search(
        states, bank, views, rows, shortest, _shortest_to_end(bank, shortest), counter, best,
        np.zeros(jobs, np.int64), np.zeros(depth, np.int64), plan, best_plan, DECISIONS_TRIED_MAX,
    )  # fmt: skip
    if status != _FOUND:
        raise _too_large(f"more than {DECISIONS_TRIED_MAX:,} decisions were tried")
    return _replayed(settings, workload, seed, best_plan, record)


def _too_large(why: str) -> InputError:
    return InputError(
        f"the instance is too large for policy 'optimal': {why}; "
        "expected a tiny one, such as --workload toy --set jobs=3 --set executors=2"
    )


def _replayed(
    settings: DagSchedulingSettings,
    workload: Workload,
    seed: int,
    plan: NDArray[np.int64],
    record: bool,
) -> EpisodeResult:
    """Carry the plan out once more, for its result."""
    state = initial_state(settings, workload, seed, record, slots=settings.total_jobs)
    view = blank_observation(len(state.stages), len(state.jobs), 0)
    rows = np.zeros(len(state.stages), np.int64)
    for row, limit in plan:
        if advance(state, workload.bank) != at.DECIDE:
            break
        observe(state, workload.bank, view, rows)
        apply_action(state, workload.bank, view, rows, row, limit)
    return episode_result(state, workload, settings, "optimal", seed)


def _shortest_tasks(bank: JobTemplates) -> NDArray[np.int64]:
    """(stages,) the shortest duration any of its lists holds, ms."""
    pool = bank.durations_ms
    return np.array(
        [
            min(
                int(pool[start : start + count].min())
                for start, count in zip(starts.ravel(), counts.ravel(), strict=True)
            )
            for starts, counts in zip(bank.wave_first, bank.wave_count, strict=True)
        ],
        np.int64,
    )


def _shortest_to_end(bank: JobTemplates, shortest: NDArray[np.int64]) -> NDArray[np.int64]:
    """(stages,) the least time from a task's start to the job's end, whatever luck it meets."""
    to_end = shortest.copy()
    stages = np.arange(len(to_end))
    first = bank.first_stage[np.searchsorted(bank.first_stage, stages, side="right") - 1]
    for stage in np.argsort(bank.height, kind="stable"):  # the end first
        below = first[stage] + bank.child[bank.child_first[stage] : bank.child_first[stage + 1]]
        if len(below):
            to_end[stage] = shortest[stage] + to_end[below].max()
    return to_end


@compiled
def search(
    states: SimState,
    bank: JobTemplates,
    views: Observation,
    rows: NDArray[np.int64],
    shortest: NDArray[np.int64],
    to_end: NDArray[np.int64],
    counter: int,
    best: int,
    work: NDArray[np.int64],
    tried: NDArray[np.int64],
    plan: NDArray[np.int64],
    best_plan: NDArray[np.int64],
    budget: int,
) -> int:
    """Depth-first over all plans; the best one ends up in `best_plan`.

    `states[d]` is the cluster after d decisions, `tried[d]` the number of options tried there.
    """
    depth = 0
    advance(state_of(states, 0), bank)
    observe(state_of(states, 0), bank, view_of(views, 0), rows[0])
    while depth >= 0:
        view = view_of(views, depth)
        if not nth_option(view, tried[depth], plan[depth]):
            depth -= 1
            continue
        tried[depth] += 1
        budget -= 1
        if budget < 0:
            return _TOO_MANY
        if depth + 1 == len(tried):
            return _TOO_DEEP
        copy_state(state_of(states, depth), state_of(states, depth + 1))
        state = state_of(states, depth + 1)
        apply_action(state, bank, view, rows[depth], plan[depth, 0], plan[depth, 1])
        status = advance(state, bank)
        cost = state.clock[counter]
        if status == at.DECIDE:
            if cost + least_ahead(state, shortest, to_end, counter, work) < best:
                depth += 1
                tried[depth] = 0
                observe(state, bank, view_of(views, depth), rows[depth])
        elif cost < best:
            best = cost
            for step in range(len(plan)):
                best_plan[step, 0] = plan[step, 0]
                best_plan[step, 1] = plan[step, 1]
    return _FOUND


@njit_inline
def nth_option(view: Observation, number: int, option: NDArray[np.int64]) -> bool:
    """Write the number-th legal decision with a different effect; False when there is none."""
    for row in range(int(view.cluster[seen.STAGES])):
        if view.schedulable[row] == 0:
            continue
        total = int(view.cluster[seen.TOTAL_EXECUTORS])
        amounts = executors_granted(view, row, total)
        if number < amounts:
            option[0] = row
            # All a stage can use first: good schedules come early, and cut the rest.
            option[1] = int(view.jobs[view.stage_job[row], seen.MIN_LIMIT]) + amounts - 1 - number
            return True
        number -= amounts
    option[0] = len(view.schedulable) - 1
    option[1] = 1
    return number == 0 and view.schedulable[len(view.schedulable) - 1] == 1


@njit_inline
def least_ahead(
    state: SimState,
    shortest: NDArray[np.int64],
    to_end: NDArray[np.int64],
    counter: int,
    work: NDArray[np.int64],
) -> int:
    """A bound on the cost to come, the larger of two; `work` is scratch, one place a job.

    Every job needs the time of its longest chain of tasks, and a move before that if nobody is
    there. And no schedule is faster than one executor of E times the speed would be, with the
    shortest remaining job first (the optimum of that simpler problem).
    """
    stride, jobs = state.setup[at.STRIDE], state.clock[at.ACTIVE]
    chains, longest = 0, 0
    for position in range(jobs):
        job = state.order[position]
        chain, left = 0, 0
        for stage in range(job * stride, job * stride + state.jobs[job, at.STAGES]):
            unstarted = state.stages[stage, at.TASKS] - state.stages[stage, at.STARTED]
            if unstarted > 0:
                profile = state.stages[stage, at.PROFILE]
                chain = max(chain, to_end[profile])
                left += unstarted * shortest[profile]
        if state.jobs[job, at.MEMBERS] + state.jobs[job, at.INCOMING] == 0:
            chain += state.setup[at.MOVING_MS]
        chains += chain
        longest = max(longest, chain)
        place = position  # kept sorted, least work first
        while place > 0 and work[place - 1] > left:
            work[place] = work[place - 1]
            place -= 1
        work[place] = left
    done, waited = 0, 0
    for position in range(jobs):
        done += work[position]
        waited += done
    if counter == at.JOB_MS:
        return max(chains, waited // len(state.executors))
    return max(longest, done // len(state.executors))


@njit_inline
def copy_state(source: SimState, target: SimState) -> None:
    """Copy all that changes in an episode."""
    copy_list(source.clock, target.clock)
    copy_list(source.completed_ms, target.completed_ms)
    copy_list(source.order, target.order)
    copy_list(source.tree, target.tree)
    copy_list(source.left, target.left)
    copy_list(source.commit_first, target.commit_first)
    copy_table(source.jobs, target.jobs)
    copy_table(source.stages, target.stages)
    copy_table(source.executors, target.executors)
    copy_table(source.commitments, target.commitments)


@njit_internal
def copy_list(source: NDArray[np.int64], target: NDArray[np.int64]) -> None:
    for i in range(len(source)):
        target[i] = source[i]


@njit_internal
def copy_table(source: NDArray[np.int64], target: NDArray[np.int64]) -> None:
    for i in range(source.shape[0]):
        for j in range(source.shape[1]):
            target[i, j] = source[i, j]
