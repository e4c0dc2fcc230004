"""What both agents see: the jobs, the machines, who fits where, and speeds of late.

`observe` is the only way from a cluster to an observation. Jobs come in order of arrival: those
that wait and, where the agents are to reconsider, those that run. Where more wait than there are
rows, the first of them are shown, and the others must wait until they are among these. The columns
are those of `features.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, njit_inline, njit_internal
from loadmaster.envs.gpu_scheduling import decision_state as on
from loadmaster.envs.gpu_scheduling import features as told
from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.cluster import WHOLE, Cluster
from loadmaster.envs.gpu_scheduling.decision_state import DecisionState, is_asked
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.placement import instances_that_fit
from loadmaster.envs.gpu_scheduling.queues import dominant_share
from loadmaster.envs.gpu_scheduling.scheduling_pass import list_pending
from loadmaster.envs.gpu_scheduling.shapes import fits
from loadmaster.envs.gpu_scheduling.slowdown import colocation_factor
from loadmaster.envs.gpu_scheduling.state import SimState

_HUGE = 1e9  # above any feature


class Observation(NamedTuple):
    """Q rows of jobs, M machines, R racks, T past decisions; rows not in use are 0."""

    jobs: NDArray[np.float32]  # (Q, JOB_FEATURES)
    job_mask: NDArray[np.bool_]  # (Q,) the rows in use
    heeded: NDArray[np.bool_]  # (Q,) the rows whose priority can change anything
    machines: NDArray[np.float32]  # (M, MACHINE_FEATURES)
    held: NDArray[np.float32]  # (Q, M) share of the gang that has room there; 0 if it cannot start
    rack_held: NDArray[np.float32]  # (Q, R) the same of whole racks, up to 1
    rack: NDArray[np.int64]  # (M,)
    history_y: NDArray[np.float32]  # (T, M) speed of what ran, 1: a V100 undisturbed; latest first
    history_mask: NDArray[np.bool_]  # (T, M) whether anything ran
    history_t: NDArray[np.float32]  # (T,) s since then: the first row is of now


def blank_observation(queue: int, cluster: Cluster, past: int) -> Observation:
    """No job waits, nothing has happened."""
    machines, racks = len(cluster.rack), int(cluster.rack.max()) + 1
    return Observation(
        jobs=np.zeros((queue, told.JOB_FEATURES), np.float32),
        job_mask=np.zeros(queue, np.bool_),
        heeded=np.zeros(queue, np.bool_),
        machines=np.zeros((machines, told.MACHINE_FEATURES), np.float32),
        held=np.zeros((queue, machines), np.float32),
        rack_held=np.zeros((queue, racks), np.float32),
        rack=cluster.rack.copy(),
        history_y=np.zeros((past, machines), np.float32),
        history_mask=np.zeros((past, machines), np.bool_),
        history_t=np.zeros(past, np.float32),
    )


def observation_space(queue: int, cluster: Cluster, past: int) -> spaces.Dict:
    """The Gymnasium space of an observation: one box a field."""
    boxes: dict[str, spaces.Space[Any]] = {}
    for name, table in blank_observation(queue, cluster, past)._asdict().items():
        high = 1 if table.dtype == np.bool_ else len(cluster.rack) if name == "rack" else _HUGE
        boxes[name] = spaces.Box(0, high, table.shape, table.dtype.type)
    return spaces.Dict(boxes)


@compiled
def observe(
    state: SimState, cluster: Cluster, jobs: Jobs, desk: DecisionState, out: Observation
) -> None:
    """Write the observation into `out`, and the job behind each of its rows on the desk."""
    used, shown = desk.counts[on.SHOWN], list_pending(state, desk.shown)
    reconsidering = desk.counts[on.MOMENT] == on.RECONSIDERING
    if reconsidering:
        shown = _add_running(state, desk, shown)
    desk.counts[on.SHOWN] = shown
    strict = state.setup[at.BACKFILL] == 0  # one that does not fit blocks others
    for row in range(shown):
        job = desk.shown[row]
        desk.row_of[job] = row
        starts = not reconsidering and fits(state, state.jobs[job, at.GROUP])
        _observe_room(state, cluster, jobs, job, starts, out.held[row], out.rack_held[row])
        _observe_job(state, jobs, desk, job, starts, out.jobs[row])
        out.job_mask[row] = True
        out.heeded[row] = starts or reconsidering or strict
    # Only what the last observation used can need clearing.
    for unused in range(shown, used):
        out.job_mask[unused] = False
        out.heeded[unused] = False
        out.jobs[unused] = 0
        out.held[unused] = 0
        out.rack_held[unused] = 0
    for machine in range(len(out.machines)):
        _observe_machine(state, cluster, jobs, machine, out.machines[machine])
    for past in range(desk.counts[on.NOTED]):
        out.history_t[past] = state.times[at.NOW] - desk.noted_s[past]
        for machine in range(len(out.machines)):
            out.history_y[past, machine] = desk.noted_speed[past, machine]
            out.history_mask[past, machine] = desk.noted[past, machine]


@compiled
def observe_if_waiting(
    state: SimState, cluster: Cluster, jobs: Jobs, desk: DecisionState, out: Observation
) -> bool:
    """Whether there is something to decide, or more of it, without time passing; then it is seen.

    For whoever has no simulator: of a real cluster nobody knows what comes next.
    """
    if not is_asked(state, cluster, jobs, desk):
        return False
    observe(state, cluster, jobs, desk, out)
    return True


@njit_inline
def _add_running(state: SimState, desk: DecisionState, shown: int) -> int:
    """Running jobs join those that are shown, as many as there are rows; how many that makes."""
    for place in range(min(desk.counts[on.LISTED], len(desk.shown) - shown)):
        # Not those that end first, which nobody knows. Jobs are numbered in order of arrival; each
        # goes before those that came later.
        job, row = desk.running[place], shown
        while row > 0 and desk.shown[row - 1] > job:
            desk.shown[row] = desk.shown[row - 1]
            row -= 1
        desk.shown[row] = job
        shown += 1
    return shown


@njit_inline
def _observe_room(
    state: SimState,
    cluster: Cluster,
    jobs: Jobs,
    job: int,
    starts: bool,
    held: NDArray[np.float32],
    rack_held: NDArray[np.float32],
) -> None:
    """Where the gang has room; nowhere, if it cannot start as a whole."""
    rack_held[:] = 0
    held[:] = 0
    if not starts:
        return
    state.rack_fit[:] = 0
    for machine in range(len(held)):
        fit = instances_that_fit(cluster, jobs, state.free, job, machine)
        held[machine] = fit / jobs.instances[job]
        state.rack_fit[cluster.rack[machine]] += fit
    for rack in range(len(rack_held)):
        # Counted first, then divided: shares that add up to all but a rounding are not a whole.
        rack_held[rack] = min(state.rack_fit[rack] / jobs.instances[job], 1)


@njit_inline
def _observe_job(
    state: SimState,
    jobs: Jobs,
    desk: DecisionState,
    job: int,
    starts: bool,
    seen: NDArray[np.float32],
) -> None:
    user = jobs.user[job]
    for column in range(len(seen)):
        seen[column] = desk.facts[job, column]
    seen[told.WAITED] = np.log1p((state.times[at.NOW] - jobs.arrival_s[job]) / 60)
    seen[told.STARTS] = starts
    run_s = state.progress[job, at.RUN_S]
    if state.jobs[job, at.ROWS_USED] > 0:
        run_s += state.times[at.NOW] - state.progress[job, at.PLACED_S]
    seen[told.RUNNING] = state.jobs[job, at.ROWS_USED] > 0
    seen[told.RAN] = np.log1p(run_s / 60)
    seen[told.ATTAINED] = np.log1p(run_s / 60 * jobs.instances[job] * jobs.gpu[job] / WHOLE)
    seen[told.BEYOND] = max(0.0, seen[told.ATTAINED] - told.THRESHOLD)
    seen[told.USER_SHARE] = dominant_share(state, user)
    seen[told.USER_DONE] = np.log1p(desk.users[user, on.JOBS_DONE])
    seen[told.USER_RUN] = desk.users[user, on.LOG_RUN]


@njit_inline
def _observe_machine(
    state: SimState, cluster: Cluster, jobs: Jobs, machine: int, seen: NDArray[np.float32]
) -> None:
    capacity = cluster.gpu_capacity[machine]
    free_gpu, free_cpu = state.free[machine, at.GPU], state.free[machine, at.CPU]
    count, done = 0, 0.0
    row = state.machines[machine, at.FIRST]
    while row != at.NONE:
        job = state.rows[row, at.JOB]
        count += 1
        done += state.rows[row, at.COUNT] * jobs.gpu[job] * state.progress[job, at.RATE]
        row = state.rows[row, at.NEXT]
    seen[told.FREE_GPU] = free_gpu / capacity
    seen[told.FREE_CPU] = free_cpu / cluster.cpu_capacity[machine]
    seen[told.FREE_GPUS] = np.log1p(free_gpu / WHOLE)
    seen[told.FREE_CORES] = np.log1p(free_cpu / WHOLE)
    seen[told.UTILISATION] = done / (capacity * cluster.speed[machine])
    seen[told.JOBS] = np.log1p(count)
    seen[told.SHARERS] = state.machines[machine, at.SHARERS] * WHOLE / capacity
    seen[told.KEPT] = kept_speed(state, cluster, machine)
    seen[told.PRICE] = cluster.price_per_s[machine] * 3600
    seen[told.SPEED] = cluster.speed[machine]


@njit_internal
def kept_speed(state: SimState, cluster: Cluster, machine: int) -> float:
    """What sharers on a machine keep of their speed with the neighbours of this very moment."""
    if state.setup[at.INTERFERENCE] == 0:
        return 1.0
    return colocation_factor(
        state.machines[machine, at.WHOLE_GPUS],
        state.machines[machine, at.SHARERS],
        state.machines[machine, at.SHARED],
        cluster.gpu_capacity[machine],
        state.factors[machine, at.SEVERITY],
    )
