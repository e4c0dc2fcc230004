"""Pending jobs: heaps, the queue in order of arrival, and the keys of ordering rules.

Jobs with equal demands form a group. Within a group the job with the lowest key goes first; keys of
pending jobs change only by `rekey`. Between groups the scores of their first jobs decide, which may
change whenever a job starts.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import njit_inline, njit_internal
from loadmaster.envs.gpu_scheduling import state as cols
from loadmaster.envs.gpu_scheduling.baselines import DRF, GIVEN, LAS, SJF, SRTF, TETRIS
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.jobs import WHOLE, Jobs
from loadmaster.envs.gpu_scheduling.placement import track, untrack
from loadmaster.envs.gpu_scheduling.state import SimState, Table

Keys = NDArray[np.float64]


class Heap(NamedTuple):
    """Binary heaps in one table, each a range of `jobs` that begins at `first`.

    The lowest key is on top; of equal keys, the lowest `tie`.
    """

    jobs: Table
    index_of: Table  # index of each job in its heap
    key: Keys
    tie: Table


@njit_internal
def precedes(key: Keys, tie: Table, one: int, other: int) -> bool:
    return key[one] < key[other] or (key[one] == key[other] and tie[one] < tie[other])


@njit_internal
def _sift_up(heap: Heap, first: int, place: int) -> None:
    job = heap.jobs[first + place]
    while place > 0:
        above = heap.jobs[first + (place - 1) // 2]
        if not precedes(heap.key, heap.tie, job, above):
            break
        heap.jobs[first + place] = above
        heap.index_of[above] = place
        place = (place - 1) // 2
    heap.jobs[first + place] = job
    heap.index_of[job] = place


@njit_internal
def _sift_down(heap: Heap, first: int, length: int, place: int) -> None:
    job = heap.jobs[first + place]
    while True:
        below = 2 * place + 1
        if below >= length:
            break
        child = heap.jobs[first + below]
        if below + 1 < length:
            sibling = heap.jobs[first + below + 1]
            if precedes(heap.key, heap.tie, sibling, child):
                below, child = below + 1, sibling
        if not precedes(heap.key, heap.tie, child, job):
            break
        heap.jobs[first + place] = child
        heap.index_of[child] = place
        place = below
    heap.jobs[first + place] = job
    heap.index_of[job] = place


@njit_internal
def heap_push(heap: Heap, first: int, length: int, job: int) -> None:
    """Add a job to a heap that holds `length`."""
    heap.jobs[first + length] = job
    _sift_up(heap, first, length)


@njit_internal
def heap_remove(heap: Heap, first: int, length: int, job: int) -> None:
    """Remove a job from a heap that holds `length`."""
    place = heap.index_of[job]
    last = heap.jobs[first + length - 1]
    if last != job:
        heap.jobs[first + place] = last
        heap.index_of[last] = place
        heap_update(heap, first, length - 1, last)


@njit_internal
def heap_update(heap: Heap, first: int, length: int, job: int) -> None:
    """Restore the order after the key of a job changed."""
    _sift_up(heap, first, heap.index_of[job])
    _sift_down(heap, first, length, heap.index_of[job])


@njit_internal
def pending_heap(state: SimState, jobs: Jobs) -> Heap:
    """Pending jobs by key, one heap per group."""
    return Heap(state.heap, state.place, state.key, jobs.job_id)


@njit_internal
def event_heap(state: SimState, jobs: Jobs) -> Heap:
    """Running jobs by their predicted ends."""
    return Heap(state.event_heap, state.place, state.finish_s, jobs.job_id)


@njit_internal
def replan_heap(state: SimState, jobs: Jobs) -> Heap:
    """All jobs in the system by key, while replanning."""
    return Heap(state.order, state.order_at, state.key, jobs.job_id)


@njit_internal
def enqueue(state: SimState, cluster: Cluster, jobs: Jobs, job: int) -> None:
    """Add a new or preempted job, whose key must be set."""
    end = len(state.jobs) - 1
    before = state.jobs[end, cols.EARLIER]
    while before != end and before > job:  # jobs are numbered in order of arrival
        before = state.jobs[before, cols.EARLIER]
    after = state.jobs[before, cols.LATER]
    state.jobs[before, cols.LATER], state.jobs[after, cols.EARLIER] = job, job
    state.jobs[job, cols.LATER], state.jobs[job, cols.EARLIER] = after, before
    state.clock[cols.QUEUED] += 1

    group = state.jobs[job, cols.GROUP]
    length = state.groups[group, cols.LENGTH]
    heap_push(pending_heap(state, jobs), state.groups[group, cols.HEAP], length, job)
    state.groups[group, cols.LENGTH] = length + 1
    if length == 0:
        place = state.clock[cols.WAITING_GROUPS]
        state.groups[place, cols.WAITING] = group
        state.groups[group, cols.WAITING_AT] = place
        state.clock[cols.WAITING_GROUPS] = place + 1
        track(state, cluster, state.groups[group, cols.SHAPE])


@njit_internal
def dequeue(state: SimState, jobs: Jobs, job: int) -> None:
    """Remove a pending job from the queue and from its group."""
    before, after = state.jobs[job, cols.EARLIER], state.jobs[job, cols.LATER]
    state.jobs[before, cols.LATER], state.jobs[after, cols.EARLIER] = after, before
    state.clock[cols.QUEUED] -= 1

    group = state.jobs[job, cols.GROUP]
    length = state.groups[group, cols.LENGTH]
    heap_remove(pending_heap(state, jobs), state.groups[group, cols.HEAP], length, job)
    state.groups[group, cols.LENGTH] = length - 1
    if length == 1:
        state.clock[cols.WAITING_GROUPS] -= 1
        last = state.groups[state.clock[cols.WAITING_GROUPS], cols.WAITING]
        place = state.groups[group, cols.WAITING_AT]
        state.groups[place, cols.WAITING] = last
        state.groups[last, cols.WAITING_AT] = place
        untrack(state, state.groups[group, cols.SHAPE])


@njit_internal
def rekey(state: SimState, jobs: Jobs, job: int, key: float) -> None:
    """Change the key of a pending job."""
    group = state.jobs[job, cols.GROUP]
    state.key[job] = key
    first, length = state.groups[group, cols.HEAP], state.groups[group, cols.LENGTH]
    heap_update(pending_heap(state, jobs), first, length, job)


LAS_THRESHOLD_GPU_S = 18_000.0  # attained service that separates the two queues of Tiresias
_SECOND_QUEUE = 1e12  # seconds: later than every arrival, and fractions stay representable


@njit_internal
def first_key(jobs: Jobs, ordering: int, job: int) -> float:
    """Key of a job at its arrival."""
    if ordering in (SJF, SRTF, TETRIS):
        return float(jobs.duration_s[job])
    if ordering == GIVEN:
        return np.inf  # no priority was given yet
    return float(jobs.arrival_s[job])


@njit_internal
def key_now(state: SimState, jobs: Jobs, ordering: int, job: int) -> float:
    """Current key of a job that may have run before, or be running."""
    now = state.times[cols.NOW]
    if ordering == LAS:
        # 2D-LAS (Tiresias, NSDI 2019): attained service is GPUs times time; FIFO in either queue.
        run_s = state.progress[job, cols.RUN_S]
        if state.jobs[job, cols.ROWS_USED] > 0:
            run_s += now - state.progress[job, cols.PLACED_S]
        attained = run_s * jobs.instances[job] * jobs.gpu[job] / WHOLE
        second = _SECOND_QUEUE if attained >= LAS_THRESHOLD_GPU_S else 0.0
        return second + float(jobs.arrival_s[job])
    if ordering == SRTF:
        return float(
            state.progress[job, cols.LEFT_S]
            - (now - state.progress[job, cols.SINCE_S]) * state.progress[job, cols.RATE]
        )
    return first_key(jobs, ordering, job)


@njit_inline
def score_of(state: SimState, jobs: Jobs, ordering: int, epsilon: float, job: int) -> float:
    """Score of a group's first job: the lowest goes first; ties by key, then by id."""
    if ordering == DRF:
        return dominant_share(state, jobs.user[job])
    if ordering == TETRIS:
        # Tetris (SIGCOMM 2014): alignment less epsilon times the work left.
        return epsilon * _work(state, jobs, job) - _alignment(state, jobs, job)
    return float(state.key[job])


