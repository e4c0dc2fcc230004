"""Reconsidering everything: pending and running jobs in one order, the lower ones give way."""

from __future__ import annotations

import numpy as np

from loadmaster.envs.compiled import compiled, njit_internal
from loadmaster.envs.gpu_scheduling import queues as heaps
from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.placement import Wishes, choose_machines
from loadmaster.envs.gpu_scheduling.queues import Table, dequeue, enqueue, key_now
from loadmaster.envs.gpu_scheduling.rule_ids import CONSOLIDATE, GIVEN
from loadmaster.envs.gpu_scheduling.shapes import fits
from loadmaster.envs.gpu_scheduling.simulator import start, stop
from loadmaster.envs.gpu_scheduling.state import SimState


@compiled
def replan(
    state: SimState, cluster: Cluster, jobs: Jobs, ordering: int, placement: int, wishes: Wishes
) -> None:
    """Walk all jobs in order; each takes its place as if those behind it were not there.

    A running job stays where it is as long as nobody before it needed that room. A pending one
    looks first for room that is truly free, so nobody is moved without need. Whoever lost its place
    goes back to its last checkpoint and looks for another place at its turn.
    """
    state.clock[at.EPOCHS] += 1
    left = line_up(state, jobs, ordering)
    for machine in range(len(state.room)):
        state.room[machine, at.GPU] = cluster.gpu_capacity[machine]
        state.room[machine, at.CPU] = cluster.cpu_capacity[machine]
    closed = False
    while left > 0:
        job = state.order[0]
        heaps.take_out(state.order, state.order_at, state.key, jobs.job_id, 0, left, job)
        left -= 1
        if state.jobs[job, at.ROWS_USED] > 0:
            if reserve(state, jobs, job):
                continue
            preempt(state, cluster, jobs, ordering, job)
        if closed:
            continue
        room = state.free if fits(state, state.jobs[job, at.GROUP]) else state.room
        rows = choose_machines(state, cluster, jobs, room, job, placement, wishes)
        if rows == 0:
            closed = state.setup[at.BACKFILL] == 0
            continue
        dequeue(state, jobs, job)
        start(state, cluster, jobs, job, rows)
        reserve(state, jobs, job)


@compiled
def preempt_lower_ranked(state: SimState, cluster: Cluster, jobs: Jobs, free: Table) -> int:
    """Stop the running jobs that are in the way of others before them; how many those were.

    Nobody is started. All jobs are walked by their keys as in `replan`; pending ones book room for
    as few machines as possible, first what is free, then what jobs behind them hold. A key of minus
    infinity is safe, one of infinity asks for nothing; without backfill nor does anybody behind a
    job for which there is no room. `free` (M, 2) is scratch: what is free of jobs and of bookings.
    """
    left = gather(state, jobs)
    for machine in range(len(state.room)):
        state.room[machine, at.GPU] = cluster.gpu_capacity[machine]
        state.room[machine, at.CPU] = cluster.cpu_capacity[machine]
        for resource in range(2):
            free[machine, resource] = state.free[machine, resource]
    stopped, nothing, closed = 0, Wishes(state.factors, state.place), False
    while left > 0:
        job = state.order[0]
        heaps.take_out(state.order, state.order_at, state.key, jobs.job_id, 0, left, job)
        left -= 1
        used = state.jobs[job, at.ROWS_USED]
        if used > 0:
            if not reserve(state, jobs, job):
                take(state, jobs, free, job, used, -1)
                preempt(state, cluster, jobs, GIVEN, job)
                stopped += 1
            continue
        if closed or state.key[job] == np.inf:
            continue
        rows = choose_machines(state, cluster, jobs, free, job, CONSOLIDATE, nothing)
        if rows == 0:
            rows = choose_machines(state, cluster, jobs, state.room, job, CONSOLIDATE, nothing)
        closed = rows == 0 and state.setup[at.BACKFILL] == 0
        take(state, jobs, free, job, rows, 1)
        take(state, jobs, state.room, job, rows, 1)
    return stopped


@njit_internal
def take(state: SimState, jobs: Jobs, room: Table, job: int, rows: int, times: int) -> None:
    """What the job's first `rows` rows hold, out of `room`; back into it where `times` is -1."""
    first = state.jobs[job, at.FIRST_ROW]
    for row in range(first, first + rows):
        machine, count = state.rows[row, at.MACHINE], times * state.rows[row, at.COUNT]
        room[machine, at.GPU] -= count * jobs.gpu[job]
        room[machine, at.CPU] -= count * jobs.cpu[job]


@njit_internal
def preempt(state: SimState, cluster: Cluster, jobs: Jobs, ordering: int, job: int) -> None:
    """Send a running job back to the queue; it loses min(RESTART_S, its progress since it started).

    Both are work, in seconds at speed 1. It was placed from a checkpoint: what it had done before
    is safe. Its turn in this walk is now; the new key counts from the next on.
    """
    stop(state, cluster, jobs, job)
    state.progress[job, at.LEFT_S] = min(
        state.progress[job, at.LEFT_S] + state.times[at.RESTART_S],
        state.progress[job, at.PLACED_LEFT_S],
    )
    state.key[job] = key_now(state, jobs, ordering, job)
    state.clock[at.PREEMPTIONS] += 1
    enqueue(state, cluster, jobs, job)


@njit_internal
def line_up(state: SimState, jobs: Jobs, ordering: int) -> int:
    """All jobs in the system as one heap, the running ones with the keys of this moment."""
    for place in range(state.clock[at.RUNNING]):
        job = state.event_heap[place]
        state.key[job] = key_now(state, jobs, ordering, job)
    return gather(state, jobs)


@njit_internal
def gather(state: SimState, jobs: Jobs) -> int:
    """All jobs in the system as one heap in `order` by the keys they have; how many there are."""
    count = 0
    for place in range(state.clock[at.RUNNING]):
        job = state.event_heap[place]
        heaps.push(state.order, state.order_at, state.key, jobs.job_id, 0, count, job)
        count += 1
    end = len(state.jobs) - 1
    job = state.jobs[end, at.LATER]
    while job != end:
        heaps.push(state.order, state.order_at, state.key, jobs.job_id, 0, count, job)
        count += 1
        job = state.jobs[job, at.LATER]
    return count


@njit_internal
def reserve(state: SimState, jobs: Jobs, job: int) -> bool:
    """Take the job's places out of `room`, all or none; whether all were there."""
    first, end = (
        state.jobs[job, at.FIRST_ROW],
        state.jobs[job, at.FIRST_ROW] + state.jobs[job, at.ROWS_USED],
    )
    for row in range(first, end):
        machine, count = state.rows[row, at.MACHINE], state.rows[row, at.COUNT]
        if state.room[machine, at.GPU] < count * jobs.gpu[job]:
            return False
        if state.room[machine, at.CPU] < count * jobs.cpu[job]:
            return False
    take(state, jobs, state.room, job, end - first, 1)
    return True
