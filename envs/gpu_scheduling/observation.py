"""Observation of both agents: jobs, machines, where jobs fit, and past speeds.

Jobs are in order of arrival: pending ones and, when reconsidering, running ones. If more jobs are
pending than there are rows, the earliest are shown; with a guide, the first by its keys.
`features.py` defines the columns.
"""

from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, njit_inline, njit_internal
from loadmaster.envs.gpu_scheduling import decision_state as decisions
from loadmaster.envs.gpu_scheduling import features
from loadmaster.envs.gpu_scheduling import state as cols
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.decision_state import SHOWN, DecisionState
from loadmaster.envs.gpu_scheduling.jobs import WHOLE, Jobs
from loadmaster.envs.gpu_scheduling.keys import dominant_share, key_now
from loadmaster.envs.gpu_scheduling.placement import fits, instances_that_fit
from loadmaster.envs.gpu_scheduling.queues import heap_remove, replan_heap
from loadmaster.envs.gpu_scheduling.scheduling_pass import list_pending, rank_all
from loadmaster.envs.gpu_scheduling.slowdown import current_colocation
from loadmaster.envs.gpu_scheduling.state import SimState, Table

_UPPER_BOUND = 1e9  # of the features
_LEAST_KEY = 1e-9  # of which the logarithm is taken
Floats = NDArray[np.float32]


class Observation(NamedTuple):
    """Q rows of jobs, M machines, R racks, T past decisions; unused rows are 0."""

    jobs: NDArray[np.float32]  # (Q, JOB_FEATURES)
    job_mask: NDArray[np.bool_]  # (Q,) rows in use
    heeded: NDArray[np.bool_]  # (Q,) rows whose priority can have an effect
    machines: NDArray[np.float32]  # (M, MACHINE_FEATURES)
    held: NDArray[np.float32]  # (Q, M) share of the gang that fits; 0 if it cannot start
    rack_held: NDArray[np.float32]  # (Q, R) likewise for racks, up to 1
    rack: NDArray[np.int64]  # (M,)
    history_y: NDArray[np.float32]  # (T, M) mean speed of running instances, latest first
    history_mask: NDArray[np.bool_]  # (T, M) whether any instance ran
    history_t: NDArray[np.float32]  # (T,) seconds since then


def blank_observation(queue: int, cluster: Cluster, past: int) -> Observation:
    """Create the tables of an observation, without jobs or history."""
    machines, racks = len(cluster.rack), int(cluster.rack.max()) + 1
    return Observation(
        jobs=np.zeros((queue, features.JOB_FEATURES), np.float32),
        job_mask=np.zeros(queue, np.bool_),
        heeded=np.zeros(queue, np.bool_),
        machines=np.zeros((machines, features.MACHINE_FEATURES), np.float32),
        held=np.zeros((queue, machines), np.float32),
        rack_held=np.zeros((queue, racks), np.float32),
        rack=cluster.rack.copy(),
        history_y=np.zeros((past, machines), np.float32),
        history_mask=np.zeros((past, machines), np.bool_),
        history_t=np.zeros(past, np.float32),
    )


def observation_space(queue: int, cluster: Cluster, past: int) -> spaces.Dict:
    """Create the Gymnasium space of an observation, with one box per field."""
    boxes: dict[str, spaces.Space[Any]] = {}
    for name, table in blank_observation(queue, cluster, past)._asdict().items():
        high = len(cluster.rack) if name == "rack" else _UPPER_BOUND
        high = 1 if table.dtype == np.bool_ else high
        boxes[name] = spaces.Box(0, high, table.shape, table.dtype.type)
    return spaces.Dict(boxes)


@compiled
def observe(
    state: SimState, cluster: Cluster, jobs: Jobs, decision: DecisionState, out: Observation
) -> None:
    """Write the observation into `out`, and the jobs of its rows into `decision.shown`."""
    used, guide = decision.counts[SHOWN], decision.counts[decisions.GUIDE]
    reconsidering = decision.counts[decisions.PHASE] == decisions.RECONSIDERING
    if guide > 0:
        shown = _list_by_guide(state, cluster, jobs, decision, reconsidering)
    else:
        shown = list_pending(state, decision.shown)
        if reconsidering:
            shown = _add_running(state, decision, shown)
    decision.counts[SHOWN] = shown
    strict = state.setup[cols.BACKFILL] == 0  # a job that does not fit blocks others
    for row in range(shown):
        job = decision.shown[row]
        decision.row_of[job] = row
        starts = state.jobs[job, cols.ROWS_USED] == 0 and fits(state, state.jobs[job, cols.GROUP])
        starts = starts and (guide > 0 or not reconsidering)
        held, rack_held = out.held[row], out.rack_held[row]
        held[:] = 0
        rack_held[:] = 0
        if starts:
            _observe_capacity(state, cluster, jobs, job, state.free, held, rack_held)
        elif guide > 0 and reconsidering:  # it can only replace others
            _observe_capacity(state, cluster, jobs, job, state.room, held, rack_held)
        _observe_job(state, jobs, decision, job, starts, out.jobs[row])
        out.job_mask[row] = True
        out.heeded[row] = starts or reconsidering or strict
        if guide > 0:
            out.heeded[row] = reconsidering or job >= decision.counts[decisions.KEYED]
            key = key_now(state, jobs, guide, job)
            decision.rule_priority[row] = -np.log(max(key, _LEAST_KEY))
    # Only rows that the last observation used need clearing.
    for unused in range(shown, used):
        out.job_mask[unused] = False
        out.heeded[unused] = False
        out.jobs[unused] = 0
        out.held[unused] = 0
        out.rack_held[unused] = 0
    for machine in range(len(out.machines)):
        _observe_machine(state, cluster, jobs, machine, out.machines[machine])
    for past in range(decision.counts[decisions.HISTORY_ROWS]):
        out.history_t[past] = state.times[cols.NOW] - decision.history_s[past]
        for machine in range(len(out.machines)):
            out.history_y[past, machine] = decision.history_speed[past, machine]
            out.history_mask[past, machine] = decision.noted[past, machine]


