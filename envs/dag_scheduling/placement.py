"""Transitions of executors: start a task, move to a job, idle in a pool; their event queue."""

import numpy as np

from loadmaster.envs.compiled import Ints, njit_inline, njit_internal, splitmix64
from loadmaster.envs.dag_scheduling import state as cols
from loadmaster.envs.dag_scheduling.jobs import FIRST, FRESH, REST, JobTemplates
from loadmaster.envs.dag_scheduling.state import NEVER, NONE, SimState

_LOW = np.uint64(0xFFFFFFFF)
_S32 = np.uint64(32)


@njit_internal
def update_tournament(tree: Ints, executors: Ints, executor: int) -> None:
    """Recompute the winners above `executor`, whose event changed; ties: scheduled first wins.

    The event queue is a tournament tree over the executors, each with at most one event.
    """
    node = (len(tree) // 2 + executor) // 2
    while node >= 1:
        one, other = tree[2 * node], tree[2 * node + 1]
        a, b = executors[one, cols.EVENT_MS], executors[other, cols.EVENT_MS]
        if b < a or (
            b == a and executors[other, cols.EVENT_NUMBER] < executors[one, cols.EVENT_NUMBER]
        ):
            one = other
        tree[node] = one
        node //= 2


@njit_internal
def schedule_event(clock: Ints, tree: Ints, executors: Ints, executor: int, when: int) -> None:
    """Set the executor's next event; it replaces the one being processed, if any."""
    if executors[executor, cols.EVENT_MS] == NEVER:
        clock[cols.PENDING] += 1
    clock[cols.SEQUENCE] += 1
    executors[executor, cols.EVENT_MS] = when
    executors[executor, cols.EVENT_NUMBER] = clock[cols.SEQUENCE]
    update_tournament(tree, executors, executor)


@njit_internal
def clear_event(clock: Ints, tree: Ints, executors: Ints, executor: int) -> None:
    """Remove the executor's event."""
    if executors[executor, cols.EVENT_MS] != NEVER:
        clock[cols.PENDING] -= 1
        executors[executor, cols.EVENT_MS] = NEVER
        update_tournament(tree, executors, executor)


@njit_inline
def profile_level(state: SimState, held: int, bits: np.uint64) -> int:
    """Return the profile's level for a job with `held` executors; `bits` draws between two."""
    level, above, gap = state.levels[held, 0], state.levels[held, 1], state.levels[held, 2]
    if gap > 0:
        # Between two measured levels the nearer one is the likelier. The published simulator
        # reverses that; AS_PUBLISHED reproduces it for cross-checks.
        point = int(((bits >> _S32) * np.uint64(gap)) >> _S32)
        from_below = point < above if state.setup[cols.AS_PUBLISHED] else point >= above
        if not from_below:
            level += 1
    return level


@njit_inline
def task_duration(state: SimState, bank: JobTemplates, executor: int, stage: int) -> int:
    """Draw the duration (ms) of the stage's next task on `executor`, a member of its job.

    The list is that of the wave (fresh, first, rest) and of the number of executors at the job.
    """
    profile = state.stages[stage, cols.PROFILE]
    bits = splitmix64(state.stages[stage, cols.RNG_KEY], state.stages[stage, cols.STARTED])
    held = state.jobs[state.executors[executor, cols.JOB], cols.MEMBERS]
    level = profile_level(state, held, bits)
    last = state.executors[executor, cols.LAST]
    wave = FRESH if last == NONE else (REST if last == stage else FIRST)
    pick = int(((bits & _LOW) * np.uint64(bank.wave_count[profile, wave, level])) >> _S32)
    duration = int(bank.durations_ms[bank.wave_first[profile, wave, level] + pick])
    if wave == FRESH and bank.cold_start[profile, level]:
        duration += state.setup[cols.WARMUP_MS]
    return duration


@njit_internal
def unassigned_tasks(state: SimState, stage: int) -> int:
    """Count tasks without an executor running, committed or moving; below 0 if overcommitted."""
    row = state.stages[stage]
    return row[cols.TASKS] - row[cols.STARTED] - row[cols.COMMITTED] - row[cols.MOVING]


@njit_internal
def unplaced_executors(state: SimState) -> int:
    """Count the round's executors, of all classes, that are not placed yet."""
    total = 0
    for kind in range(len(state.left)):
        total += state.left[kind]
    return total


@njit_internal
def fits(state: SimState, bank: JobTemplates, executor_class: int, stage: int) -> bool:
    """Check that executors of this class offer what the stage demands."""
    profile = state.stages[stage, cols.PROFILE]
    return (
        state.capacity[executor_class, 0] >= bank.demand[profile, 0]
        and state.capacity[executor_class, 1] >= bank.demand[profile, 1]
    )


@njit_internal
def schedulable(state: SimState, bank: JobTemplates, stage: int) -> bool:
    """Check for unassigned tasks, none left in the parents, and not chosen yet this round.

    The parents need not be finished.
    """
    row = state.stages[stage]
    if row[cols.CHOSEN] == state.clock[cols.ROUND] or unassigned_tasks(state, stage) <= 0:
        return False
    if row[cols.WAITING] > 0:
        profile = row[cols.PROFILE]
        first_row = stage - stage % state.setup[cols.STRIDE]
        for edge in range(bank.parent_first[profile], bank.parent_first[profile + 1]):
            if unassigned_tasks(state, first_row + bank.parent[edge]) > 0:
                return False
    return True


@njit_internal
def record(state: SimState, executor: int, stage: int, end_ms: int, moving: bool) -> None:
    """Add a row to the trace; the event loop has checked that there is one."""
    number, stride = state.clock[cols.TRACE_ROWS], state.setup[cols.STRIDE]
    row = state.trace[number]
    row[cols.TRACE_EXECUTOR] = executor
    row[cols.TRACE_JOB] = state.jobs[stage // stride, cols.NUMBER]
    row[cols.TRACE_STAGE] = stage % stride
    row[cols.TRACE_MOVING] = moving
    state.trace_ms[number, cols.TRACE_START] = state.clock[cols.NOW]
    state.trace_ms[number, cols.TRACE_END] = end_ms
    state.clock[cols.TRACE_ROWS] += 1


@njit_internal
def start_task(state: SimState, bank: JobTemplates, executor: int, stage: int) -> None:
    """Start the stage's next task on the executor, a member of its job."""
    end_ms = state.clock[cols.NOW] + task_duration(state, bank, executor, stage)
    row = state.executors[executor]
    row[cols.STAGE] = stage
    row[cols.LAST] = stage
    row[cols.ACTIVITY] = cols.WORKING
    state.stages[stage, cols.STARTED] += 1
    schedule_event(state.clock, state.tree, state.executors, executor, end_ms)
    if len(state.trace) > 0:
        record(state, executor, stage, end_ms, False)


@njit_internal
def leave_job(state: SimState, executor: int) -> None:
    """Detach the executor from its job; its next task will be a fresh one."""
    row = state.executors[executor]
    if row[cols.JOB] != NONE:
        state.jobs[row[cols.JOB], cols.MEMBERS] -= 1
    row[cols.JOB] = NONE
    row[cols.STAGE] = NONE
    row[cols.LAST] = NONE


@njit_internal
def move_executor(state: SimState, executor: int, stage: int) -> None:
    """Send the executor to another job's stage, where it arrives after the moving delay."""
    leave_job(state, executor)
    state.stages[stage, cols.MOVING] += 1
    state.jobs[stage // state.setup[cols.STRIDE], cols.INCOMING] += 1
    row = state.executors[executor]
    row[cols.DESTINATION] = stage
    row[cols.ACTIVITY] = cols.TRAVELLING
    arrival_ms = state.clock[cols.NOW] + state.setup[cols.MOVING_MS]
    schedule_event(state.clock, state.tree, state.executors, executor, arrival_ms)
    if len(state.trace) > 0 and state.setup[cols.MOVING_MS] > 0:
        record(state, executor, stage, arrival_ms, True)


@njit_internal
def join_pool(state: SimState, executor: int, job: int) -> None:
    """Idle the executor in `job`'s pool, or in the common pool where `job` is NONE."""
    clear_event(state.clock, state.tree, state.executors, executor)
    row = state.executors[executor]
    if job == NONE:
        leave_job(state, executor)
        state.clock[cols.POOLED] += 1
    else:
        row[cols.STAGE] = NONE
        row[cols.LAST] = NONE
        state.jobs[job, cols.IDLE] += 1
    row[cols.ACTIVITY] = cols.FREE


@njit_internal
def leave_pool(state: SimState, executor: int) -> None:
    """Count the executor out of its pool; it keeps its job."""
    row = state.executors[executor]
    if row[cols.JOB] == NONE:
        state.clock[cols.POOLED] -= 1
    else:
        state.jobs[row[cols.JOB], cols.IDLE] -= 1


@njit_inline
def first_runnable(state: SimState, bank: JobTemplates, job: int, executor_class: int) -> int:
    """Find the job's stage with unassigned tasks that became runnable first, or NONE."""
    stride = state.setup[cols.STRIDE]
    best = NONE
    for stage in range(job * stride, job * stride + state.jobs[job, cols.STAGES]):
        if (
            state.stages[stage, cols.WAITING] == 0
            and unassigned_tasks(state, stage) > 0
            and fits(state, bank, executor_class, stage)
            and (
                best == NONE
                or state.stages[stage, cols.UNLOCKED] < state.stages[best, cols.UNLOCKED]
            )
        ):
            best = stage
    return best


@njit_internal
def place_by_default(state: SimState, bank: JobTemplates, executor: int) -> None:
    """Place an executor whose stage ran out of tasks before it came.

    In order: a runnable stage of its own job, the first schedulable stage of any job, its pool.
    """
    row = state.executors[executor]
    if row[cols.JOB] != NONE:
        stage = first_runnable(state, bank, row[cols.JOB], row[cols.CLASS])
        if stage != NONE:
            start_task(state, bank, executor, stage)
            return
    stride = state.setup[cols.STRIDE]
    for position in range(state.clock[cols.ACTIVE]):
        job = state.order[position]
        for stage in range(job * stride, job * stride + state.jobs[job, cols.STAGES]):
            if schedulable(state, bank, stage) and fits(state, bank, row[cols.CLASS], stage):
                move_executor(state, executor, stage)
                return
    join_pool(state, executor, row[cols.JOB])


@njit_internal
def assign(state: SimState, bank: JobTemplates, executor: int, stage: int) -> None:
    """Put the executor to work on `stage`: start a task, move there, or wait in the job's pool."""
    job = stage // state.setup[cols.STRIDE]
    if state.stages[stage, cols.STARTED] >= state.stages[stage, cols.TASKS]:
        place_by_default(state, bank, executor)
    elif state.executors[executor, cols.JOB] != job:
        move_executor(state, executor, stage)
    elif state.stages[stage, cols.WAITING] == 0:
        start_task(state, bank, executor, stage)
    else:
        join_pool(state, executor, job)  # until the stage unlocks
