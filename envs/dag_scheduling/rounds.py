"""Decision rounds: commit a source's executors to stages, then execute the commitments."""

from loadmaster.envs.compiled import njit_inline, njit_internal
from loadmaster.envs.dag_scheduling import placement
from loadmaster.envs.dag_scheduling import state as cols
from loadmaster.envs.dag_scheduling.jobs import JobTemplates
from loadmaster.envs.dag_scheduling.state import NONE, SimState


@njit_internal
def pool_of(state: SimState, job: int) -> int:
    """Return the source number of a job's pool, or of the common pool where `job` is NONE."""
    return len(state.stages) + (len(state.jobs) if job == NONE else job)


@njit_internal
def declined_before(state: SimState, job: int) -> int:
    """Return DECLINED of a job's pool, or of the common pool where `job` is NONE."""
    return state.clock[cols.POOL_DECLINED] if job == NONE else state.jobs[job, cols.DECLINED]


@njit_internal
def mark_declined(state: SimState, job: int, number: int) -> None:
    """Note that the pool holds executors left idle by choice and was offered before a round."""
    if job == NONE:
        state.clock[cols.POOL_DECLINED] = number
    else:
        state.jobs[job, cols.DECLINED] = number


@njit_internal
def open_pool_round(state: SimState, job: int) -> None:
    """Open a round for the idle executors of `job`, or of the common pool."""
    state.clock[cols.SOURCE] = pool_of(state, job)
    state.clock[cols.SOURCE_JOB] = job
    state.clock[cols.HELD_EXECUTOR] = NONE
    if declined_before(state, job) > 0:
        mark_declined(state, job, state.clock[cols.ROUND] + 1)
    for executor in range(len(state.executors)):
        row = state.executors[executor]
        if row[cols.ACTIVITY] == cols.FREE and row[cols.JOB] == job:
            state.left[row[cols.CLASS]] += 1


@njit_inline
def open_stage_round(state: SimState, stage: int, in_hand: int) -> None:
    """Open a round for all executors on a stage without unstarted tasks, busy ones included."""
    state.clock[cols.SOURCE] = stage
    state.clock[cols.SOURCE_JOB] = state.executors[in_hand, cols.JOB]
    state.clock[cols.HELD_EXECUTOR] = in_hand
    for executor in range(len(state.executors)):
        row = state.executors[executor]
        if row[cols.STAGE] == stage:
            state.left[row[cols.CLASS]] += 1
    entry = state.commit_first[stage]
    while entry != NONE:  # with several classes, some may be committed already
        state.left[state.commitments[entry, cols.OF_CLASS]] -= state.commitments[entry, cols.AMOUNT]
        entry = state.commitments[entry, cols.NEXT]


@njit_internal
def has_commitment(state: SimState, source: int, executor_class: int) -> bool:
    entry = state.commit_first[source]
    while entry != NONE:
        if state.commitments[entry, cols.OF_CLASS] == executor_class:
            return True
        entry = state.commitments[entry, cols.NEXT]
    return False


@njit_internal
def commit(state: SimState, stage: int, executor_class: int, amount: int) -> None:
    """Append a commitment of the round's source; `stage` NONE means to idle."""
    clock, commitments = state.clock, state.commitments
    entry = clock[cols.FREE_COMMIT]
    clock[cols.FREE_COMMIT] = commitments[entry, cols.NEXT]
    commitments[entry, cols.TO_STAGE] = stage
    commitments[entry, cols.OF_CLASS] = executor_class
    commitments[entry, cols.AMOUNT] = amount
    commitments[entry, cols.NEXT] = NONE
    if stage != NONE:
        state.stages[stage, cols.COMMITTED] += amount
        job = stage // state.setup[cols.STRIDE]
        if job != clock[cols.SOURCE_JOB]:
            state.jobs[job, cols.COMMITTED_IN] += amount
    state.left[executor_class] -= amount
    last = state.commit_first[clock[cols.SOURCE]]
    if last == NONE:
        state.commit_first[clock[cols.SOURCE]] = entry
        return
    while commitments[last, cols.NEXT] != NONE:
        last = commitments[last, cols.NEXT]
    commitments[last, cols.NEXT] = entry


@njit_internal
def class_capacity(state: SimState, kind: int) -> float:
    """Add up what an executor of a class offers; the smallest class that fits is used first."""
    return state.capacity[kind, 0] + state.capacity[kind, 1]


@njit_internal
def place(state: SimState, bank: JobTemplates, stage: int, amount: int) -> None:
    """Commit `amount` of the round's executors to `stage`, from the smallest classes that fit."""
    state.clock[cols.DECISIONS] += 1
    state.stages[stage, cols.CHOSEN] = state.clock[cols.ROUND]
    while amount > 0:
        best = NONE
        for kind in range(len(state.left)):
            if (
                state.left[kind] > 0
                and placement.fits(state, bank, kind, stage)
                and (best == NONE or class_capacity(state, kind) < class_capacity(state, best))
            ):
                best = kind
        used = min(amount, state.left[best])
        commit(state, stage, best, used)
        amount -= used


@njit_inline
def choose(state: SimState, bank: JobTemplates, stage: int, amount: int) -> None:
    """Place executors at `stage`, and close the round if none are left."""
    place(state, bank, stage, amount)
    if placement.unplaced_executors(state) == 0:
        close_round(state, bank)


