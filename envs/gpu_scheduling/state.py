"""The simulator's whole state: flat tables, one row per job, machine, group or allocation.

Everything the simulator knows is in these arrays, so a snapshot is a copy of them and nothing else.
A job owns as many allocation rows as machines it could ever be spread over, so its places lie side
by side; the rows of one machine are linked with each other.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, njit_inline
from loadmaster.envs.gpu_scheduling.cluster import WHOLE, Cluster, GpuType, catalogue
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings

NONE = -1
NEVER = np.inf

# `clock`: what there is one of.
STATUS, NEXT_JOB, QUEUED, RUNNING, FINISHED, WAITING_GROUPS, WAITING_SHAPES = 0, 1, 2, 3, 4, 5, 6
CHANGES, STARTS, STAMP, EPOCHS, PREEMPTIONS, FREE_GPU, FREE_CPU, TRACE_ROWS = range(7, 15)
CLOCK_SIZE = 15
# NEXT_JOB        the next job to arrive
# WAITING_GROUPS  groups with a job in the queue: so many entries of the column WAITING count
# WAITING_SHAPES  shapes with a group among these: so many entries of the column IN_DEMAND count
# CHANGES         machines whose jobs changed since speeds were last settled: entries of CHANGED
# STARTS          jobs started since then: entries of STARTED
# STAMP           numbers passes over the machines; whoever carries it was met in this pass
# EPOCHS          decision epochs so far
# FREE_GPU/_CPU   free resources of the whole cluster, percent

DECIDE, DONE, GROW_TRACE = 1, 2, 3

# `times`
NOW, NEXT_REPLAN, GPU_S, SIGMA, RESTART_S = 0, 1, 2, 3, 4
TIMES_SIZE = 5
# NEXT_REPLAN     when a preemptive policy reconsiders; NEVER for those that do not by the clock
# GPU_S           integral over time of the GPUs in use
# SIGMA           of the lognormal luck of a job on a machine
# RESTART_S       work that a preempted job loses, in seconds at speed 1

# `setup`: what stays fixed in an episode.
SEED, BACKFILL, INTERFERENCE, ALL_GPU, ALL_CPU = 0, 1, 2, 3, 4
SETUP_SIZE = 5
# ALL_GPU/_CPU    resources of the whole cluster, percent

# `progress`, one row a job.
LEFT_S, SINCE_S, RATE, PLACED_S, FIRST_START_S, FINISHED_S, RUN_S, FEE, FEE_RATE = range(9)
PLACED_LEFT_S = 9
PROGRESS_COLUMNS = 10
# LEFT_S          work left at SINCE_S, in seconds at speed 1
# RATE            its speed; 0 where it does not run
# PLACED_S        when it was placed where it is now, and PLACED_LEFT_S the work left then
# FIRST_START_S, FINISHED_S  nan before
# RUN_S           time on machines before PLACED_S, and FEE the dollars for it
# FEE_RATE        dollars a second where it is now

# `jobs`, one row a job, and a last one that closes the ring of the queue.
FIRST_ROW, ROWS_USED, GROUP, LATER, EARLIER, STARTED = 0, 1, 2, 3, 4, 5
JOB_COLUMNS = 6
# FIRST_ROW       it owns the allocation rows from here to the next job's; ROWS_USED say where it is
# LATER, EARLIER  the queue in order of arrival
# STARTED         a list of jobs, not a column about this one

# `rows`, one row an allocation.
JOB, MACHINE, COUNT, NEXT, BEFORE = 0, 1, 2, 3, 4
ROW_COLUMNS = 5
# COUNT           instances of the job there
# NEXT, BEFORE    the rows of the same machine

# `machines`
FIRST, WHOLE_GPUS, SHARERS, SHARED, MET, IS_CHANGED, CHANGED = 0, 1, 2, 3, 4, 5, 6
MACHINE_COLUMNS = 7
# FIRST           the first of its rows
# WHOLE_GPUS      GPUs that an instance has to itself
# SHARERS         instances that ask for a fraction of a GPU, and SHARED their sum, percent
# MET             the last pass that came by
# CHANGED         a list of machines, not a column about this one

# `factors`, one row a machine.
COLOCATION, SEVERITY = 0, 1
# COLOCATION      what sharers keep of their speed
# SEVERITY        how hard sharing hits this GPU type, a V100 being 1

# `free` and `room`
GPU, CPU = 0, 1

# `groups`: jobs with equal demands.
HEAP, LENGTH, WAITING, WAITING_AT, SHAPE, INSTANCES = 0, 1, 2, 3, 4, 5
GROUP_COLUMNS = 6
# HEAP            where its heap begins; it holds LENGTH pending jobs
# WAITING         a list of groups with pending jobs; WAITING_AT the group's place in it

# `shapes`: what a single instance asks for, be its gang as large as it may.
EACH_GPU, EACH_CPU, KIND, HOLDS, GROUPS, IN_DEMAND, IN_DEMAND_AT = 0, 1, 2, 3, 4, 5, 6
SHAPE_COLUMNS = 7
# KIND            the GPU type of the machine it needs
# HOLDS           so many instances the cluster could take now; kept up to date while one is pending
# GROUPS          groups of this shape with pending jobs
# IN_DEMAND       a list of shapes with such groups; IN_DEMAND_AT the shape's place in it

# `trace`
TRACE_JOB, TRACE_MACHINE, TRACE_COUNT, TRACE_START, TRACE_END = 0, 1, 2, 3, 4


class SimState(NamedTuple):
    """N jobs, M machines, G groups of jobs, S shapes of instances, R allocation rows, U users."""

    clock: NDArray[np.int64]  # (CLOCK_SIZE,)
    times: NDArray[np.float64]  # (TIMES_SIZE,)
    setup: NDArray[np.int64]  # (SETUP_SIZE,)
    progress: NDArray[np.float64]  # (N, PROGRESS_COLUMNS)
    finish_s: NDArray[np.float64]  # (N,) the end at this speed; NEVER where it does not run
    key: NDArray[np.float64]  # (N,) the lowest goes first within its group
    jobs: NDArray[np.int64]  # (N + 1, JOB_COLUMNS)
    rows: NDArray[np.int64]  # (R, ROW_COLUMNS)
    row_speed: NDArray[np.float64]  # (R,) of an instance there, undisturbed
    machines: NDArray[np.int64]  # (M, MACHINE_COLUMNS)
    factors: NDArray[np.float64]  # (M, 2)
    free: NDArray[np.int64]  # (M, 2) GPU and CPU, percent
    groups: NDArray[np.int64]  # (N, GROUP_COLUMNS) of which G are in use
    shapes: NDArray[np.int64]  # (N, SHAPE_COLUMNS) of which S are in use
    heap: NDArray[np.int64]  # (N,) pending jobs by key, group by group
    event_heap: NDArray[np.int64]  # (N,) running jobs by finish_s
    place: NDArray[np.int64]  # (N,) a job's place in whichever of the two holds it
    user_use: NDArray[np.int64]  # (U, 2) GPU and CPU in use, percent
    room: NDArray[np.int64]  # (M, 2) what a replanning has not yet given away
    order: NDArray[np.int64]  # (N,) all jobs in the system, for a replanning
    order_at: NDArray[np.int64]  # (N,)
    rack_fit: NDArray[np.int64]  # (racks,)
    trace: NDArray[np.float64]  # (rows, 5) who ran where and when; no rows: not recorded


REFERENCE_SHARED_SPEED = 0.66  # of a V100, on which sharing was measured by combined use


def new_state(
    settings: GpuSchedulingSettings,
    cluster: Cluster,
    jobs: Jobs,
    seed: int,
    *,
    by_user: bool = False,
    record: bool = False,
) -> SimState:
    """An empty cluster before the first arrival. `by_user`: jobs of two users are never grouped."""
    count, machines = len(jobs.arrival_s), len(cluster.gpu_capacity)
    rows = int(np.minimum(jobs.instances, machines).sum())
    state = SimState(
        clock=np.zeros(CLOCK_SIZE, np.int64),
        times=np.zeros(TIMES_SIZE),
        setup=np.zeros(SETUP_SIZE, np.int64),
        progress=np.zeros((count, PROGRESS_COLUMNS)),
        finish_s=np.full(count, NEVER),
        key=np.zeros(count),
        jobs=np.zeros((count + 1, JOB_COLUMNS), np.int64),
        rows=np.full((rows, ROW_COLUMNS), NONE, np.int64),
        row_speed=np.zeros(rows),
        machines=np.zeros((machines, MACHINE_COLUMNS), np.int64),
        factors=np.ones((machines, 2)),
        free=np.zeros((machines, 2), np.int64),
        groups=np.zeros((count, GROUP_COLUMNS), np.int64),
        shapes=np.zeros((count, SHAPE_COLUMNS), np.int64),
        heap=np.zeros(count, np.int64),
        event_heap=np.zeros(count, np.int64),
        place=np.zeros(count, np.int64),
        user_use=np.zeros((int(jobs.user.max(initial=0)) + 1, 2), np.int64),
        room=np.zeros((machines, 2), np.int64),
        order=np.zeros(count, np.int64),
        order_at=np.zeros(count, np.int64),
        rack_fit=np.zeros(int(cluster.rack.max()) + 1, np.int64),
        trace=np.zeros((2 * rows + 64 if record else 0, 5)),
    )
    state.setup[: INTERFERENCE + 1] = seed, settings.backfill, settings.interference
    state.times[:] = 0.0, NEVER, 0.0, settings.stragglers, settings.restart_s
    demand = jobs.instances, jobs.gpu, jobs.cpu, jobs.gpu_type  # the last one counts first
    order = np.lexsort((jobs.user, *demand) if by_user else demand)
    _lay_out(state, cluster, jobs, _severities(settings.gpu_types), order, by_user)
    return state


@compiled
def _lay_out(
    state: SimState,
    cluster: Cluster,
    jobs: Jobs,
    severities: NDArray[np.float64],
    order: NDArray[np.int64],
    by_user: bool,
) -> None:
    """Write what differs from zero. `order` has jobs that ask for the same side by side."""
    count, machines, row = len(jobs.arrival_s), len(state.free), 0
    for job in range(count):
        state.progress[job, LEFT_S] = jobs.duration_s[job]
        state.progress[job, FIRST_START_S] = np.nan
        state.progress[job, FINISHED_S] = np.nan
        state.jobs[job, FIRST_ROW] = row
        for _ in range(min(jobs.instances[job], machines)):
            state.rows[row, JOB] = job
            row += 1
    state.jobs[count, FIRST_ROW] = row
    for job in range(count + 1):
        state.jobs[job, LATER], state.jobs[job, EARLIER] = count, count
    for machine in range(machines):
        gpu, cpu = cluster.gpu_capacity[machine], cluster.cpu_capacity[machine]
        state.machines[machine, FIRST] = NONE
        state.factors[machine, SEVERITY] = severities[cluster.gpu_type[machine]]
        state.free[machine, GPU], state.free[machine, CPU] = gpu, cpu
        state.clock[FREE_GPU] += gpu
        state.clock[FREE_CPU] += cpu
    state.setup[ALL_GPU], state.setup[ALL_CPU] = state.clock[FREE_GPU], state.clock[FREE_CPU]
    _group(state, jobs, order, by_user)


@njit_inline
def _group(state: SimState, jobs: Jobs, order: NDArray[np.int64], by_user: bool) -> None:
    """Where one job of a group does not fit, none of the group does: an epoch asks once, not for
    each.
    """
    group, shape = NONE, NONE
    for place in range(len(order)):
        job, before = order[place], order[max(place - 1, 0)]
        is_new = (
            place == 0
            or jobs.gpu[job] != jobs.gpu[before]
            or jobs.cpu[job] != jobs.cpu[before]
            or jobs.gpu_type[job] != jobs.gpu_type[before]
        )
        if is_new:
            shape += 1
            state.shapes[shape, EACH_GPU] = jobs.gpu[job]
            state.shapes[shape, EACH_CPU] = jobs.cpu[job]
            state.shapes[shape, KIND] = jobs.gpu_type[job]
        if (
            is_new
            or jobs.instances[job] != jobs.instances[before]
            or (by_user and jobs.user[job] != jobs.user[before])
        ):
            group += 1
            state.groups[group, HEAP] = place
            state.groups[group, SHAPE] = shape
            state.groups[group, INSTANCES] = jobs.instances[job]
        state.jobs[job, GROUP] = group


@lru_cache(maxsize=16)
def _severities(own: tuple[GpuType, ...]) -> NDArray[np.float64]:
    """Of every GPU type, those of the settings among them."""
    kept = np.array([gpu.shared_speed for gpu in catalogue(own).values()])
    return (1 - kept) / (1 - REFERENCE_SHARED_SPEED)


def snapshot(state: SimState) -> SimState:
    """A copy that lives on its own: stepping one leaves the other as it was."""
    return SimState._make(table.copy() for table in state)


def with_more_trace(state: SimState) -> SimState:
    """The same state with room for twice the recorded rows."""
    return state._replace(trace=np.concatenate([state.trace, np.zeros_like(state.trace)]))


def gpus_asked(jobs: Jobs) -> NDArray[np.float64]:
    """(N,) GPUs of the whole gang."""
    return jobs.instances * jobs.gpu / WHOLE
