"""The simulator's whole state: integer tables with one row per job, stage or executor.

Copying the tables copies the simulation. Times are whole milliseconds. A job in the system holds
a slot; its stages hold the rows `slot * stride ... slot * stride + stages - 1`. Slots are reused
when jobs finish, so memory follows the jobs in the system, not the jobs of the episode.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.dag_scheduling.jobs import JobTemplates, Workload
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.errors import InputError

NONE = -1
NEVER = 1 << 62

# `clock`: scalars.
NOW, STATUS, SEQUENCE, NEXT_JOB, ACTIVE, FINISHED_JOBS = 0, 1, 2, 3, 4, 5
FINISHED_TASKS, DECISIONS, JOB_MS, UNLOCKS, ROUND, SOURCE = 6, 7, 8, 9, 10, 11
SOURCE_JOB, HELD_EXECUTOR, POOLED, FREE_COMMIT, PENDING, TRACE_ROWS = 12, 13, 14, 15, 16, 17
CHANGED, POOL_DECLINED = 18, 19
CLOCK_SIZE = 20
# NOW            ms since the episode began
# STATUS         RUNNING to GROW_TRACE
# SEQUENCE       numbers events; simultaneous events happen in the order they were scheduled
# NEXT_JOB       the next job of `arrivals`
# JOB_MS         integral over time of the jobs in the system, ms
# UNLOCKS        numbers the stages as they become runnable
# ROUND          numbers decision rounds; a stage chosen in this round carries its number
# SOURCE         whose executors the round places: a stage's row, or a pool (see pool_of)
# SOURCE_JOB     that source's job slot, or NONE
# HELD_EXECUTOR  the executor waiting for the round to end, or NONE if the source is a pool
# POOLED         idle executors that belong to no job
# FREE_COMMIT    head of the list of unused commitment rows
# PENDING        executors with an event scheduled (a task's end or an arrival)
# TRACE_ROWS     rows recorded so far
# CHANGED        round before which a job came or ended or a stage unlocked; 0: all were re-offered;
#                NONE: no executor has been left idle by choice yet
# POOL_DECLINED  DECLINED of the common pool

RUNNING, DECIDE, DONE, HORIZON, GROW_JOBS, GROW_TRACE = 0, 1, 2, 3, 4, 5
FULL = (GROW_JOBS, GROW_TRACE)  # a table is full: `enlarge` it and advance again

# `setup`: constants of an episode.
SEED, STRIDE, MOVING_MS, WARMUP_MS, AS_PUBLISHED, HORIZON_MS, TYPICAL_MS = 0, 1, 2, 3, 4, 5, 6
SETUP_SIZE = 7
# TYPICAL_MS   duration that observations give for every task; 0: each stage's own mean

# `jobs`, one row a slot. TEMPLATE is NONE in an empty slot.
TEMPLATE, NUMBER, ARRIVAL, STAGES, STAGES_DONE = 0, 1, 2, 3, 4
MEMBERS, INCOMING, COMMITTED_IN, IDLE, DECLINED = 5, 6, 7, 8, 9
JOB_COLUMNS = 10
# MEMBERS      executors that belong to the job, working or idle
# INCOMING     executors moving to it
# COMMITTED_IN executors of other jobs that are committed to it
# IDLE         members without a task
# DECLINED     0, or: its pool holds executors left idle by choice, last offered before this round

# `stages`, one row a stage.
PROFILE, TASKS, STARTED, FINISHED, COMMITTED, MOVING, WAITING, UNLOCKED = 0, 1, 2, 3, 4, 5, 6, 7
CHOSEN, RNG_KEY, ROW = 8, 9, 10
STAGE_COLUMNS = 11
# PROFILE      the stage's row in JobTemplates
# COMMITTED    executors committed to it; MOVING: executors on their way to it
# WAITING      unfinished parents
# UNLOCKED     order in which it became runnable (0: not yet)
# CHOSEN       the round it was last chosen in
# RNG_KEY      key of its task durations, which depend on no executor and no time
# ROW          its row in the last observation

# `executors`, one row each. A free executor has STAGE and DESTINATION NONE.
JOB, STAGE, LAST, DESTINATION, CLASS, EVENT_MS, EVENT_NUMBER, ACTIVITY = 0, 1, 2, 3, 4, 5, 6, 7
EXECUTOR_COLUMNS = 8
FREE, WORKING, TRAVELLING = 0, 1, 2
# LAST         the stage of its last task; NONE after a move or an idle time: the next is fresh

# `commitments`: linked-list nodes; executors committed before they come free.
TO_STAGE, OF_CLASS, AMOUNT, NEXT = 0, 1, 2, 3

# `trace` and `trace_ms`
TRACE_EXECUTOR, TRACE_JOB, TRACE_STAGE, TRACE_MOVING = 0, 1, 2, 3
TRACE_START, TRACE_END = 0, 1


class SimState(NamedTuple):
    """J slots, R = J * stride stage rows, E executors, C executor classes, N jobs an episode."""

    clock: NDArray[np.int64]  # (CLOCK_SIZE,)
    setup: NDArray[np.int64]  # (SETUP_SIZE,)
    arrivals: NDArray[np.int64]  # (N, 2) arrival time and template of each job
    completed_ms: NDArray[np.int64]  # (N,) NONE while unfinished
    order: NDArray[np.int64]  # (J,) slots of the jobs in the system, in order of arrival
    jobs: NDArray[np.int64]  # (J, JOB_COLUMNS)
    stages: NDArray[np.int64]  # (R, STAGE_COLUMNS)
    executors: NDArray[np.int64]  # (E, EXECUTOR_COLUMNS)
    tree: NDArray[np.int64]  # (2 * leaves,) tournament of next events; tree[1] is the earliest
    left: NDArray[np.int64]  # (C,) the source's executors this round has not yet placed
    capacity: NDArray[np.float64]  # (C, 2) CPU and memory of each class
    amount: NDArray[np.int64]  # (C,) executors of each class
    commit_first: NDArray[np.int64]  # (R + J + 1,) first commitment of each source
    commitments: NDArray[np.int64]  # (E + 1, 4)
    levels: NDArray[np.int64]  # (E + 1, 3) profile level below n executors, n - level, gap
    trace: NDArray[np.int32]  # (rows, 4) tasks and moves of executors; no rows: not recorded
    trace_ms: NDArray[np.int64]  # (rows, 2) their start and end


def new_state(
    settings: DagSchedulingSettings,
    workload: Workload,
    arrivals: NDArray[np.int64],
    seed: int,
    horizon_ms: int,
    trace_rows: int = 0,
    slots: int = 0,
) -> SimState:
    """Build an empty cluster at time 0 with all executors idle.

    `slots` is the initial number of job slots; 0 means enough for the jobs at time 0.
    """
    cluster = settings.cluster
    _check_every_stage_fits(settings, workload)
    executors = settings.total_executors
    slots = slots or max(8, int(np.count_nonzero(arrivals[:, 0] == 0)))
    stride = workload.stages_max
    leaves = 1 << max(1, (executors - 1).bit_length())
    state = SimState(
        clock=np.zeros(CLOCK_SIZE, np.int64),
        setup=np.zeros(SETUP_SIZE, np.int64),
        arrivals=arrivals,
        completed_ms=np.full(len(arrivals), NONE, np.int64),
        order=np.zeros(slots, np.int64),
        jobs=np.zeros((slots, JOB_COLUMNS), np.int64),
        stages=np.zeros((slots * stride, STAGE_COLUMNS), np.int64),
        executors=np.zeros((executors, EXECUTOR_COLUMNS), np.int64),
        tree=np.zeros(2 * leaves, np.int64),
        left=np.zeros(len(cluster), np.int64),
        capacity=np.array([(group.cpu, group.memory) for group in cluster]),
        amount=np.array([group.count for group in cluster], np.int64),
        commit_first=np.full(slots * stride + slots + 1, NONE, np.int64),
        commitments=np.zeros((executors + 1, 4), np.int64),
        levels=_level_table(workload.bank, executors),
        trace=np.zeros((trace_rows, 4), np.int32),
        trace_ms=np.zeros((trace_rows, 2), np.int64),
    )
    state.setup[:] = (
        seed,
        stride,
        round(settings.moving_delay_s * 1000),
        round(settings.warmup_s * 1000),
        settings.interpolation == "as-published",
        horizon_ms,
        _typical_ms(workload.bank) if settings.estimates == "missing" else 0,
    )
    state.clock[[SOURCE, SOURCE_JOB, HELD_EXECUTOR]] = NONE
    state.clock[POOLED] = executors
    state.clock[ROUND] = 1
    several = len(cluster) > 1  # then the common pool may hold executors that fitted no stage
    state.clock[[CHANGED, POOL_DECLINED]] = (0, 1) if several else (NONE, 0)
    state.jobs[:, TEMPLATE] = NONE
    state.executors[:, [JOB, STAGE, LAST, DESTINATION]] = NONE
    state.executors[:, EVENT_MS] = NEVER
    state.executors[:, CLASS] = np.repeat(np.arange(len(cluster)), [g.count for g in cluster])
    state.commitments[:, NEXT] = np.arange(1, len(state.commitments) + 1)
    state.commitments[-1, NEXT] = NONE
    state.tree[leaves:] = np.minimum(np.arange(leaves), executors - 1)
    while leaves > 1:  # no events yet: the first of each pair wins
        state.tree[leaves // 2 : leaves] = state.tree[leaves : 2 * leaves : 2]
        leaves //= 2
    return state


def clone_state(state: SimState) -> SimState:
    """Copy all tables."""
    return SimState._make(table.copy() for table in state)


def with_more_slots(state: SimState) -> SimState:
    """Double the job slots; call between rounds."""
    slots, rows = len(state.jobs), len(state.stages)
    jobs = _lengthened(state.jobs, 2 * slots)
    jobs[slots:, TEMPLATE] = NONE
    # Between rounds only stages hold commitments, and their rows keep their numbers.
    commit_first = np.full(2 * (rows + slots) + 1, NONE, np.int64)
    commit_first[:rows] = state.commit_first[:rows]
    stages, order = _lengthened(state.stages, 2 * rows), _lengthened(state.order, 2 * slots)
    return state._replace(jobs=jobs, stages=stages, commit_first=commit_first, order=order)


def with_more_trace(state: SimState) -> SimState:
    """Add half as many trace rows again. Zeroed pages take no memory before they are written."""
    rows = 1 + 3 * len(state.trace) // 2
    return state._replace(
        trace=_lengthened(state.trace, rows), trace_ms=_lengthened(state.trace_ms, rows)
    )


def _lengthened(table: NDArray[Any], rows: int) -> NDArray[Any]:
    longer = np.zeros((rows, *table.shape[1:]), table.dtype)
    longer[: len(table)] = table
    return longer


def enlarge(state: SimState, status: int) -> SimState:
    """Enlarge the table that `status` reports as full."""
    return with_more_slots(state) if status == GROW_JOBS else with_more_trace(state)


def _level_table(bank: JobTemplates, executors: int) -> NDArray[np.int64]:
    """(executors + 1, 3) For n executors: the level at or below n, n - level, gap to the next."""
    held = np.arange(executors + 1)
    below = np.maximum(np.searchsorted(bank.levels, held, side="right") - 1, 0)
    above = np.minimum(below + 1, len(bank.levels) - 1)
    gap = np.where(held > bank.levels[below], bank.levels[above] - bank.levels[below], 0)
    return np.stack([below, np.where(gap > 0, held - bank.levels[below], 0), gap], axis=1)


def _typical_ms(bank: JobTemplates) -> int:
    """Mean duration over all tasks of all templates."""
    return max(1, round(float(bank.work_ms.sum() / bank.tasks.sum())))


def _check_every_stage_fits(settings: DagSchedulingSettings, workload: Workload) -> None:
    bank = workload.bank
    fits = np.zeros(len(bank.tasks), bool)
    for group in settings.cluster:
        fits |= (bank.demand <= (group.cpu, group.memory)).all(axis=1)
    if not fits.all():
        stage = int(np.argmin(fits))
        template = int(np.searchsorted(bank.first_stage, stage, side="right")) - 1
        raise InputError(
            f"executor_classes: no class offers the {bank.demand[stage, 0]:g} CPU and "
            f"{bank.demand[stage, 1]:g} memory that job {workload.job_names[template]!r} needs; "
            "expected a class that fits every stage"
        )
