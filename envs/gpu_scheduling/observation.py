"""What both agents see: the pending jobs, the machines, who fits where, and speeds of late.

`observe` is the only way from a cluster to an observation. Pending jobs come in order of arrival;
where more wait than there are rows, the first of them are shown, and the others must wait until
they are among these. Numbers are of about one: what differs a thousandfold is told as a logarithm.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, inner, part
from loadmaster.envs.gpu_scheduling import desk as on
from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.cluster import WHOLE, Cluster
from loadmaster.envs.gpu_scheduling.desk import Desk
from loadmaster.envs.gpu_scheduling.epoch import list_pending
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.orderings import dominant_share
from loadmaster.envs.gpu_scheduling.placement import instances_that_fit
from loadmaster.envs.gpu_scheduling.slowdown import colocation_factor
from loadmaster.envs.gpu_scheduling.state import SimState

# Columns of `jobs`.
INSTANCES = 0  # log of the gang's size
GPUS = 1  # log(1 + GPUs) of one instance
CORES = 2  # log(1 + cores) of one instance
GPU_SHARE = 3  # of all GPUs, for the whole gang
CPU_SHARE = 4  # of all cores
SHARES = 5  # 1: an instance shares a GPU with others, and is slowed down by them
COMM = 6  # share of its time the gang spends communicating
WAITED = 7  # log(1 + minutes) since it arrived
STARTS = 8  # 1: the whole gang fits now
RUN = 9  # log(1 + minutes) that it will run at speed 1; 0 where durations are unknown
USER_SHARE = 10  # the larger of its user's shares of all GPUs and all cores
USER_DONE = 11  # log(1 + finished jobs) of its user
USER_RUN = 12  # mean log(1 + minutes) that those ran; 0 where there are none
JOB_FEATURES = 13

# Columns of `machines`.
FREE_GPU = 0  # share of its GPUs
FREE_CPU = 1  # share of its cores
FREE_GPUS = 2  # log(1 + free GPUs)
FREE_CORES = 3  # log(1 + free cores)
UTILISATION = 4  # what its GPUs get done, of what they could undisturbed
JOBS = 5  # log(1 + jobs) that run there
SHARERS = 6  # instances that share a GPU, for each GPU
KEPT = 7  # what sharers keep of their speed
PRICE = 8  # dollars an hour, of one GPU
SPEED = 9  # of one GPU; 1 is a V100
MACHINE_FEATURES = 10

_HUGE = 1e9  # above any feature


class Observation(NamedTuple):
    """Q rows of pending jobs, M machines, T past decisions; rows not in use are 0."""

    jobs: NDArray[np.float32]  # (Q, JOB_FEATURES)
    job_mask: NDArray[np.bool_]  # (Q,) the rows in use
    machines: NDArray[np.float32]  # (M, MACHINE_FEATURES)
    fits: NDArray[np.bool_]  # (Q, M) an instance fits there, and the gang somewhere
    rack: NDArray[np.int64]  # (M,)
    history_y: NDArray[np.float32]  # (T, M) speed of what ran, 1: a V100 undisturbed; latest first
    history_mask: NDArray[np.bool_]  # (T, M) whether anything ran
    history_t: NDArray[np.float32]  # (T,) s since then: the first row is of now


def blank_observation(queue: int, cluster: Cluster, past: int) -> Observation:
    """No job waits, nothing has happened."""
    machines = len(cluster.rack)
    return Observation(
        jobs=np.zeros((queue, JOB_FEATURES), np.float32),
        job_mask=np.zeros(queue, np.bool_),
        machines=np.zeros((machines, MACHINE_FEATURES), np.float32),
        fits=np.zeros((queue, machines), np.bool_),
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
    state: SimState, cluster: Cluster, jobs: Jobs, desk: Desk, durations: bool, out: Observation
) -> None:
    """Write the observation into `out`, and the job behind each of its rows on the desk."""
    used, shown = desk.counts[on.SHOWN], list_pending(state, desk.shown)
    desk.counts[on.SHOWN] = shown
    for row in range(shown):
        job = desk.shown[row]
        desk.row_of[job] = row
        starts = _observe_room(state, cluster, jobs, job, out.fits[row])
        _observe_job(state, jobs, desk, job, starts, durations, out.jobs[row])
        out.job_mask[row] = True
    # Only what the last observation used can need clearing.
    for unused in range(shown, used):
        out.job_mask[unused] = False
        out.jobs[unused] = 0
        out.fits[unused] = False
    for machine in range(len(out.machines)):
        _observe_machine(state, cluster, jobs, machine, out.machines[machine])
    for past in range(desk.counts[on.NOTED]):
        out.history_t[past] = state.times[at.NOW] - desk.noted_s[past]
        for machine in range(len(out.machines)):
            out.history_y[past, machine] = desk.noted_speed[past, machine]
            out.history_mask[past, machine] = desk.noted[past, machine]


@part
def _observe_room(
    state: SimState, cluster: Cluster, jobs: Jobs, job: int, seen: NDArray[np.bool_]
) -> bool:
    """Where the gang could have an instance; nowhere, if it does not fit as a whole."""
    total = 0
    if state.groups[state.jobs[job, at.GROUP], at.BLOCKED] == 0:
        for machine in range(len(seen)):
            fit = instances_that_fit(cluster, jobs, state.free, job, machine)
            seen[machine] = fit > 0
            total += fit
    starts = total >= jobs.instances[job]
    if not starts:
        seen[:] = False
    return starts


@part
def _observe_job(
    state: SimState,
    jobs: Jobs,
    desk: Desk,
    job: int,
    starts: bool,
    durations: bool,
    seen: NDArray[np.float32],
) -> None:
    instances, gpu, cpu, user = jobs.instances[job], jobs.gpu[job], jobs.cpu[job], jobs.user[job]
    seen[INSTANCES] = np.log(instances)
    seen[GPUS] = np.log1p(gpu / WHOLE)
    seen[CORES] = np.log1p(cpu / WHOLE)
    seen[GPU_SHARE] = instances * gpu / state.setup[at.ALL_GPU]
    seen[CPU_SHARE] = instances * cpu / state.setup[at.ALL_CPU]
    seen[SHARES] = gpu % WHOLE != 0
    seen[COMM] = jobs.comm[job]
    seen[WAITED] = log_minutes(state.times[at.NOW] - jobs.arrival_s[job])
    seen[STARTS] = starts
    seen[RUN] = log_minutes(jobs.duration_s[job]) if durations else 0.0
    seen[USER_SHARE] = dominant_share(state, user)
    done = desk.users[user, on.JOBS_DONE]
    seen[USER_DONE] = np.log1p(done)
    seen[USER_RUN] = desk.users[user, on.LOG_RUN] / max(done, 1.0)


@part
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
    seen[FREE_GPU] = free_gpu / capacity
    seen[FREE_CPU] = free_cpu / cluster.cpu_capacity[machine]
    seen[FREE_GPUS] = np.log1p(free_gpu / WHOLE)
    seen[FREE_CORES] = np.log1p(free_cpu / WHOLE)
    seen[UTILISATION] = done / (capacity * cluster.speed[machine])
    seen[JOBS] = np.log1p(count)
    seen[SHARERS] = state.machines[machine, at.SHARERS] * WHOLE / capacity
    seen[KEPT] = kept_speed(state, cluster, machine)
    seen[PRICE] = cluster.price_per_s[machine] * 3600
    seen[SPEED] = cluster.speed[machine]


@inner
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


@inner
def log_minutes(seconds: float) -> float:
    return np.log1p(seconds / 60)
