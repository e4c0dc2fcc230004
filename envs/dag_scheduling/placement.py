"""Executors change hands: they start tasks, move between jobs, and wait in pools."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import njit_inline, njit_internal
from loadmaster.envs.dag_scheduling import state as at
from loadmaster.envs.dag_scheduling.jobs import FIRST, FRESH, REST, JobTemplates
from loadmaster.envs.dag_scheduling.state import SimState
from loadmaster.envs.random import splitmix64

# The event queue: a tournament over the executors, each of which has at most one event ahead.


Table = NDArray[np.int64]


@njit_internal
def replay_matches(tree: Table, executors: Table, executor: int) -> None:
    """Let `executor` play its way up again after its event changed. Ties: planned first, first."""
    node = (len(tree) // 2 + executor) // 2
    while node >= 1:
        one, other = tree[2 * node], tree[2 * node + 1]
        a, b = executors[one, at.EVENT_MS], executors[other, at.EVENT_MS]
        if b < a or (
            b == a and executors[other, at.EVENT_NUMBER] < executors[one, at.EVENT_NUMBER]
        ):
            one = other
        tree[node] = one
        node //= 2


@njit_internal
def plan_event(clock: Table, tree: Table, executors: Table, executor: int, when: int) -> None:
    """The executor's next event, at time `when`; it replaces the one just happening, if any."""
    if executors[executor, at.EVENT_MS] == at.NEVER:
        clock[at.PENDING] += 1
    clock[at.SEQUENCE] += 1
    executors[executor, at.EVENT_MS] = when
    executors[executor, at.EVENT_NUMBER] = clock[at.SEQUENCE]
    replay_matches(tree, executors, executor)


@njit_internal
def clear_event(clock: Table, tree: Table, executors: Table, executor: int) -> None:
    """The executor has nothing ahead of it."""
    if executors[executor, at.EVENT_MS] != at.NEVER:
        clock[at.PENDING] -= 1
        executors[executor, at.EVENT_MS] = at.NEVER
        replay_matches(tree, executors, executor)


# How long a task takes: drawn from its stage's profile by wave and by executors at the job.


_LOW = np.uint64(0xFFFFFFFF)
_S32 = np.uint64(32)


@njit_inline
def task_duration(state: SimState, bank: JobTemplates, executor: int, stage: int) -> int:
    """Duration in ms of the next task of `stage` on `executor`, a member of the stage's job."""
    profile = state.stages[stage, at.PROFILE]
    bits = splitmix64(state.stages[stage, at.LUCK], state.stages[stage, at.STARTED])
    held = state.jobs[state.executors[executor, at.JOB], at.MEMBERS]
    level, above, gap = state.levels[held, 0], state.levels[held, 1], state.levels[held, 2]
    if gap > 0:
        # Between two measured levels the nearer one is the likelier. The published simulator has
        # it the wrong way round, which cross-checks against it need.
        point = int(((bits >> _S32) * np.uint64(gap)) >> _S32)
        from_below = point < above if state.setup[at.AS_PUBLISHED] else point >= above
        if not from_below:
            level += 1
    last = state.executors[executor, at.LAST]
    wave = FRESH if last == at.NONE else (REST if last == stage else FIRST)
    pick = int(((bits & _LOW) * np.uint64(bank.wave_count[profile, wave, level])) >> _S32)
    duration = int(bank.durations_ms[bank.wave_first[profile, wave, level] + pick])
    if wave == FRESH and bank.cold_start[profile, level]:
        duration += state.setup[at.WARMUP_MS]
    return duration


@njit_internal
def unassigned_tasks(state: SimState, stage: int) -> int:
    """Tasks nobody runs, is promised to or is moving to; below 0 when promises overshoot."""
    row = state.stages[stage]
    return row[at.TASKS] - row[at.STARTED] - row[at.COMMITTED] - row[at.MOVING]


@njit_internal
def unplaced_executors(state: SimState) -> int:
    """The round's executors of all classes that nobody has placed yet."""
    total = 0
    for kind in range(len(state.left)):
        total += state.left[kind]
    return total


@njit_internal
def fits(state: SimState, bank: JobTemplates, executor_class: int, stage: int) -> bool:
    """Whether executors of this class offer what the stage demands."""
    profile = state.stages[stage, at.PROFILE]
    return (
        state.capacity[executor_class, 0] >= bank.demand[profile, 0]
        and state.capacity[executor_class, 1] >= bank.demand[profile, 1]
    )


@njit_internal
def schedulable(state: SimState, bank: JobTemplates, stage: int) -> bool:
    """Unsaturated, all parents saturated (they need not be finished), not yet chosen this round."""
    row = state.stages[stage]
    if row[at.CHOSEN] == state.clock[at.ROUND] or unassigned_tasks(state, stage) <= 0:
        return False
    if row[at.WAITING] > 0:
        profile = row[at.PROFILE]
        first_row = stage - stage % state.setup[at.STRIDE]
        for edge in range(bank.parent_first[profile], bank.parent_first[profile + 1]):
            if unassigned_tasks(state, first_row + bank.parent[edge]) > 0:
                return False
    return True


