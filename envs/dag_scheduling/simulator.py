"""The compiled simulator: everything that happens between two decisions.

The rules are those of the Spark simulator published with Decima (SIGCOMM 2019), on which its
figures rest. An event frees an executor; where nobody has said what it does next, a decision round
is held for its *source*: a stage that has run out of tasks, a job's idle executors, or the common
pool. A round places all executors of the source, one (stage, amount) at a time (rounds.py).
"""

from __future__ import annotations

import numpy as np

from loadmaster.envs.compiled import compiled, njit_inline, njit_internal
from loadmaster.envs.dag_scheduling import state as at
from loadmaster.envs.dag_scheduling.jobs import JobTemplates
from loadmaster.envs.dag_scheduling.placement import (
    Table,
    clear_event,
    join_pool,
    leave_job,
    place_by_default,
    start_task,
    take_up,
)
from loadmaster.envs.dag_scheduling.rounds import (
    anything_to_choose,
    forget_commitments_to,
    fulfil,
    has_commitment,
    idle_rest,
    open_pool_round,
    open_stage_round,
)
from loadmaster.envs.dag_scheduling.state import SimState
from loadmaster.envs.random import splitmix64


@compiled
def advance(state: SimState, bank: JobTemplates) -> int:
    """Run until a decision is needed, the episode ends or a table is full; the new status."""
    clock, executors, arrivals = state.clock, state.executors, state.arrivals
    trace_room = len(state.trace) - 2 * len(executors) - 2 if len(state.trace) > 0 else at.NEVER
    clock[at.STATUS] = at.RUNNING
    while clock[at.STATUS] == at.RUNNING:
        if clock[at.SOURCE] != at.NONE:
            if anything_to_choose(state, bank):
                clock[at.STATUS] = at.DECIDE
            else:
                idle_rest(state, bank)
            continue
        if clock[at.ACTIVE] == 0 and clock[at.NEXT_JOB] == len(arrivals):
            clock[at.STATUS] = at.DONE  # somebody may still be on the way to the last job: too late
            continue
        if clock[at.TRACE_ROWS] >= trace_room:  # an event and its round may record that much
            clock[at.STATUS] = at.GROW_TRACE
            continue
        if clock[at.RECALL] and clock[at.POOLED] > 0:
            clock[at.RECALL] = 0
            open_pool_round(state, at.NONE)
            continue
        next_arrival = at.NEVER
        if clock[at.NEXT_JOB] < len(arrivals):
            next_arrival = arrivals[clock[at.NEXT_JOB], 0]
        run_waves(state, bank, min(next_arrival, state.setup[at.HORIZON_MS] + 1), trace_room)
        if clock[at.TRACE_ROWS] >= trace_room:
            continue  # it stopped in the middle: the next event may be one of its own
        executor = state.tree[1]
        when = min(executors[executor, at.EVENT_MS], next_arrival)
        arriving = when == next_arrival
        if when == at.NEVER:
            ask_idle_executors(state, bank)
            continue
        if when > state.setup[at.HORIZON_MS]:
            move_clock(clock, state.setup[at.HORIZON_MS])
            clock[at.STATUS] = at.HORIZON
            continue
        if arriving:
            if clock[at.ACTIVE] == len(state.jobs):
                clock[at.STATUS] = at.GROW_JOBS
                continue
            move_clock(clock, when)
            admit_job(state, bank)
        else:
            move_clock(clock, when)
            if executors[executor, at.ACTIVITY] == at.WORKING:
                finish_task(state, bank, executor)
            else:
                arrive(state, bank, executor)
    return clock[at.STATUS]


@njit_inline
def run_waves(state: SimState, bank: JobTemplates, until_ms: int, trace_room: int) -> None:
    """The fast path: executors that finish a task of a stage which has another one for them.

    More than nine events in ten are of this kind, and none of them needs anybody's attention.
    """
    clock, executors, stages = state.clock, state.executors, state.stages
    while clock[at.TRACE_ROWS] < trace_room:
        executor = state.tree[1]
        when = executors[executor, at.EVENT_MS]
        if when >= until_ms or executors[executor, at.ACTIVITY] != at.WORKING:
            return
        stage = executors[executor, at.STAGE]
        if stages[stage, at.STARTED] >= stages[stage, at.TASKS]:
            return
        move_clock(clock, when)
        stages[stage, at.FINISHED] += 1
        clock[at.FINISHED_TASKS] += 1
        start_task(state, bank, executor, stage)


@njit_internal
def move_clock(clock: Table, when: int) -> None:
    """Time passes; every job in the system has waited that much longer."""
    clock[at.JOB_MS] += clock[at.ACTIVE] * (when - clock[at.NOW])
    clock[at.NOW] = when


@njit_inline
def ask_idle_executors(state: SimState, bank: JobTemplates) -> None:
    """Jobs are left but nothing is going to happen: everyone was sent to idle. Ask again.

    The common pool comes first, then the jobs' own. Of several classes, a pool may hold only
    executors that fit nothing left: then the next pool is asked, else nobody would ever be.
    """
    for position in range(-1, state.clock[at.ACTIVE]):
        job = at.NONE if position < 0 else state.order[position]
        idle = state.clock[at.POOLED] if position < 0 else state.jobs[job, at.IDLE]
        if idle > 0:
            open_pool_round(state, job)
            if anything_to_choose(state, bank):
                return
            idle_rest(state, bank)


