"""State of the simulator: flat tables with one row per job, machine, group or allocation.

All state is in these arrays, so copying them copies the simulation. A job owns as many consecutive
allocation rows as machines it could be spread over. The rows of one machine form a linked list.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, njit_inline, njit_internal
from loadmaster.envs.gpu_scheduling.baselines import PARAMETERS
from loadmaster.envs.gpu_scheduling.class_speeds import (
    CLASSES,
    class_factors,
    draw_classes,
    pair_severities,
)
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings

Table = NDArray[np.int64]

NONE = -1
NEVER = np.inf

# `clock`: counters.
STATUS, NEXT_JOB, QUEUED, RUNNING, FINISHED, WAITING_GROUPS, WAITING_SHAPES = 0, 1, 2, 3, 4, 5, 6
CHANGES, STARTS, STAMP, EPOCHS, PREEMPTIONS, FREE_GPU, FREE_CPU, TRACE_ROWS = range(7, 15)
COUNTED, DRIFTS, COMPONENTS, CLOCK_SIZE = range(15, 19)
# NEXT_JOB        the next job to arrive
# WAITING_GROUPS  groups with pending jobs: length of the list in column WAITING
# WAITING_SHAPES  shapes with such groups: length of the list in column TRACKED
# CHANGES         machines whose jobs changed since speeds were updated: length of list CHANGED
# STARTS          jobs started since then: length of list STARTED
# STAMP           number of the current pass over the machines, compared with VISITED
# EPOCHS          scheduling passes so far
# FREE_GPU/_CPU   free resources of the whole cluster, percent
# COUNTED         jobs that ARRIVED counts; only FGD updates it
# DRIFTS          changes of the hidden speeds so far
# COMPONENTS      of the Gaussian process of speeds, in use

DECIDE, DONE, GROW_TRACE = 1, 2, 3  # values of STATUS

# `times`
NOW, NEXT_REPLAN, GPU_S, SIGMA, RESTART_S, NEXT_DRIFT, DRIFT_KEPT = range(7)
MACHINE_SIGMA, RACK_SIGMA, LAST_MEASURED, TIMES_SIZE = range(7, 11)
# NEXT_REPLAN     next replanning of a time-driven policy; NEVER for the others
# GPU_S           integral over time of the GPUs in use
# SIGMA           of the lognormal runtime noise of a job on a machine
# RESTART_S       work that a preempted job loses, in seconds at speed 1
# NEXT_DRIFT      next change of the hidden speeds; NEVER if speeds are known
# DRIFT_KEPT      share of a log speed that is left after a change
# MACHINE_SIGMA   of the log speeds of machines, and RACK_SIGMA of racks
# LAST_MEASURED   time of the last measurement of speeds

# `setup`: constants of an episode.
SEED, BACKFILL, INTERFERENCE, CLASSES_KNOWN, ALL_GPU, ALL_CPU, SPEED_SOURCE, SETUP_SIZE = range(8)
# CLASSES_KNOWN   1: rules know the classes of jobs
# ALL_GPU/_CPU    resources of the whole cluster, percent
# SPEED_SOURCE    speeds that the rule expects: NOMINAL, MEASURED, TRUE or PROCESS of `baselines`

# `progress`, one row per job.
LEFT_S, SINCE_S, RATE, PLACED_S, FIRST_START_S, FINISHED_S, RUN_S, FEE, FEE_RATE = range(9)
PLACED_LEFT_S, BEST_RATE, PROGRESS_COLUMNS = 9, 10, 11
# LEFT_S          work left at SINCE_S, in seconds at speed 1
# RATE            current speed; 0 if the job does not run
# PLACED_S        start of the current run, and PLACED_LEFT_S the work left then
# FIRST_START_S, FINISHED_S  nan before
# RUN_S           time on machines before PLACED_S, and FEE the dollars for it
# FEE_RATE        dollars per second of the current run
# BEST_RATE       speed in the empty cluster; only for rules that use it, else 0

# `jobs`, one row per job, and a last one that closes the ring of the queue.
FIRST_ROW, ROWS_USED, GROUP, LATER, EARLIER, STARTED, CLASS, JOB_COLUMNS = range(8)
# FIRST_ROW       first allocation row of the job; ROWS_USED of them are in use, 0 if it waits
# LATER, EARLIER  links of the queue in order of arrival
# STARTED         list of jobs, not indexed by job
# CLASS           index in CLASSES; 0 if speeds are known

# `rows`, one row per allocation.
JOB, MACHINE, COUNT, NEXT, BEFORE, ROW_COLUMNS = range(6)
# COUNT           instances of the job on the machine
# NEXT, BEFORE    links of the rows of the same machine

# `machines`
FIRST, WHOLE_GPUS, SHARERS, SHARED, VISITED, IS_CHANGED, CHANGED, MACHINE_COLUMNS = range(8)
# FIRST           first of its allocation rows
# WHOLE_GPUS      GPUs that instances use exclusively
# SHARERS         instances that request a fraction of a GPU, and SHARED their sum, percent
# VISITED         STAMP of the last pass that chose the machine
# CHANGED         list of machines, not indexed by machine

# `factors`, one row per machine.
COLOCATION, SEVERITY, SCORE, EXPECTED, DRIFT, MACHINE_LOG, RACK_LOG, MEAN_LOG = range(8)
# COLOCATION      share of their speed that sharers keep
# SEVERITY        loss by sharing on this GPU type, relative to a V100
# SCORE           scratch of placement rules: the lowest goes first, infinity is excluded
# EXPECTED        speed of an instance that the rule expects; nominal, or of the present job
# DRIFT           hidden factor of the speed, from MACHINE_LOG and RACK_LOG; 1 if speeds are known
# MEAN_LOG        running mean of the measured speed relative to the expected one
# Only if speeds are hidden, for each class of jobs:
CLASS_FACTOR = 8
CLASS_SHARERS = CLASS_FACTOR + len(CLASSES)
CLASS_PAIRS = CLASS_SHARERS + len(CLASSES)
HIDDEN_COLUMNS = CLASS_PAIRS + len(CLASSES) ** 2
# CLASS_FACTOR    speed of the class, relative to the nominal one
# CLASS_SHARERS   its instances that request a fraction of a GPU
# CLASS_PAIRS     its loss beside each class, relative to the mean loss

# `free` and `room`
GPU, CPU = 0, 1

# `groups`: jobs with equal demands.
HEAP, LENGTH, WAITING, WAITING_AT, SHAPE, INSTANCES, GROUP_COLUMNS = range(7)
# HEAP            start of its heap, which holds LENGTH pending jobs
# WAITING         list of groups with pending jobs; WAITING_AT the group's index in it

# `shapes`: demands of a single instance.
EACH_GPU, EACH_CPU, KIND, HOLDS, GROUPS, TRACKED, TRACKED_AT, ARRIVED, SHAPE_COLUMNS = range(9)
# KIND            GPU type it needs
# HOLDS           instances that fit into the cluster now; updated only for tracked shapes
# GROUPS          groups of this shape with pending jobs
# TRACKED         list of shapes with such groups; TRACKED_AT the shape's index in it
# ARRIVED         jobs of this shape among the first COUNTED

# `user_history`, one row per user, and a last one for all.
USER_DONE, USER_LOG_RUN = 0, 1
# USER_LOG_RUN    mean of log(1 + minutes on machines) over the USER_DONE finished jobs
# Only orderings that may predict run times keep these: LAS and those after it.
MEASURED_LOG = 2
# MEASURED_LOG    if speeds are hidden, two columns for each GPU type, by class instead of user if
#                 classes are known: sum over time of the log of relative speeds, and that time

# `process`: covariances of the components of log speeds, and two more rows.
PROCESS_MEAN, PROCESS_GAIN = -2, -1
MOST_CLASSES = 256  # components of classes, or users, on GPU types; those of more are not learnt
# PROCESS_MEAN    posterior means
# PROCESS_GAIN    scratch
# Components of machines come first, then of racks.

# Columns of `trace` are those of `PlacementTrace`.


class SimState(NamedTuple):
    """N jobs, M machines, G groups of jobs, S shapes of instances, R allocation rows, U users."""

    clock: Table  # (CLOCK_SIZE,)
    times: NDArray[np.float64]  # (TIMES_SIZE,)
    setup: Table  # (SETUP_SIZE,)
    progress: NDArray[np.float64]  # (N, PROGRESS_COLUMNS)
    finish_s: NDArray[np.float64]  # (N,) predicted end at the current speed; NEVER if not running
    key: NDArray[np.float64]  # (N,) the lowest goes first within its group
    jobs: Table  # (N + 1, JOB_COLUMNS)
    rows: Table  # (R, ROW_COLUMNS)
    row_speed: NDArray[np.float64]  # (R,) of an instance, without interference
    machines: Table  # (M, MACHINE_COLUMNS)
    factors: NDArray[np.float64]  # (M, HIDDEN_COLUMNS), or CLASS_FACTOR if speeds are known
    free: Table  # (M, 2) GPU and CPU, percent
    groups: Table  # (N, GROUP_COLUMNS) of which G are in use
    shapes: Table  # (N, SHAPE_COLUMNS) of which S are in use
    heap: Table  # (N,) pending jobs by key, group by group
    event_heap: Table  # (N,) running jobs by finish_s
    place: Table  # (N,) index of a job in the heap that holds it
    user_use: Table  # (U, 2) GPU and CPU in use, percent
    room: Table  # (M, 2) unreserved resources while planning
    order: Table  # (N,) heap of all jobs in the system while replanning
    order_at: Table  # (N,) index of a job in `order`
    rack_fit: Table  # (racks,) scratch
    rule: NDArray[np.float64]  # parameters of the heuristic, as in `baselines.PARAMETERS`
    user_history: NDArray[np.float64]  # (U + 1, 2 or more) finished jobs, measured speeds
    components: Table  # (U, types) component of a class, or user, on a GPU type
    process: NDArray[np.float64]  # (components + 2, components), none if speeds are known
    trace: NDArray[np.float64]  # (rows, 5) finished allocations; no rows: not recorded


DRIFT_EVERY_S = 600.0  # between changes of the hidden speeds
REFERENCE_SHARED_SPEED = 0.66  # of a V100, for which the slowdown by combined use was measured


def new_state(
    settings: GpuSchedulingSettings,
    cluster: Cluster,
    jobs: Jobs,
    seed: int,
    *,
    by_user: bool = False,
    record: bool = False,
) -> SimState:
    """Create an empty cluster before the first arrival. `by_user`: group jobs by user as well."""
    count, machines = len(jobs.arrival_s), len(cluster.gpu_capacity)
    hidden, types = settings.speeds == "hidden", len(settings.known_gpu_types)
    users = max(int(jobs.user.max(initial=0)) + 1, len(CLASSES) if hidden else 0)
    rows, racks = int(np.minimum(jobs.instances, machines).sum()), int(cluster.rack.max()) + 1
    components = machines + racks + MOST_CLASSES if hidden else 0
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
        factors=np.ones((machines, HIDDEN_COLUMNS if hidden else CLASS_FACTOR)),
        free=np.zeros((machines, 2), np.int64),
        groups=np.zeros((count, GROUP_COLUMNS), np.int64),
        shapes=np.zeros((count, SHAPE_COLUMNS), np.int64),
        heap=np.zeros(count, np.int64),
        event_heap=np.zeros(count, np.int64),
        place=np.zeros(count, np.int64),
        user_use=np.zeros((users, 2), np.int64),
        room=np.zeros((machines, 2), np.int64),
        order=np.zeros(count, np.int64),
        order_at=np.zeros(count, np.int64),
        rack_fit=np.zeros(racks, np.int64),
        rule=np.zeros(len(PARAMETERS)),
        user_history=np.zeros((users + 1, MEASURED_LOG + (2 * types if hidden else 0))),
        components=np.zeros((users if hidden else 0, types), np.int64),
        process=np.zeros((components + 2 if hidden else 0, components)),
        trace=np.zeros((2 * rows + 64 if record else 0, 5)),
    )
    classes_known = settings.job_classes == "visible"
    state.setup[:ALL_GPU] = seed, settings.backfill, settings.interference, classes_known
    state.times[NEXT_REPLAN] = state.times[NEXT_DRIFT] = NEVER
    state.times[SIGMA], state.times[RESTART_S] = settings.stragglers, settings.restart_s
    if hidden:
        _hide_speeds(state, settings, cluster, jobs)
    demand = jobs.instances, jobs.gpu, jobs.cpu, jobs.gpu_type  # the last is the primary key
    order = np.lexsort((jobs.user, *demand) if by_user else demand)
    kept = np.array([gpu.shared_speed for gpu in settings.known_gpu_types.values()])
    severities = (1 - kept) / (1 - REFERENCE_SHARED_SPEED)
    _fill_tables(state, cluster, jobs, severities, order, by_user)
    return state


def _hide_speeds(
    state: SimState, settings: GpuSchedulingSettings, cluster: Cluster, jobs: Jobs
) -> None:
    """Draw the classes of jobs, write their speeds, and let speeds drift from time 0 on."""
    state.jobs[:-1, CLASS] = draw_classes(jobs, int(state.setup[SEED]))
    state.times[NEXT_DRIFT] = 0.0
    state.times[DRIFT_KEPT] = np.exp(-DRIFT_EVERY_S / (3600 * settings.drift_hours))
    state.times[MACHINE_SIGMA] = settings.machine_drift
    state.times[RACK_SIGMA] = settings.rack_drift
    state.factors[:, CLASS_SHARERS:CLASS_PAIRS] = 0.0
    if settings.class_speeds:
        known = list(settings.known_gpu_types.values())
        for machine, gpu_type in enumerate(cluster.gpu_type):
            factors, gpu = state.factors[machine], known[gpu_type]
            factors[CLASS_FACTOR:CLASS_SHARERS] = class_factors(gpu)
            factors[CLASS_PAIRS:] = pair_severities(gpu).ravel()


@njit_internal
def hides_speeds(state: SimState) -> bool:
    return bool(state.factors.shape[1] > CLASS_FACTOR)


@compiled
def _fill_tables(
    state: SimState,
    cluster: Cluster,
    jobs: Jobs,
    severities: NDArray[np.float64],
    order: NDArray[np.int64],
    by_user: bool,
) -> None:
    """Write the non-zero entries. `order` sorts the jobs by demand."""
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
        state.factors[machine, EXPECTED] = cluster.speed[machine]
        for column in (MACHINE_LOG, RACK_LOG, MEAN_LOG):
            state.factors[machine, column] = 0.0
        state.free[machine, GPU], state.free[machine, CPU] = gpu, cpu
        state.clock[FREE_GPU] += gpu
        state.clock[FREE_CPU] += cpu
    state.setup[ALL_GPU], state.setup[ALL_CPU] = state.clock[FREE_GPU], state.clock[FREE_CPU]
    _group(state, jobs, order, by_user)


@njit_inline
def _group(state: SimState, jobs: Jobs, order: NDArray[np.int64], by_user: bool) -> None:
    """Group jobs with equal demands: a scheduling pass checks once per group whether they fit."""
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


@njit_internal
def add_finished(history: NDArray[np.float64], row: int, run_s: float) -> None:
    """Add a finished job to a count and a mean of log(1 + minutes on machines)."""
    history[row, USER_DONE] += 1
    difference = np.log1p(run_s / 60) - history[row, USER_LOG_RUN]
    history[row, USER_LOG_RUN] += difference / history[row, USER_DONE]


def with_more_trace(state: SimState) -> SimState:
    """Double the number of trace rows."""
    return state._replace(trace=np.concatenate([state.trace, np.zeros_like(state.trace)]))
