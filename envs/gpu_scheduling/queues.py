"""Pending jobs: heaps, and the queue in order of arrival.

Jobs with equal demands form a group. Within a group the job with the lowest key goes first; keys of
pending jobs change only by `rekey`. Between groups the scores of their first jobs decide, which may
change whenever a job starts.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import njit_internal
from loadmaster.envs.gpu_scheduling import state as cols
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.jobs import Jobs
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