@njit_inline
def admit_job(state: SimState, bank: JobTemplates) -> None:
    """The next job of the sequence takes a slot; executors of no job are offered to it."""
    clock = state.clock
    number = clock[at.NEXT_JOB]
    slot = 0
    while state.jobs[slot, at.TEMPLATE] != at.NONE:
        slot += 1
    job = state.jobs[slot]
    template = state.arrivals[number, 1]
    first = bank.first_stage[template]
    job[:] = 0
    job[at.TEMPLATE] = template
    job[at.NUMBER] = number
    job[at.ARRIVAL] = clock[at.NOW]
    job[at.STAGES] = bank.first_stage[template + 1] - first
    luck = splitmix64(state.setup[at.SEED], number)
    for index in range(job[at.STAGES]):
        stage = state.stages[slot * state.setup[at.STRIDE] + index]
        stage[:] = 0
        stage[at.PROFILE] = first + index
        stage[at.TASKS] = bank.tasks[first + index]
        stage[at.WAITING] = bank.parent_first[first + index + 1] - bank.parent_first[first + index]
        stage[at.LUCK] = np.int64(splitmix64(luck, index))
        if stage[at.WAITING] == 0:
            clock[at.UNLOCKS] += 1
            stage[at.UNLOCKED] = clock[at.UNLOCKS]
    state.order[clock[at.ACTIVE]] = slot
    clock[at.ACTIVE] += 1
    clock[at.NEXT_JOB] += 1
    # The jobs of one moment all arrive before anybody is asked.
    more_now = (
        clock[at.NEXT_JOB] < len(state.arrivals)
        and state.arrivals[clock[at.NEXT_JOB], 0] == clock[at.NOW]
    )
    if clock[at.POOLED] > 0 and not more_now:
        open_pool_round(state, at.NONE)


@njit_inline
def arrive(state: SimState, bank: JobTemplates, executor: int) -> None:
    """A moving executor has come to its new job, unless that has finished meanwhile."""
    row = state.executors[executor]
    stage = row[at.DESTINATION]
    row[at.DESTINATION] = at.NONE
    if stage == at.NONE:
        place_by_default(state, bank, executor)
        return
    job = stage // state.setup[at.STRIDE]
    state.stages[stage, at.MOVING] -= 1
    state.jobs[job, at.INCOMING] -= 1
    state.jobs[job, at.MEMBERS] += 1
    row[at.JOB] = job
    take_up(state, bank, executor, stage)


@njit_inline
def finish_task(state: SimState, bank: JobTemplates, executor: int) -> None:
    """The stage has no task left to start: the executor keeps a promise, or becomes a question."""
    clock = state.clock
    row = state.executors[executor]
    stage, job = row[at.STAGE], row[at.JOB]
    stage_row = state.stages[stage]
    stage_row[at.FINISHED] += 1
    clock[at.FINISHED_TASKS] += 1
    clear_event(clock, state.tree, state.executors, executor)
    unlocked = stage_row[at.FINISHED] == stage_row[at.TASKS] and complete_stage(
        state, bank, job, stage
    )
    promised = has_commitment(state, stage, row[at.CLASS])
    if promised:
        fulfil(state, bank, executor, stage)
    if unlocked:
        # A child became runnable: all idle executors of the job are asked about, this one too.
        if not promised:
            join_pool(state, executor, job)
        if state.jobs[job, at.IDLE] > 0:
            open_pool_round(state, job)
    elif not promised:
        open_stage_round(state, stage, executor)
    if state.jobs[job, at.STAGES_DONE] == state.jobs[job, at.STAGES]:
        complete_job(state, job)


@njit_inline
def complete_stage(state: SimState, bank: JobTemplates, job: int, stage: int) -> bool:
    """Children whose last parent this was become runnable; whether there were any."""
    state.jobs[job, at.STAGES_DONE] += 1
    profile = state.stages[stage, at.PROFILE]
    first_row = job * state.setup[at.STRIDE]
    unlocked = False
    for edge in range(bank.child_first[profile], bank.child_first[profile + 1]):
        child = state.stages[first_row + bank.child[edge]]
        child[at.WAITING] -= 1
        if child[at.WAITING] == 0:
            state.clock[at.UNLOCKS] += 1
            child[at.UNLOCKED] = state.clock[at.UNLOCKS]
            unlocked = True
    if unlocked and len(state.left) > 1:
        state.clock[at.RECALL] = 1
    return unlocked


@njit_inline
def complete_job(state: SimState, job: int) -> None:
    """Free the slot; the job's executors belong to the common pool now."""
    clock = state.clock
    stride = state.setup[at.STRIDE]
    state.completed_ms[state.jobs[job, at.NUMBER]] = clock[at.NOW]
    forget_commitments_to(state, job)
    if clock[at.SOURCE_JOB] == job:  # the round about its last executor goes on without it
        clock[at.SOURCE] = len(state.stages) + len(state.jobs)
        clock[at.SOURCE_JOB] = at.NONE
    for executor in range(len(state.executors)):
        row = state.executors[executor]
        if row[at.JOB] == job:
            leave_job(state, executor)
            if executor != clock[at.IN_HAND]:
                clock[at.POOLED] += 1
        elif row[at.DESTINATION] != at.NONE and row[at.DESTINATION] // stride == job:
            row[at.DESTINATION] = at.NONE
    state.jobs[job, at.TEMPLATE] = at.NONE
    clock[at.FINISHED_JOBS] += 1
    position = 0
    while state.order[position] != job:
        position += 1
    clock[at.ACTIVE] -= 1
    for later in range(position, clock[at.ACTIVE]):
        state.order[later] = state.order[later + 1]
    if len(state.left) > 1:
        clock[at.RECALL] = 1
