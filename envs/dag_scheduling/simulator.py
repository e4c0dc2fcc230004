"""The compiled event loop between two decisions.

The rules are those of the Spark simulator published with Decima (SIGCOMM 2019). An event frees an
executor; where it has no commitment, a decision round is opened for its *source*: a stage that
has run out of tasks, a job's idle executors, or the common pool. A round places all executors of
the source, one (stage, amount) at a time (rounds.py).
"""

import numpy as np

from loadmaster.envs.compiled import compiled, njit_inline, njit_internal, splitmix64
from loadmaster.envs.dag_scheduling import placement, rounds
from loadmaster.envs.dag_scheduling import state as cols
from loadmaster.envs.dag_scheduling.jobs import JobTemplates
from loadmaster.envs.dag_scheduling.rewards import advance_clock
from loadmaster.envs.dag_scheduling.state import NEVER, NONE, SimState


@compiled
def advance(state: SimState, bank: JobTemplates) -> int:
    """Run until a decision is needed, the episode ends or a table is full; return the status."""
    clock, executors, arrivals = state.clock, state.executors, state.arrivals
    trace_room = len(state.trace) - 2 * len(executors) - 2 if len(state.trace) > 0 else NEVER
    clock[cols.STATUS] = cols.RUNNING
    while clock[cols.STATUS] == cols.RUNNING:
        if clock[cols.SOURCE] != NONE:
            if rounds.has_choice(state, bank):
                clock[cols.STATUS] = cols.DECIDE
            else:
                rounds.idle_rest(state, bank)
            continue
        if clock[cols.ACTIVE] == 0 and clock[cols.NEXT_JOB] == len(arrivals):
            clock[cols.STATUS] = cols.DONE  # an executor may still be on its way to the last job
            continue
        if clock[cols.TRACE_ROWS] >= trace_room:  # an event and its round may record that much
            clock[cols.STATUS] = cols.GROW_TRACE
            continue
        if clock[cols.CHANGED] > 0:
            reoffer_declined(state)
            continue
        next_arrival = NEVER
        if clock[cols.NEXT_JOB] < len(arrivals):
            next_arrival = arrivals[clock[cols.NEXT_JOB], 0]
        run_task_waves(state, bank, min(next_arrival, state.setup[cols.HORIZON_MS] + 1), trace_room)
        if clock[cols.TRACE_ROWS] >= trace_room:
            continue  # it stopped for lack of rows: the next event may be another of its kind
        executor = state.tree[1]
        when = min(executors[executor, cols.EVENT_MS], next_arrival)
        arriving = when == next_arrival
        if when == NEVER:
            reoffer_idle_executors(state, bank)
            continue
        if when > state.setup[cols.HORIZON_MS]:
            advance_clock(clock, state.setup[cols.HORIZON_MS])
            clock[cols.STATUS] = cols.HORIZON
            continue
        if arriving:
            if clock[cols.ACTIVE] == len(state.jobs):
                clock[cols.STATUS] = cols.GROW_JOBS
                continue
            advance_clock(clock, when)
            admit_job(state, bank)
        else:
            advance_clock(clock, when)
            if executors[executor, cols.ACTIVITY] == cols.WORKING:
                finish_task(state, bank, executor)
            else:
                executor_arrives(state, bank, executor)
    return clock[cols.STATUS]


@njit_inline
def run_task_waves(state: SimState, bank: JobTemplates, until_ms: int, trace_room: int) -> None:
    """Process, in a fast path, task ends at stages that have another task for the executor.

    More than nine events in ten are of this kind, and none of them needs a decision.
    """
    clock, executors, stages = state.clock, state.executors, state.stages
    while clock[cols.TRACE_ROWS] < trace_room:
        executor = state.tree[1]
        when = executors[executor, cols.EVENT_MS]
        if when >= until_ms or executors[executor, cols.ACTIVITY] != cols.WORKING:
            return
        stage = executors[executor, cols.STAGE]
        if stages[stage, cols.STARTED] >= stages[stage, cols.TASKS]:
            return
        advance_clock(clock, when)
        stages[stage, cols.FINISHED] += 1
        clock[cols.FINISHED_TASKS] += 1
        placement.start_task(state, bank, executor, stage)


