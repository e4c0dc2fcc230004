"""Exact optimum of tiny instances by depth-first branch and bound.

Every legal decision is tried at every round, with the same jobs and task durations as any policy
gets. A branch is cut when a lower bound on its cost reaches the best schedule so far, so the
result is exact. Small clusters with a handful of tasks take seconds; larger ones are refused.
"""

import numpy as np

from loadmaster.envs.compiled import Ints, compiled, njit_inline, njit_internal
from loadmaster.envs.dag_scheduling import observation as obs
from loadmaster.envs.dag_scheduling import state as cols
from loadmaster.envs.dag_scheduling.actions import apply_action, executors_granted
from loadmaster.envs.dag_scheduling.baselines import BASELINES
from loadmaster.envs.dag_scheduling.jobs import JobTemplates, Workload
from loadmaster.envs.dag_scheduling.lower_bound import longest_to_end
from loadmaster.envs.dag_scheduling.observation import Observation, blank_observation, observe
from loadmaster.envs.dag_scheduling.rewards import COST_COLUMN
from loadmaster.envs.dag_scheduling.rollout import (
    EpisodeResult,
    buffers_for,
    episode_result,
    initial_state,
    run_baseline,
)
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.simulator import advance
from loadmaster.envs.dag_scheduling.state import DECIDE, SimState, clone_state
from loadmaster.envs.dag_scheduling.vector_env import state_of, view_of
from loadmaster.envs.errors import InputError

DECISIONS_TRIED_MAX = 5_000_000
_FOUND, _TOO_MANY, _TOO_DEEP = 0, 1, 2


def optimal_result(
    settings: DagSchedulingSettings, seed: int, workload: Workload, *, record: bool = False
) -> EpisodeResult:
    """Run the episode of `seed` under optimal decisions; InputError if it is too large."""
    bank, jobs = workload.bank, settings.total_jobs
    start = initial_state(settings, workload, seed, slots=jobs)
    counter = COST_COLUMN[settings.objective]
    # The baselines' costs are upper bounds; a good one cuts most of the tree.
    best = 1 + min(
        int(run_baseline(clone_state(start), bank, baseline).clock[counter])
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
        states, bank, views, rows, shortest, longest_to_end(bank, shortest), counter, best,
        np.zeros(jobs, np.int64), np.zeros(depth, np.int64), plan, best_plan, DECISIONS_TRIED_MAX,
    )  # fmt: skip
    if status != _FOUND:
        raise _too_large(f"more than {DECISIONS_TRIED_MAX:,} decisions were tried")
    state = initial_state(settings, workload, seed, record, slots=jobs)
    view, row_stages = buffers_for(state, bank)
    for row, limit in best_plan:
        if advance(state, bank) != DECIDE:
            break
        observe(state, bank, view, row_stages)
        apply_action(state, bank, view, row_stages, row, limit)
    return episode_result(state, workload, settings, "optimal", seed)


def _too_large(why: str) -> InputError:
    return InputError(
        f"the instance is too large for policy 'optimal': {why}; "
        "expected a tiny one, such as --workload toy --set jobs=3 --set executors=2"
    )


def _shortest_tasks(bank: JobTemplates) -> Ints:
    """(stages,) Shortest duration in any of the stage's lists, ms."""
    starts = np.unique(bank.wave_first)  # of the lists, which are adjacent
    shortest = np.minimum.reduceat(bank.durations_ms, starts).astype(np.int64)
    return shortest[np.searchsorted(starts, bank.wave_first)].min(axis=(1, 2))


@compiled
def search(
    states: SimState,
    bank: JobTemplates,
    views: Observation,
    rows: Ints,
    shortest: Ints,
    to_end: Ints,
    counter: int,
    best: int,
    work: Ints,
    tried: Ints,
    plan: Ints,
    best_plan: Ints,
    budget: int,
) -> int:
    """Search all plans depth first and write the best one to `best_plan`; return a status.

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
        if status == DECIDE:
            if cost + lower_bound(state, shortest, to_end, counter, work) < best:
                depth += 1
                tried[depth] = 0
                observe(state, bank, view_of(views, depth), rows[depth])
        elif cost < best:
            best = cost
            copy_table(plan, best_plan)
    return _FOUND


@njit_inline
def nth_option(view: Observation, number: int, option: Ints) -> bool:
    """Write the number-th decision of those with distinct effects; return False if none is left."""
    for row in range(int(view.cluster[obs.STAGES])):
        if view.schedulable[row] == 0:
            continue
        total = int(view.cluster[obs.TOTAL_EXECUTORS])
        amounts = executors_granted(view, row, total)
        if number < amounts:
            option[0] = row
            # Most executors first: good schedules found early cut more.
            option[1] = int(view.jobs[view.stage_job[row], obs.MIN_LIMIT]) + amounts - 1 - number
            return True
        number -= amounts
    option[0] = len(view.schedulable) - 1
    option[1] = 1
    return number == 0 and view.schedulable[len(view.schedulable) - 1] == 1


@njit_inline
def lower_bound(state: SimState, shortest: Ints, to_end: Ints, counter: int, work: Ints) -> int:
    """Return the larger of two lower bounds on the cost to come; `work` is scratch, one a job.

    Each job needs its longest chain of tasks, after a move if it has no executor. And no schedule
    beats one executor of E times the speed that serves the shortest remaining job first, the
    optimum of that relaxation.
    """
    stride, jobs = state.setup[cols.STRIDE], state.clock[cols.ACTIVE]
    chains, longest = 0, 0
    for position in range(jobs):
        job = state.order[position]
        chain, left = 0, 0
        for stage in range(job * stride, job * stride + state.jobs[job, cols.STAGES]):
            unstarted = state.stages[stage, cols.TASKS] - state.stages[stage, cols.STARTED]
            if unstarted > 0:
                profile = state.stages[stage, cols.PROFILE]
                chain = max(chain, to_end[profile])
                left += unstarted * shortest[profile]
        if state.jobs[job, cols.MEMBERS] + state.jobs[job, cols.INCOMING] == 0:
            chain += state.setup[cols.MOVING_MS]
        chains += chain
        longest = max(longest, chain)
        place = position  # insertion sort, least work first
        while place > 0 and work[place - 1] > left:
            work[place] = work[place - 1]
            place -= 1
        work[place] = left
    done, waited = 0, 0
    for position in range(jobs):
        done += work[position]
        waited += done
    if counter == cols.JOB_MS:
        return max(chains, waited // len(state.executors))
    return max(longest, done // len(state.executors))


@njit_inline
def copy_state(source: SimState, target: SimState) -> None:
    """Copy the tables that change in an episode."""
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
def copy_list(source: Ints, target: Ints) -> None:
    for i in range(len(source)):  # target[:] = source would need reference counts
        target[i] = source[i]


@njit_internal
def copy_table(source: Ints, target: Ints) -> None:
    for i in range(len(source)):
        copy_list(source[i], target[i])
