"""Decision rounds: a source's executors are promised to stages, then the promises are kept."""

from __future__ import annotations

from loadmaster.envs.compiled import njit_inline, njit_internal
from loadmaster.envs.dag_scheduling import state as at
from loadmaster.envs.dag_scheduling.jobs import JobTemplates
from loadmaster.envs.dag_scheduling.placement import (
    fits,
    join_pool,
    leave_pool,
    schedulable,
    take_up,
    unplaced_executors,
)
from loadmaster.envs.dag_scheduling.state import SimState


@njit_internal
def pool_of(state: SimState, job: int) -> int:
    """The source number of a job's pool, or of the common pool where `job` is NONE."""
    return len(state.stages) + (len(state.jobs) if job == at.NONE else job)


@njit_internal
def open_pool_round(state: SimState, job: int) -> None:
    """Ask about every idle executor of `job`, or of the common pool."""
    state.clock[at.SOURCE] = pool_of(state, job)
    state.clock[at.SOURCE_JOB] = job
    state.clock[at.IN_HAND] = at.NONE
    for executor in range(len(state.executors)):
        row = state.executors[executor]
        if row[at.ACTIVITY] == at.FREE and row[at.JOB] == job:
            state.left[row[at.CLASS]] += 1


@njit_inline
def open_stage_round(state: SimState, stage: int, in_hand: int) -> None:
    """Ask about every executor on a stage without tasks, also those still at their last one."""
    state.clock[at.SOURCE] = stage
    state.clock[at.SOURCE_JOB] = state.executors[in_hand, at.JOB]
    state.clock[at.IN_HAND] = in_hand
    for executor in range(len(state.executors)):
        row = state.executors[executor]
        if row[at.STAGE] == stage:
            state.left[row[at.CLASS]] += 1
    entry = state.commit_first[stage]
    while entry != at.NONE:  # of several classes, some may have been promised before
        state.left[state.commitments[entry, at.OF_CLASS]] -= state.commitments[entry, at.AMOUNT]
        entry = state.commitments[entry, at.NEXT]


@njit_internal
def has_commitment(state: SimState, source: int, executor_class: int) -> bool:
    entry = state.commit_first[source]
    while entry != at.NONE:
        if state.commitments[entry, at.OF_CLASS] == executor_class:
            return True
        entry = state.commitments[entry, at.NEXT]
    return False


@njit_internal
def promise(state: SimState, stage: int, executor_class: int, amount: int) -> None:
    """Append a commitment of the round's source; `stage` NONE means: stay idle."""
    clock, commitments = state.clock, state.commitments
    entry = clock[at.FREE_COMMIT]
    clock[at.FREE_COMMIT] = commitments[entry, at.NEXT]
    commitments[entry, at.TO_STAGE] = stage
    commitments[entry, at.OF_CLASS] = executor_class
    commitments[entry, at.AMOUNT] = amount
    commitments[entry, at.NEXT] = at.NONE
    if stage != at.NONE:
        state.stages[stage, at.COMMITTED] += amount
        job = stage // state.setup[at.STRIDE]
        if job != clock[at.SOURCE_JOB]:
            state.jobs[job, at.COMMITTED_IN] += amount
    state.left[executor_class] -= amount
    last = state.commit_first[clock[at.SOURCE]]
    if last == at.NONE:
        state.commit_first[clock[at.SOURCE]] = entry
        return
    while commitments[last, at.NEXT] != at.NONE:
        last = commitments[last, at.NEXT]
    commitments[last, at.NEXT] = entry


@njit_internal
def able(state: SimState, kind: int) -> float:
    """How much executors of a class offer; the least able that fit are used first."""
    return state.capacity[kind, 0] + state.capacity[kind, 1]


@njit_internal
def place(state: SimState, bank: JobTemplates, stage: int, amount: int) -> None:
    """One decision: `amount` of the round's executors go to `stage`, the least able that fit."""
    state.clock[at.DECISIONS] += 1
    state.stages[stage, at.CHOSEN] = state.clock[at.ROUND]
    while amount > 0:
        best = at.NONE
        for kind in range(len(state.left)):
            if (
                state.left[kind] > 0
                and fits(state, bank, kind, stage)
                and (best == at.NONE or able(state, kind) < able(state, best))
            ):
                best = kind
        used = min(amount, state.left[best])
        promise(state, stage, best, used)
        amount -= used


