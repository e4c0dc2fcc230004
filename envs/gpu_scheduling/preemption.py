"""Reconsidering everything: pending and running jobs in one order, the lower ones give way."""

from __future__ import annotations

from loadmaster.envs.compiled import compiled, inner
from loadmaster.envs.gpu_scheduling import heaps
from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.orderings import key_now
from loadmaster.envs.gpu_scheduling.pending import dequeue, enqueue
from loadmaster.envs.gpu_scheduling.placement import Wishes, choose_machines
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


@inner
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


@inner
def line_up(state: SimState, jobs: Jobs, ordering: int) -> int:
    """All jobs in the system as one heap in `order`; how many there are."""
    count = 0
    for place in range(state.clock[at.RUNNING]):
        job = state.event_heap[place]
        state.key[job] = key_now(state, jobs, ordering, job)
        heaps.push(state.order, state.order_at, state.key, jobs.job_id, 0, count, job)
        count += 1
    end = len(state.jobs) - 1
    job = state.jobs[end, at.LATER]
    while job != end:
        heaps.push(state.order, state.order_at, state.key, jobs.job_id, 0, count, job)
        count += 1
        job = state.jobs[job, at.LATER]
    return count


@inner
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
    for row in range(first, end):
        machine, count = state.rows[row, at.MACHINE], state.rows[row, at.COUNT]
        state.room[machine, at.GPU] -= count * jobs.gpu[job]
        state.room[machine, at.CPU] -= count * jobs.cpu[job]
    return True
