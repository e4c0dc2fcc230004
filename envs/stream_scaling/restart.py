"""Restarts and checkpoints: the job stops, and repeats what its last checkpoint does not contain.

A checkpoint begins with barriers behind the records that are in the job, and is complete when each
task has processed those before its barrier. A restart loses the records between the tasks; the
sources go back to the last complete checkpoint, after which all of these came.
"""

from loadmaster.envs.compiled import compiled, njit_internal
from loadmaster.envs.stream_scaling.instances import instance_class
from loadmaster.envs.stream_scaling.state import (
    CHECKPOINTING,
    CLASSES,
    DOWN_FOR,
    MINUTE,
    NOTHING,
    RESTARTED_AT,
    RESTARTS,
    UP_AT,
    Ints,
    JobTables,
    SimConstants,
    SimState,
)


@compiled
def rescale(job: JobTables, constants: SimConstants, state: SimState, plan: Ints) -> bool:
    """Give every task so many instances; a change restarts the job. Returns whether there was one.

    `plan` is adjusted in place to what the job allows.
    """
    fit_plan(job, constants, plan)
    changed = constants.published
    for task in range(len(plan)):
        changed = changed or plan[task] != state.parallelism[task]
    if changed:
        for task in range(len(plan)):
            state.parallelism[task] = plan[task]
        restart(job, constants, state)
    return changed


@njit_internal
def fit_plan(job: JobTables, constants: SimConstants, plan: Ints) -> None:
    """Apply the limits of tasks, chains (the largest of their tasks counts) and the job."""
    tasks = len(plan)
    for task in range(tasks):
        plan[task] = min(max(plan[task], 1), job.cap[task])
    for task in range(tasks):
        first = job.chain[task]
        plan[first] = max(plan[first], plan[task])
    for task in range(tasks):
        plan[task] = plan[job.chain[task]]
    # As published: a lower limit for every task until the sum fits.
    highest = 0
    for task in range(tasks):
        highest = max(highest, plan[task])
    while plan.sum() > constants.plan_limit and highest > 1:
        highest -= 1
        for task in range(tasks):
            plan[task] = min(plan[task], highest)


@njit_internal
def restart(job: JobTables, constants: SimConstants, state: SimState) -> None:
    """Stop the job now; it runs again after its restart time."""
    now, size = state.clock[MINUTE], 0.0
    for task in range(len(job.service_min)):
        size += job.state_mb[task]
    state.times[DOWN_FOR] = constants.restart_min + size * constants.restore_min_per_mb
    state.times[UP_AT] = now + state.times[DOWN_FOR]
    state.clock[RESTARTS] += 1
    state.clock[RESTARTED_AT] = now
    state.clock[CHECKPOINTING] = 0
    for task in range(len(job.service_min)):
        _place_records(job, constants, state, task)


@njit_internal
def _place_records(job: JobTables, constants: SimConstants, state: SimState, task: int) -> None:
    """Distribute a task's records over its new instances, after replay or loss."""
    minute, ring = state.clock[MINUTE], state.arrived.shape[1]
    arrived = state.arrived[task, (minute + ring - 1) % ring] if minute else 0.0
    if not constants.published:
        source = job.source[task] >= 0
        state.departed[task] = state.checkpoint[task] if source else arrived
    count, records = state.parallelism[task], arrived - state.departed[task]
    for kind in range(CLASSES):
        share = instance_class(job, constants, task, count, kind).share
        state.queue[kind, task] = records * share
        state.variance[kind, task] = 0.0


@njit_internal
def update_checkpoint(job: JobTables, constants: SimConstants, state: SimState, up: float) -> None:
    """At the end of a minute: complete the checkpoint under way, or begin the next one."""
    minute, ring = state.clock[MINUTE], state.arrived.shape[1]
    tasks = len(job.service_min)
    if state.clock[CHECKPOINTING]:
        complete = True
        for task in range(tasks):
            if state.departed[task] < state.barrier[task] - NOTHING:
                complete = False
        if complete:
            state.clock[CHECKPOINTING] = 0
            for task in range(tasks):
                state.checkpoint[task] = state.pending[task]
    if (
        up == 1.0
        and not state.clock[CHECKPOINTING]
        and (minute + 1) % constants.checkpoint_min == 0
    ):
        state.clock[CHECKPOINTING] = 1
        for task in range(tasks):
            state.pending[task] = state.departed[task]
            source = job.source[task] >= 0
            arrived = state.arrived[task, minute % ring]
            state.barrier[task] = state.departed[task] if source else arrived
