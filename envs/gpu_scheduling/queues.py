"""Who goes next: the orders in which an epoch offers pending jobs to the cluster.

Within a group of equal demands the lowest key goes first, and keys of pending jobs never change by
themselves. Between groups the score of each group's first decides; it may change with every job.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import njit_inline, njit_internal
from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.cluster import WHOLE, Cluster
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.rule_ids import DRF, GIVEN, LAS, SJF, SRTF, TETRIS
from loadmaster.envs.gpu_scheduling.shapes import demand, undemand
from loadmaster.envs.gpu_scheduling.state import SimState

# Binary heaps of jobs inside a common table; every job knows its place, so any can be taken out.
#
# A heap is the stretch of `heap` that begins at `first` and holds `length` jobs. The lowest key
# is on
# top; of equal keys, the lowest tie number.


Table = NDArray[np.int64]
Keys = NDArray[np.float64]


@njit_internal
def before(key: Keys, tie: Table, one: int, other: int) -> bool:
    return key[one] < key[other] or (key[one] == key[other] and tie[one] < tie[other])


@njit_internal
def rise(heap: Table, at: Table, key: Keys, tie: Table, first: int, place: int) -> None:
    """Let the job at `place` move up as far as its key allows."""
    job = heap[first + place]
    while place > 0:
        above = heap[first + (place - 1) // 2]
        if not before(key, tie, job, above):
            break
        heap[first + place] = above
        at[above] = place
        place = (place - 1) // 2
    heap[first + place] = job
    at[job] = place


@njit_internal
def sink(
    heap: Table, at: Table, key: Keys, tie: Table, first: int, length: int, place: int
) -> None:
    """Let the job at `place` move down as far as its key demands."""
    job = heap[first + place]
    while True:
        below = 2 * place + 1
        if below >= length:
            break
        if below + 1 < length and before(key, tie, heap[first + below + 1], heap[first + below]):
            below += 1
        if not before(key, tie, heap[first + below], job):
            break
        heap[first + place] = heap[first + below]
        at[heap[first + place]] = place
        place = below
    heap[first + place] = job
    at[job] = place


@njit_internal
def push(heap: Table, at: Table, key: Keys, tie: Table, first: int, length: int, job: int) -> None:
    """Add a job to a heap that holds `length`."""
    heap[first + length] = job
    rise(heap, at, key, tie, first, length)


@njit_internal
def take_out(
    heap: Table, at: Table, key: Keys, tie: Table, first: int, length: int, job: int
) -> None:
    """Remove a job from a heap that holds `length`; it then holds one less."""
    place = at[job]
    last = heap[first + length - 1]
    if last != job:
        heap[first + place] = last
        at[last] = place
        move(heap, at, key, tie, first, length - 1, last)


@njit_internal
def move(heap: Table, at: Table, key: Keys, tie: Table, first: int, length: int, job: int) -> None:
    """Put a job right whose key changed."""
    rise(heap, at, key, tie, first, at[job])
    sink(heap, at, key, tie, first, length, at[job])


# The pending jobs: in order of arrival, and group by group in order of their keys.


@njit_internal
def enqueue(state: SimState, cluster: Cluster, jobs: Jobs, job: int) -> None:
    """Add a job whose key is set: a new one, or one that was stopped."""
    end = len(state.jobs) - 1
    before = state.jobs[end, at.EARLIER]
    while before != end and before > job:  # jobs are numbered in order of arrival
        before = state.jobs[before, at.EARLIER]
    after = state.jobs[before, at.LATER]
    state.jobs[before, at.LATER], state.jobs[after, at.EARLIER] = job, job
    state.jobs[job, at.LATER], state.jobs[job, at.EARLIER] = after, before
    state.clock[at.QUEUED] += 1

    group = state.jobs[job, at.GROUP]
    length = state.groups[group, at.LENGTH]
    push(state.heap, state.place, state.key, jobs.job_id, state.groups[group, at.HEAP], length, job)
    state.groups[group, at.LENGTH] = length + 1
    if length == 0:
        place = state.clock[at.WAITING_GROUPS]
        state.groups[place, at.WAITING] = group
        state.groups[group, at.WAITING_AT] = place
        state.clock[at.WAITING_GROUPS] = place + 1
        demand(state, cluster, state.groups[group, at.SHAPE])


@njit_internal
def dequeue(state: SimState, jobs: Jobs, job: int) -> None:
    before, after = state.jobs[job, at.EARLIER], state.jobs[job, at.LATER]
    state.jobs[before, at.LATER], state.jobs[after, at.EARLIER] = after, before
    state.clock[at.QUEUED] -= 1

    group = state.jobs[job, at.GROUP]
    length = state.groups[group, at.LENGTH]
    take_out(
        state.heap, state.place, state.key, jobs.job_id, state.groups[group, at.HEAP], length, job
    )
    state.groups[group, at.LENGTH] = length - 1
    if length == 1:
        state.clock[at.WAITING_GROUPS] -= 1
        last = state.groups[state.clock[at.WAITING_GROUPS], at.WAITING]
        place = state.groups[group, at.WAITING_AT]
        state.groups[place, at.WAITING] = last
        state.groups[last, at.WAITING_AT] = place
        undemand(state, state.groups[group, at.SHAPE])


@njit_internal
def rekey(state: SimState, jobs: Jobs, job: int, key: float) -> None:
    """Give a pending job another key."""
    group = state.jobs[job, at.GROUP]
    state.key[job] = key
    first, length = state.groups[group, at.HEAP], state.groups[group, at.LENGTH]
    move(state.heap, state.place, state.key, jobs.job_id, first, length, job)


LAS_THRESHOLD_GPU_S = 18_000.0  # Tiresias' two queues: attained service below and above this
_SECOND_QUEUE = 1e12  # seconds; past every arrival, with room for their fractions


@njit_internal
def first_key(jobs: Jobs, ordering: int, job: int) -> float:
    """The key of a job that has just arrived."""
    if ordering in (SJF, SRTF, TETRIS):
        return float(jobs.duration_s[job])
    if ordering == GIVEN:
        return np.inf  # nobody has spoken for it yet
    return float(jobs.arrival_s[job])


@njit_internal
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


@njit_inline
def score_of(state: SimState, jobs: Jobs, ordering: int, epsilon: float, job: int) -> float:
    """The lowest goes first; of equal ones, the lowest key, then the lowest id."""
    if ordering == DRF:
        return dominant_share(state, jobs.user[job])
    if ordering == TETRIS:
        # Tetris (SIGCOMM 2014): alignment less epsilon times the work left.
        return epsilon * work_of(state, jobs, job) - alignment(state, jobs, job)
    return float(state.key[job])


@njit_internal
def dominant_share(state: SimState, user: int) -> float:
    """DRF (NSDI 2011): the larger of a user's shares of all GPUs and of all cores."""
    gpus = state.user_use[user, at.GPU] / state.setup[at.ALL_GPU]
    cpus = state.user_use[user, at.CPU] / state.setup[at.ALL_CPU]
    return max(gpus, cpus)


@njit_internal
def alignment(state: SimState, jobs: Jobs, job: int) -> float:
    """What the gang asks for times what is free, each as a share of the whole cluster."""
    all_gpus, all_cpus = state.setup[at.ALL_GPU], state.setup[at.ALL_CPU]
    gpus = jobs.instances[job] * jobs.gpu[job] / all_gpus * state.clock[at.FREE_GPU] / all_gpus
    cpus = jobs.instances[job] * jobs.cpu[job] / all_cpus * state.clock[at.FREE_CPU] / all_cpus
    return gpus + cpus


@njit_internal
def work_of(state: SimState, jobs: Jobs, job: int) -> float:
    """A job's duration times what it asks for, as shares of the cluster."""
    gpus = jobs.gpu[job] / state.setup[at.ALL_GPU]
    cpus = jobs.cpu[job] / state.setup[at.ALL_CPU]
    return float(jobs.duration_s[job] * jobs.instances[job] * (gpus + cpus))


@njit_inline
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
