"""Executors change hands: they start tasks, move between jobs, and wait in pools."""

from __future__ import annotations

from loadmaster.envs.compiled import inner, part
from loadmaster.envs.dag_scheduling import state as at
from loadmaster.envs.dag_scheduling.durations import task_duration
from loadmaster.envs.dag_scheduling.events import clear_event, plan_event
from loadmaster.envs.dag_scheduling.jobs import JobBank
from loadmaster.envs.dag_scheduling.state import SimState


@inner
def unassigned_tasks(state: SimState, stage: int) -> int:
    """Tasks nobody runs, is promised to or is moving to; below 0 when promises overshoot."""
    row = state.stages[stage]
    return row[at.TASKS] - row[at.STARTED] - row[at.COMMITTED] - row[at.MOVING]


@inner
def unplaced_executors(state: SimState) -> int:
    """The round's executors of all classes that nobody has placed yet."""
    total = 0
    for kind in range(len(state.left)):
        total += state.left[kind]
    return total


@inner
def fits(state: SimState, bank: JobBank, executor_class: int, stage: int) -> bool:
    """Whether executors of this class offer what the stage demands."""
    profile = state.stages[stage, at.PROFILE]
    return (
        state.capacity[executor_class, 0] >= bank.demand[profile, 0]
        and state.capacity[executor_class, 1] >= bank.demand[profile, 1]
    )


@inner
def schedulable(state: SimState, bank: JobBank, stage: int) -> bool:
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


@inner
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


@inner
def start_task(state: SimState, bank: JobBank, executor: int, stage: int) -> None:
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


@inner
def leave_job(state: SimState, executor: int) -> None:
    """The executor belongs to no job any more; its next task anywhere will be a fresh one."""
    row = state.executors[executor]
    if row[at.JOB] != at.NONE:
        state.jobs[row[at.JOB], at.MEMBERS] -= 1
    row[at.JOB] = at.NONE
    row[at.STAGE] = at.NONE
    row[at.LAST] = at.NONE


@inner
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


@inner
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


@inner
def leave_pool(state: SimState, executor: int) -> None:
    """The executor stops idling; it keeps its job."""
    row = state.executors[executor]
    if row[at.JOB] == at.NONE:
        state.clock[at.POOLED] -= 1
    else:
        state.jobs[row[at.JOB], at.IDLE] -= 1


@part
def first_runnable(state: SimState, bank: JobBank, job: int, executor_class: int) -> int:
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


@inner
def place_by_default(state: SimState, bank: JobBank, executor: int) -> None:
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


@inner
def take_up(state: SimState, bank: JobBank, executor: int, stage: int) -> None:
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