@njit_internal
def record(state: SimState, executor: int, stage: int, end_ms: int, moving: bool) -> None:
    """Add a row to the trace. The event loop has made sure that there is room."""
    clock = state.clock
    row = state.trace[clock[at.TRACE_ROWS]]
    stride = state.setup[at.STRIDE]
    row[at.TRACE_EXECUTOR] = executor
    row[at.TRACE_JOB] = state.jobs[stage // stride, at.NUMBER]
    row[at.TRACE_STAGE] = stage % stride
    row[at.TRACE_START] = clock[at.NOW]
    row[at.TRACE_END] = end_ms
    row[at.TRACE_MOVING] = moving
    clock[at.TRACE_ROWS] += 1


@njit_internal
def start_task(state: SimState, bank: JobTemplates, executor: int, stage: int) -> None:
    """The executor, a member of the stage's job, takes the stage's next task."""
    end_ms = state.clock[at.NOW] + task_duration(state, bank, executor, stage)
    row = state.executors[executor]
    row[at.STAGE] = stage
    row[at.LAST] = stage
    row[at.ACTIVITY] = at.WORKING
    state.stages[stage, at.STARTED] += 1
    plan_event(state.clock, state.tree, state.executors, executor, end_ms)
    if len(state.trace) > 0:
        record(state, executor, stage, end_ms, False)


@njit_internal
def leave_job(state: SimState, executor: int) -> None:
    """The executor belongs to no job any more; its next task anywhere will be a fresh one."""
    row = state.executors[executor]
    if row[at.JOB] != at.NONE:
        state.jobs[row[at.JOB], at.MEMBERS] -= 1
    row[at.JOB] = at.NONE
    row[at.STAGE] = at.NONE
    row[at.LAST] = at.NONE


@njit_internal
def move_executor(state: SimState, executor: int, stage: int) -> None:
    """Send the executor to another job's stage; it arrives after the moving delay."""
    leave_job(state, executor)
    state.stages[stage, at.MOVING] += 1
    state.jobs[stage // state.setup[at.STRIDE], at.INCOMING] += 1
    row = state.executors[executor]
    row[at.DESTINATION] = stage
    row[at.ACTIVITY] = at.TRAVELLING
    arrival_ms = state.clock[at.NOW] + state.setup[at.MOVING_MS]
    plan_event(state.clock, state.tree, state.executors, executor, arrival_ms)
    if len(state.trace) > 0 and state.setup[at.MOVING_MS] > 0:
        record(state, executor, stage, arrival_ms, True)


@njit_internal
def join_pool(state: SimState, executor: int, job: int) -> None:
    """The executor idles in `job`'s pool, or in the common pool where `job` is NONE."""
    clear_event(state.clock, state.tree, state.executors, executor)
    row = state.executors[executor]
    if job == at.NONE:
        leave_job(state, executor)
        state.clock[at.POOLED] += 1
    else:
        row[at.STAGE] = at.NONE
        row[at.LAST] = at.NONE
        state.jobs[job, at.IDLE] += 1
    row[at.ACTIVITY] = at.FREE


@njit_internal
def leave_pool(state: SimState, executor: int) -> None:
    """The executor stops idling; it keeps its job."""
    row = state.executors[executor]
    if row[at.JOB] == at.NONE:
        state.clock[at.POOLED] -= 1
    else:
        state.jobs[row[at.JOB], at.IDLE] -= 1


@njit_inline
def first_runnable(state: SimState, bank: JobTemplates, job: int, executor_class: int) -> int:
    """The job's unsaturated stage that became runnable first, or NONE."""
    stride = state.setup[at.STRIDE]
    best = at.NONE
    for stage in range(job * stride, job * stride + state.jobs[job, at.STAGES]):
        if (
            state.stages[stage, at.WAITING] == 0
            and unassigned_tasks(state, stage) > 0
            and fits(state, bank, executor_class, stage)
            and (
                best == at.NONE
                or state.stages[stage, at.UNLOCKED] < state.stages[best, at.UNLOCKED]
            )
        ):
            best = stage
    return best


@njit_internal
def place_by_default(state: SimState, bank: JobTemplates, executor: int) -> None:
    """For an executor whose stage ran out of tasks before it came: keep the cluster working.

    First its own job, then the first schedulable stage anywhere, else it idles where it is.
    """
    row = state.executors[executor]
    if row[at.JOB] != at.NONE:
        stage = first_runnable(state, bank, row[at.JOB], row[at.CLASS])
        if stage != at.NONE:
            start_task(state, bank, executor, stage)
            return
    stride = state.setup[at.STRIDE]
    for position in range(state.clock[at.ACTIVE]):
        job = state.order[position]
        for stage in range(job * stride, job * stride + state.jobs[job, at.STAGES]):
            if schedulable(state, bank, stage) and fits(state, bank, row[at.CLASS], stage):
                move_executor(state, executor, stage)
                return
    join_pool(state, executor, row[at.JOB])


@njit_internal
def take_up(state: SimState, bank: JobTemplates, executor: int, stage: int) -> None:
    """The executor follows its promise to `stage`, as far as that is possible by now."""
    job = stage // state.setup[at.STRIDE]
    if state.stages[stage, at.STARTED] >= state.stages[stage, at.TASKS]:
        place_by_default(state, bank, executor)
    elif state.executors[executor, at.JOB] != job:
        move_executor(state, executor, stage)
    elif state.stages[stage, at.WAITING] == 0:
        start_task(state, bank, executor, stage)
    else:
        join_pool(state, executor, job)  # too early: it waits until the stage unlocks
