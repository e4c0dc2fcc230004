"""Who goes next: the orders in which an epoch offers pending jobs to the cluster.

Within a group of equal demands the lowest key goes first, and keys of pending jobs never change by
themselves. Between groups the score of each group's first decides; it may change with every job.
"""

from __future__ import annotations

import numpy as np

from loadmaster.envs.compiled import inner, part
from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.cluster import WHOLE
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.rules import DRF, GIVEN, LAS, SJF, SRTF, TETRIS
from loadmaster.envs.gpu_scheduling.state import SimState

LAS_THRESHOLD_GPU_S = 18_000.0  # Tiresias' two queues: attained service below and above this
_SECOND_QUEUE = 1e12  # seconds; past every arrival, with room for their fractions


@inner
def first_key(jobs: Jobs, ordering: int, job: int) -> float:
    """The key of a job that has just arrived."""
    if ordering in (SJF, SRTF, TETRIS):
        return float(jobs.duration_s[job])
    if ordering == GIVEN:
        return np.inf  # nobody has spoken for it yet
    return float(jobs.arrival_s[job])


@inner
def key_now(state: SimState, jobs: Jobs, ordering: int, job: int) -> float:
    """The key of a job that may have run before, or be running."""
    now = state.times[at.NOW]
    if ordering == LAS:
        # 2D-LAS (Tiresias, NSDI 2019): attained service is GPUs times time; FIFO in either queue.
        run_s = state.progress[job, at.RUN_S]
        if state.jobs[job, at.ROWS_USED] > 0:
            run_s += now - state.progress[job, at.PLACED_S]
        attained = run_s * jobs.instances[job] * jobs.gpu[job] / WHOLE
        second = _SECOND_QUEUE if attained >= LAS_THRESHOLD_GPU_S else 0.0
        return second + float(jobs.arrival_s[job])
    if ordering == SRTF:
        return float(
            state.progress[job, at.LEFT_S]
            - (now - state.progress[job, at.SINCE_S]) * state.progress[job, at.RATE]
        )
    return first_key(jobs, ordering, job)


@part
def score_of(state: SimState, jobs: Jobs, ordering: int, epsilon: float, job: int) -> float:
    """The lowest goes first; of equal ones, the lowest key, then the lowest id."""
    if ordering == DRF:
        return dominant_share(state, jobs.user[job])
    if ordering == TETRIS:
        # Tetris (SIGCOMM 2014): alignment less epsilon times the work left.
        return epsilon * work_of(state, jobs, job) - alignment(state, jobs, job)
    return float(state.key[job])


@inner
def dominant_share(state: SimState, user: int) -> float:
    """DRF (NSDI 2011): the larger of a user's shares of all GPUs and of all cores."""
    gpus = state.user_use[user, at.GPU] / state.setup[at.ALL_GPU]
    cpus = state.user_use[user, at.CPU] / state.setup[at.ALL_CPU]
    return max(gpus, cpus)


@inner
def alignment(state: SimState, jobs: Jobs, job: int) -> float:
    """What the gang asks for times what is free, each as a share of the whole cluster."""
    all_gpus, all_cpus = state.setup[at.ALL_GPU], state.setup[at.ALL_CPU]
    gpus = jobs.instances[job] * jobs.gpu[job] / all_gpus * state.clock[at.FREE_GPU] / all_gpus
    cpus = jobs.instances[job] * jobs.cpu[job] / all_cpus * state.clock[at.FREE_CPU] / all_cpus
    return gpus + cpus


@inner
def work_of(state: SimState, jobs: Jobs, job: int) -> float:
    """A job's duration times what it asks for, as shares of the cluster."""
    gpus = jobs.gpu[job] / state.setup[at.ALL_GPU]
    cpus = jobs.cpu[job] / state.setup[at.ALL_CPU]
    return float(jobs.duration_s[job] * jobs.instances[job] * (gpus + cpus))


@part
def tetris_epsilon(state: SimState, jobs: Jobs) -> float:
    """Mean alignment over mean work of the pending jobs: brings both to one scale."""
    aligned, work = 0.0, 0.0
    end = len(state.jobs) - 1
    job = state.jobs[end, at.LATER]
    while job != end:
        aligned += alignment(state, jobs, job)
        work += work_of(state, jobs, job)
        job = state.jobs[job, at.LATER]
    return aligned / max(work, 1e-12)
