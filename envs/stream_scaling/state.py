"""Tables of the simulator: the job, which does not change, and the state of an episode."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

HOT, COOL = 0, 1  # classes of a task's instances: those with the largest share of keys, the others
CLASSES = 2
NOTHING = 1e-9  # records: fewer count as none

# Columns of `SimState.clock`.
MINUTE, HORIZON, RESTARTS, RESTARTED_AT, CHECKPOINTING = range(5)
CLOCK_COLUMNS = 5

# Columns of `SimState.times`, in minutes.
UP_AT, DOWN_FOR = 0, 1  # when the job runs again; how long the last restart takes
TIME_COLUMNS = 2

# Columns of `SimState.sums`, over the minutes so far.
SUM_LATENCY, SUM_BUSY_SHARE, SUM_MINUTES = range(3)
SUM_COLUMNS = 3

# Columns of `SimState.metrics`: what a task reports for a minute.
(
    PARALLELISM, BUSY, IDLE, BLOCKED, HOT_BUSY, IN_RATE, OUT_RATE, QUEUED, BUFFER_USE, PENDING,
) = range(10)  # fmt: skip
METRIC_COLUMNS = 10

# Columns of `SimState.outcome`: the job's result in a minute.
LATENCY, LATENCY_VARIANCE, OUTPUT, UTILISATION, INSTANCES, SLOTS, LAG, UP = range(8)
OUTCOME_COLUMNS = 8

# Columns of `JobTables.faults`; times in minutes.
FAULT_KIND, FAULT_TASK, FAULT_FROM, FAULT_UNTIL, FAULT_FACTOR = range(5)
DRIFT, LOST_INSTANCE = range(2)


class JobTables(NamedTuple):
    """A job of N tasks, parents before children, and E edges; rates are records a minute."""

    service_min: Floats  # (N,) minutes in which one instance processes a record
    variability: Floats  # (N,) squared coefficient of variation of that time
    source: Ints  # (N,) row of `SimState.load`; -1: no source
    parent_at: Ints  # (N + 1,) edges into task k are parent_at[k] to parent_at[k + 1]
    parent: Ints  # (E,) the task an edge comes from
    child_at: Ints  # (N + 1,) places in `child_edge` of the edges out of task k
    child_edge: Ints  # (E,) edges ordered by the task they come from
    child: Ints  # (E,) the task an edge leads to
    ratio: Floats  # (E,) records on the edge for each record its parent processes
    nominal: Floats  # (N,) records of each task for one record a minute of every source
    key_groups: Ints  # (N,) maximum parallelism: keys are hashed to so many groups
    cap: Ints  # (N,) most instances
    hot_share: Floats  # (N,) share of the records that one key group gets on top of its own
    chain: Ints  # (N,) the first task of its chain: these scale as one
    slot_group: Ints  # (N,) number of its slot-sharing group
    state_mb: Floats  # (N,)
    weight: Floats  # (N,) of a sink in the job's latency; 0: no sink
    faults: Floats  # (faults, 5)


class SimConstants(NamedTuple):
    """Constants of the simulation, equal for all tasks."""

    buffer: float  # records that one instance can hold
    contention: float  # capacity of p instances is p / (1 + contention * (p - 1))
    restart_min: float  # of any restart
    restore_min_per_mb: float
    checkpoint_min: int
    shared_queue: bool  # all instances of a task serve one queue; False: each its own
    published: bool  # buffers without limit, and every decision is a restart that keeps records
    plan_limit: int  # most instances of the job
    noise: float  # standard deviation of reported metrics, relative
    missing: float  # share of the minutes without the number of pending records
    key: int  # of the episode's random numbers


class SimState(NamedTuple):
    """An episode of T minutes; tables over minutes keep the last R (ring buffers)."""

    clock: Ints
    times: Floats
    sums: Floats
    load: Floats  # (sources, T) records that arrive in each minute
    offered: Floats  # (sources, T + 1) their sums before each minute
    parallelism: Ints  # (N,)
    queue: Floats  # (CLASSES, N) mean number of records in the task
    variance: Floats  # (CLASSES, N) of the number in one instance of the class
    wanted: Floats  # (CLASSES, N) records to process in this minute, if nothing blocks them
    jitter: Floats  # (N,) squared coefficient of variation of the gaps between its records
    arrived: Floats  # (N, R) records so far, at the end of each minute
    departed: Floats  # (N,) processed, or lost in a restart
    age: Floats  # (N, R) minutes since their arrival at the job, of records that leave the task
    age_variance: Floats  # (N, R)
    inflow: Floats  # (E,) records on each edge in this minute
    room: Floats  # (N,) records that the task can still accept in this minute
    reserved: Floats  # (N,) usual rate of the parents that have not used their part of the room
    departure_jitter: Floats  # (N,) as `jitter`, of the records that leave
    checkpoint: Floats  # (N,) of sources: records processed at the last complete checkpoint
    barrier: Floats  # (N,) records before the barrier of the checkpoint under way
    pending: Floats  # (N,) of sources: records processed at that barrier
    metrics: NDArray[np.float32]  # (R, N, METRIC_COLUMNS)
    outcome: Floats  # (T, OUTCOME_COLUMNS)


def new_state(job: JobTables, load: Floats, parallelism: Ints, ring: int) -> SimState:
    """The state before the first minute; `load` is (sources, minutes)."""
    tasks, edges, minutes = len(job.service_min), len(job.parent), load.shape[1]
    offered = np.zeros((len(load), minutes + 1))
    np.cumsum(load, axis=1, out=offered[:, 1:])
    clock = np.zeros(CLOCK_COLUMNS, np.int64)
    clock[HORIZON], clock[RESTARTED_AT] = minutes, -1
    return SimState(
        clock=clock,
        times=np.zeros(TIME_COLUMNS),
        sums=np.zeros(SUM_COLUMNS),
        load=load,
        offered=offered,
        parallelism=parallelism.copy(),
        queue=np.zeros((CLASSES, tasks)),
        variance=np.zeros((CLASSES, tasks)),
        wanted=np.zeros((CLASSES, tasks)),
        jitter=np.ones(tasks),
        arrived=np.zeros((tasks, ring)),
        departed=np.zeros(tasks),
        age=np.zeros((tasks, ring)),
        age_variance=np.zeros((tasks, ring)),
        inflow=np.zeros(edges),
        room=np.zeros(tasks),
        reserved=np.zeros(tasks),
        departure_jitter=np.ones(tasks),
        checkpoint=np.zeros(tasks),
        barrier=np.zeros(tasks),
        pending=np.zeros(tasks),
        metrics=np.zeros((ring, tasks, METRIC_COLUMNS), np.float32),
        outcome=np.zeros((minutes, OUTCOME_COLUMNS)),
    )