@njit_inline
def note_change(state: SimState) -> None:
    """Have executors that were left idle by choice offered again: there is something new to do.

    With several classes those of the common pool count too: they may fit a stage now.
    """
    if state.clock[cols.CHANGED] != NONE:
        state.clock[cols.CHANGED] = state.clock[cols.ROUND]


@njit_internal
def reoffer_declined(state: SimState) -> None:
    """Open a round for the next pool that was declined before the change, the common one first."""
    clock = state.clock
    for position in range(-1, clock[cols.ACTIVE]):
        job = NONE if position < 0 else state.order[position]
        idle = clock[cols.POOLED] if position < 0 else state.jobs[job, cols.IDLE]
        if idle > 0 and 0 < rounds.declined_before(state, job) <= clock[cols.CHANGED]:
            rounds.open_pool_round(state, job)
            return
    clock[cols.CHANGED] = 0


@njit_inline
def reoffer_idle_executors(state: SimState, bank: JobTemplates) -> None:
    """Open a round for idle executors when jobs are left and no event is scheduled.

    The common pool comes first, then the jobs' own. With several classes, a pool may hold only
    executors that fit no stage left; then the next pool is tried, or the episode would never end.
    """
    for position in range(-1, state.clock[cols.ACTIVE]):
        job = NONE if position < 0 else state.order[position]
        idle = state.clock[cols.POOLED] if position < 0 else state.jobs[job, cols.IDLE]
        if idle > 0:
            rounds.open_pool_round(state, job)
            if rounds.has_choice(state, bank):
                return
            rounds.idle_rest(state, bank)


@njit_inline
def admit_job(state: SimState, bank: JobTemplates) -> None:
    """Put the next job into a slot and open a round for the common pool."""
    clock = state.clock
    number = clock[cols.NEXT_JOB]
    slot = 0
    while state.jobs[slot, cols.TEMPLATE] != NONE:
        slot += 1
    job = state.jobs[slot]
    template = state.arrivals[number, 1]
    first = bank.first_stage[template]
    job[:] = 0
    job[cols.TEMPLATE] = template
    job[cols.NUMBER] = number
    job[cols.ARRIVAL] = clock[cols.NOW]
    job[cols.STAGES] = bank.first_stage[template + 1] - first
    job_key = splitmix64(state.setup[cols.SEED], number)
    for index in range(job[cols.STAGES]):
        stage = state.stages[slot * state.setup[cols.STRIDE] + index]
        stage[:] = 0
        stage[cols.PROFILE] = first + index
        stage[cols.TASKS] = bank.tasks[first + index]
        parents_end = bank.parent_first[first + index + 1]
        stage[cols.WAITING] = parents_end - bank.parent_first[first + index]
        stage[cols.RNG_KEY] = np.int64(splitmix64(job_key, index))
        if stage[cols.WAITING] == 0:
            clock[cols.UNLOCKS] += 1
            stage[cols.UNLOCKED] = clock[cols.UNLOCKS]
    state.order[clock[cols.ACTIVE]] = slot
    clock[cols.ACTIVE] += 1
    clock[cols.NEXT_JOB] += 1
    # All jobs that arrive at the same time come before the round.
    more_now = (
        clock[cols.NEXT_JOB] < len(state.arrivals)
        and state.arrivals[clock[cols.NEXT_JOB], 0] == clock[cols.NOW]
    )
    if more_now:
        return
    note_change(state)
    if clock[cols.POOLED] > 0:
        rounds.open_pool_round(state, NONE)


