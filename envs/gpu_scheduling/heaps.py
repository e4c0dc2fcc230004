"""Binary heaps of jobs inside a common table; every job knows its place, so any can be taken out.

A heap is the stretch of `heap` that begins at `first` and holds `length` jobs. The lowest key is on
top; of equal keys, the lowest tie number.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import inner

Table = NDArray[np.int64]
Keys = NDArray[np.float64]


@inner
def before(key: Keys, tie: Table, one: int, other: int) -> bool:
    return key[one] < key[other] or (key[one] == key[other] and tie[one] < tie[other])


@inner
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


@inner
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


@inner
def push(heap: Table, at: Table, key: Keys, tie: Table, first: int, length: int, job: int) -> None:
    """Add a job to a heap that holds `length`."""
    heap[first + length] = job
    rise(heap, at, key, tie, first, length)


@inner
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


@inner
def move(heap: Table, at: Table, key: Keys, tie: Table, first: int, length: int, job: int) -> None:
    """Put a job right whose key changed."""
    rise(heap, at, key, tie, first, at[job])
    sink(heap, at, key, tie, first, length, at[job])