@njit_internal
def dominant_share(state: SimState, user: int) -> float:
    """DRF (NSDI 2011): the larger of a user's shares of all GPUs and of all cores."""
    gpus = state.user_use[user, cols.GPU] / state.setup[cols.ALL_GPU]
    cpus = state.user_use[user, cols.CPU] / state.setup[cols.ALL_CPU]
    return max(gpus, cpus)


@njit_internal
def _alignment(state: SimState, jobs: Jobs, job: int) -> float:
    """Dot product of the gang's demands and the free resources, as shares of the cluster."""
    all_gpus, all_cpus = state.setup[cols.ALL_GPU], state.setup[cols.ALL_CPU]
    gpus = jobs.instances[job] * jobs.gpu[job] / all_gpus * state.clock[cols.FREE_GPU] / all_gpus
    cpus = jobs.instances[job] * jobs.cpu[job] / all_cpus * state.clock[cols.FREE_CPU] / all_cpus
    return gpus + cpus


@njit_internal
def _work(state: SimState, jobs: Jobs, job: int) -> float:
    """Duration of a job times its demands, as shares of the cluster."""
    gpus = jobs.gpu[job] / state.setup[cols.ALL_GPU]
    cpus = jobs.cpu[job] / state.setup[cols.ALL_CPU]
    return float(jobs.duration_s[job] * jobs.instances[job] * (gpus + cpus))


@njit_inline
def tetris_epsilon(state: SimState, jobs: Jobs) -> float:
    """Mean alignment over mean work of the pending jobs, to scale both alike."""
    aligned, work = 0.0, 0.0
    end = len(state.jobs) - 1
    job = state.jobs[end, cols.LATER]
    while job != end:
        aligned += _alignment(state, jobs, job)
        work += _work(state, jobs, job)
        job = state.jobs[job, cols.LATER]
    return aligned / max(work, 1e-12)