@njit_internal
def idle_rest(state: SimState, bank: JobTemplates) -> None:
    """Leave the round's remaining executors, busy ones included, idle and close the round."""
    for kind in range(len(state.left)):
        if state.left[kind] > 0:
            commit(state, NONE, kind, state.left[kind])
    close_round(state, bank)


@njit_internal
def decline_rest(state: SimState, bank: JobTemplates) -> None:
    """Leave the round's remaining executors idle by choice and close the round.

    Unlike those of `idle_rest` they are offered again whenever a job comes or ends or a stage
    unlocks, and busy ones at the end of their task. The published simulator has no such offers.
    """
    if state.setup[cols.AS_PUBLISHED]:
        idle_rest(state, bank)
        return
    state.left[:] = 0
    close_round(state, bank)


@njit_inline
def close_round(state: SimState, bank: JobTemplates) -> None:
    """Close the round and execute the commitments of the executors that are free now."""
    clock = state.clock
    source, job, in_hand = clock[cols.SOURCE], clock[cols.SOURCE_JOB], clock[cols.HELD_EXECUTOR]
    clock[cols.ROUND] += 1
    clock[cols.SOURCE] = NONE
    clock[cols.SOURCE_JOB] = NONE
    clock[cols.HELD_EXECUTOR] = NONE
    if in_hand != NONE:
        execute_commitment(state, bank, in_hand, source)
        return
    for executor in range(len(state.executors)):
        row = state.executors[executor]
        if row[cols.ACTIVITY] == cols.FREE and row[cols.JOB] == job:
            placement.leave_pool(state, executor)
            execute_commitment(state, bank, executor, source)


@njit_internal
def execute_commitment(state: SimState, bank: JobTemplates, executor: int, source: int) -> None:
    """Execute the source's oldest commitment for executors of this class; idle without one."""
    commitments = state.commitments
    row = state.executors[executor]
    before, entry = NONE, state.commit_first[source]
    while entry != NONE and commitments[entry, cols.OF_CLASS] != row[cols.CLASS]:
        before, entry = entry, commitments[entry, cols.NEXT]
    if entry == NONE:
        mark_declined(state, join_idle(state, executor), state.clock[cols.ROUND])
        state.clock[cols.CHANGED] = max(state.clock[cols.CHANGED], 0)
        return
    stage = commitments[entry, cols.TO_STAGE]
    commitments[entry, cols.AMOUNT] -= 1
    if commitments[entry, cols.AMOUNT] == 0:
        drop_commitment(state, source, before, entry)
    if stage == NONE:
        join_idle(state, executor)
        return
    job = stage // state.setup[cols.STRIDE]
    state.stages[stage, cols.COMMITTED] -= 1
    if row[cols.JOB] != job:
        state.jobs[job, cols.COMMITTED_IN] -= 1
    placement.assign(state, bank, executor, stage)


@njit_internal
def join_idle(state: SimState, executor: int) -> int:
    """Idle the executor in its job's pool if tasks are left there; return the job, or NONE."""
    job = state.executors[executor, cols.JOB]
    if not has_tasks_to_start(state, job):
        job = NONE
    placement.join_pool(state, executor, job)
    return job


@njit_inline
def has_tasks_to_start(state: SimState, job: int) -> bool:
    if job == NONE:
        return False
    stride = state.setup[cols.STRIDE]
    for stage in range(job * stride, job * stride + state.jobs[job, cols.STAGES]):
        if state.stages[stage, cols.STARTED] < state.stages[stage, cols.TASKS]:
            return True
    return False


@njit_internal
def drop_commitment(state: SimState, source: int, before: int, entry: int) -> None:
    """Unlink a list node; `before` is its predecessor, or NONE."""
    following = state.commitments[entry, cols.NEXT]
    if before == NONE:
        state.commit_first[source] = following
    else:
        state.commitments[before, cols.NEXT] = following
    state.commitments[entry, cols.NEXT] = state.clock[cols.FREE_COMMIT]
    state.clock[cols.FREE_COMMIT] = entry


@njit_inline
def cancel_commitments_to(state: SimState, job: int) -> None:
    """Drop all commitments to a finished job; those executors get a new round."""
    stride = state.setup[cols.STRIDE]
    for executor in range(len(state.executors)):
        source = state.executors[executor, cols.STAGE]
        if source == NONE:
            continue
        before, entry = NONE, state.commit_first[source]
        while entry != NONE:
            following = state.commitments[entry, cols.NEXT]
            stage = state.commitments[entry, cols.TO_STAGE]
            if stage != NONE and stage // stride == job:
                drop_commitment(state, source, before, entry)
            else:
                before = entry
            entry = following


@njit_internal
def has_choice(state: SimState, bank: JobTemplates) -> bool:
    """Check that some stage can take one of the round's executors."""
    stride = state.setup[cols.STRIDE]
    for position in range(state.clock[cols.ACTIVE]):
        job = state.order[position]
        for stage in range(job * stride, job * stride + state.jobs[job, cols.STAGES]):
            if placement.schedulable(state, bank, stage):
                for kind in range(len(state.left)):
                    if state.left[kind] > 0 and placement.fits(state, bank, kind, stage):
                        return True
    return False