@njit_inline
def executor_arrives(state: SimState, bank: JobTemplates, executor: int) -> None:
    """End an executor's move; its destination is NONE if that job has finished meanwhile."""
    row = state.executors[executor]
    stage = row[cols.DESTINATION]
    row[cols.DESTINATION] = NONE
    if stage == NONE:
        placement.place_by_default(state, bank, executor)
        return
    job = stage // state.setup[cols.STRIDE]
    state.stages[stage, cols.MOVING] -= 1
    state.jobs[job, cols.INCOMING] -= 1
    state.jobs[job, cols.MEMBERS] += 1
    row[cols.JOB] = job
    placement.assign(state, bank, executor, stage)


@njit_inline
def finish_task(state: SimState, bank: JobTemplates, executor: int) -> None:
    """End a task at a stage without unstarted ones: execute a commitment or open a round."""
    clock = state.clock
    row = state.executors[executor]
    stage, job = row[cols.STAGE], row[cols.JOB]
    stage_row = state.stages[stage]
    stage_row[cols.FINISHED] += 1
    clock[cols.FINISHED_TASKS] += 1
    placement.clear_event(clock, state.tree, state.executors, executor)
    unlocked = stage_row[cols.FINISHED] == stage_row[cols.TASKS] and complete_stage(
        state, bank, job, stage
    )
    committed = rounds.has_commitment(state, stage, row[cols.CLASS])
    if committed:
        rounds.execute_commitment(state, bank, executor, stage)
    if unlocked:
        # A child became runnable: the round is for all idle executors of the job.
        if not committed:
            placement.join_pool(state, executor, job)
        if state.jobs[job, cols.IDLE] > 0:
            rounds.open_pool_round(state, job)
    elif not committed:
        rounds.open_stage_round(state, stage, executor)
    if state.jobs[job, cols.STAGES_DONE] == state.jobs[job, cols.STAGES]:
        complete_job(state, job)


@njit_inline
def complete_stage(state: SimState, bank: JobTemplates, job: int, stage: int) -> bool:
    """Unlock the children whose last unfinished parent this was; return whether there are any."""
    state.jobs[job, cols.STAGES_DONE] += 1
    profile = state.stages[stage, cols.PROFILE]
    first_row = job * state.setup[cols.STRIDE]
    unlocked = False
    for edge in range(bank.child_first[profile], bank.child_first[profile + 1]):
        child = state.stages[first_row + bank.child[edge]]
        child[cols.WAITING] -= 1
        if child[cols.WAITING] == 0:
            state.clock[cols.UNLOCKS] += 1
            child[cols.UNLOCKED] = state.clock[cols.UNLOCKS]
            unlocked = True
    if unlocked:
        note_change(state)
    return unlocked


@njit_inline
def complete_job(state: SimState, job: int) -> None:
    """Free the job's slot and release its executors to the common pool."""
    clock = state.clock
    stride = state.setup[cols.STRIDE]
    state.completed_ms[state.jobs[job, cols.NUMBER]] = clock[cols.NOW]
    rounds.cancel_commitments_to(state, job)
    if clock[cols.SOURCE_JOB] == job:  # its last executor's round goes on in the common pool
        clock[cols.SOURCE] = rounds.pool_of(state, NONE)
        clock[cols.SOURCE_JOB] = NONE
    for executor in range(len(state.executors)):
        row = state.executors[executor]
        if row[cols.JOB] == job:
            placement.leave_job(state, executor)
            if executor != clock[cols.HELD_EXECUTOR]:
                clock[cols.POOLED] += 1
        elif row[cols.DESTINATION] != NONE and row[cols.DESTINATION] // stride == job:
            row[cols.DESTINATION] = NONE
    state.jobs[job, cols.TEMPLATE] = NONE
    clock[cols.FINISHED_JOBS] += 1
    position = 0
    while state.order[position] != job:
        position += 1
    clock[cols.ACTIVE] -= 1
    for later in range(position, clock[cols.ACTIVE]):
        state.order[later] = state.order[later + 1]
    if state.jobs[job, cols.DECLINED] > 0:
        rounds.mark_declined(state, NONE, state.jobs[job, cols.DECLINED])
    note_change(state)