@njit_inline
def choose(state: SimState, bank: JobTemplates, stage: int, amount: int) -> None:
    """One decision, and the round's end if it was the last one."""
    place(state, bank, stage, amount)
    if unplaced_executors(state) == 0:
        close_round(state, bank)


@njit_internal
def idle_rest(state: SimState, bank: JobTemplates) -> None:
    """Leave the round's remaining executors idle on purpose, and end the round."""
    for kind in range(len(state.left)):
        if state.left[kind] > 0:
            promise(state, at.NONE, kind, state.left[kind])
    close_round(state, bank)


@njit_inline
def close_round(state: SimState, bank: JobTemplates) -> None:
    """Everyone has a destination: those who are free now go there."""
    clock = state.clock
    source, job, in_hand = clock[at.SOURCE], clock[at.SOURCE_JOB], clock[at.IN_HAND]
    clock[at.ROUND] += 1
    clock[at.SOURCE] = at.NONE
    clock[at.SOURCE_JOB] = at.NONE
    clock[at.IN_HAND] = at.NONE
    if in_hand != at.NONE:
        fulfil(state, bank, in_hand, source)
        return
    for executor in range(len(state.executors)):
        row = state.executors[executor]
        if row[at.ACTIVITY] == at.FREE and row[at.JOB] == job:
            leave_pool(state, executor)
            fulfil(state, bank, executor, source)


@njit_internal
def fulfil(state: SimState, bank: JobTemplates, executor: int, source: int) -> None:
    """Keep the source's oldest promise to executors of this class."""
    commitments = state.commitments
    row = state.executors[executor]
    before, entry = at.NONE, state.commit_first[source]
    while commitments[entry, at.OF_CLASS] != row[at.CLASS]:
        before, entry = entry, commitments[entry, at.NEXT]
    stage = commitments[entry, at.TO_STAGE]
    commitments[entry, at.AMOUNT] -= 1
    if commitments[entry, at.AMOUNT] == 0:
        drop_commitment(state, source, before, entry)
    if stage == at.NONE:
        join_pool(
            state, executor, row[at.JOB] if has_tasks_to_start(state, row[at.JOB]) else at.NONE
        )
        return
    job = stage // state.setup[at.STRIDE]
    state.stages[stage, at.COMMITTED] -= 1
    if row[at.JOB] != job:
        state.jobs[job, at.COMMITTED_IN] -= 1
    take_up(state, bank, executor, stage)


@njit_inline
def has_tasks_to_start(state: SimState, job: int) -> bool:
    if job == at.NONE:
        return False
    stride = state.setup[at.STRIDE]
    for stage in range(job * stride, job * stride + state.jobs[job, at.STAGES]):
        if state.stages[stage, at.STARTED] < state.stages[stage, at.TASKS]:
            return True
    return False


@njit_internal
def drop_commitment(state: SimState, source: int, before: int, entry: int) -> None:
    """Unlink a list node; `before` is the one ahead of it, or NONE."""
    following = state.commitments[entry, at.NEXT]
    if before == at.NONE:
        state.commit_first[source] = following
    else:
        state.commitments[before, at.NEXT] = following
    state.commitments[entry, at.NEXT] = state.clock[at.FREE_COMMIT]
    state.clock[at.FREE_COMMIT] = entry


@njit_inline
def forget_commitments_to(state: SimState, job: int) -> None:
    """A finished job needs nobody: executors promised to it will be asked about again."""
    stride = state.setup[at.STRIDE]
    for executor in range(len(state.executors)):
        source = state.executors[executor, at.STAGE]
        if source == at.NONE:
            continue
        before, entry = at.NONE, state.commit_first[source]
        while entry != at.NONE:
            following = state.commitments[entry, at.NEXT]
            stage = state.commitments[entry, at.TO_STAGE]
            if stage != at.NONE and stage // stride == job:
                drop_commitment(state, source, before, entry)
            else:
                before = entry
            entry = following


@njit_internal
def anything_to_choose(state: SimState, bank: JobTemplates) -> bool:
    """Whether some stage can take one of the round's executors."""
    stride = state.setup[at.STRIDE]
    for position in range(state.clock[at.ACTIVE]):
        job = state.order[position]
        for stage in range(job * stride, job * stride + state.jobs[job, at.STAGES]):
            if schedulable(state, bank, stage):
                for kind in range(len(state.left)):
                    if state.left[kind] > 0 and fits(state, bank, kind, stage):
                        return True
    return False