@compiled
def observe_if_decision(
    state: SimState, cluster: Cluster, jobs: Jobs, decision: DecisionState, out: Observation
) -> bool:
    """Write the observation if a decision is needed at the present time; return whether it is.

    For real clusters, where time cannot be advanced.
    """
    if not decisions.needs_decision(state, cluster, jobs, decision):
        return False
    observe(state, cluster, jobs, decision, out)
    return True


@njit_internal
def _list_by_guide(
    state: SimState, cluster: Cluster, jobs: Jobs, decision: DecisionState, reconsidering: bool
) -> int:
    """Write the first jobs by their keys into `shown`, in order of arrival; return how many.

    Running jobs are listed when reconsidering. `room` becomes an empty cluster.
    """
    left, shown = rank_all(state, cluster, jobs), 0
    while left > 0:
        job = state.order[0]
        heap_remove(replan_heap(state, jobs), 0, left, job)
        left -= 1
        decision.row_of[job] = cols.NONE
        is_listed = reconsidering or state.jobs[job, cols.ROWS_USED] == 0
        if is_listed and shown < len(decision.shown):
            _insert(decision.shown, shown, job)
            shown += 1
    return shown


@njit_internal
def _insert(shown: NDArray[np.int64], count: int, job: int) -> None:
    """Insert a job in order of arrival into a list of `count`."""
    row = count
    while row > 0 and shown[row - 1] > job:
        shown[row] = shown[row - 1]
        row -= 1
    shown[row] = job


@njit_inline
def _add_running(state: SimState, decision: DecisionState, shown: int) -> int:
    """Insert running jobs in order of arrival into the free rows; return the rows in use."""
    rows = len(decision.shown) - shown
    for place in range(min(decision.counts[decisions.RUNNING_JOBS], rows)):
        # `running`, not the event heap: the order of ends must stay unknown.
        _insert(decision.shown, shown, decision.running[place])
        shown += 1
    return shown


@njit_inline
def _observe_capacity(
    state: SimState,
    cluster: Cluster,
    jobs: Jobs,
    job: int,
    room: Table,
    held: Floats,
    rack_held: Floats,
) -> None:
    """Write the shares of the gang that `room` on machines and racks could take."""
    state.rack_fit[:] = 0
    for machine in range(len(held)):
        fit = instances_that_fit(cluster, jobs, room, job, machine)
        held[machine] = fit / jobs.instances[job]
        state.rack_fit[cluster.rack[machine]] += fit
    for rack in range(len(rack_held)):
        # Divide the sum: rounded shares might not add up to 1.
        rack_held[rack] = min(state.rack_fit[rack] / jobs.instances[job], 1)


@njit_inline
def _observe_job(
    state: SimState, jobs: Jobs, decision: DecisionState, job: int, starts: bool, out: Floats
) -> None:
    user = jobs.user[job]
    for column in range(len(out)):
        out[column] = decision.static_features[job, column]
    out[features.WAITED] = np.log1p((state.times[cols.NOW] - jobs.arrival_s[job]) / 60)
    out[features.STARTS] = starts
    run_s = state.progress[job, cols.RUN_S]
    if state.jobs[job, cols.ROWS_USED] > 0:
        run_s += state.times[cols.NOW] - state.progress[job, cols.PLACED_S]
    out[features.RUNNING] = state.jobs[job, cols.ROWS_USED] > 0
    out[features.RAN] = np.log1p(run_s / 60)
    out[features.ATTAINED] = np.log1p(run_s / 60 * jobs.instances[job] * jobs.gpu[job] / WHOLE)
    out[features.BEYOND] = max(0.0, out[features.ATTAINED] - features.THRESHOLD)
    out[features.USER_SHARE] = dominant_share(state, user)
    out[features.USER_DONE] = np.log1p(decision.users[user, decisions.JOBS_DONE])
    out[features.USER_RUN] = decision.users[user, decisions.LOG_RUN]


@njit_inline
def _observe_machine(
    state: SimState, cluster: Cluster, jobs: Jobs, machine: int, out: Floats
) -> None:
    capacity = cluster.gpu_capacity[machine]
    free_gpu, free_cpu = state.free[machine, cols.GPU], state.free[machine, cols.CPU]
    count, done = 0, 0.0
    row = state.machines[machine, cols.FIRST]
    while row != cols.NONE:
        job = state.rows[row, cols.JOB]
        count += 1
        done += state.rows[row, cols.COUNT] * jobs.gpu[job] * state.progress[job, cols.RATE]
        row = state.rows[row, cols.NEXT]
    out[features.FREE_GPU] = free_gpu / capacity
    out[features.FREE_CPU] = free_cpu / cluster.cpu_capacity[machine]
    out[features.FREE_GPUS] = np.log1p(free_gpu / WHOLE)
    out[features.FREE_CORES] = np.log1p(free_cpu / WHOLE)
    out[features.UTILISATION] = done / (capacity * cluster.speed[machine])
    out[features.JOBS] = np.log1p(count)
    out[features.SHARERS] = state.machines[machine, cols.SHARERS] * WHOLE / capacity
    out[features.KEPT] = current_colocation(state, cluster, machine)
    out[features.PRICE] = cluster.price_per_s[machine] * 3600
    out[features.SPEED] = cluster.speed[machine]
