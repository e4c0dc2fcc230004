"""Scheduling passes: walk the pending jobs in order and start those that fit.

With preemption, pending and running jobs are ranked together, and running ones of lower rank are
stopped. An external policy lists the pending jobs (`list_pending`), sets their priorities
(`set_priorities`) and runs the pass with the rules GIVEN and AFFINITY and its
`PlacementPreferences`. Or it corrects a rule by them (`corrected_key`).
"""

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, njit_internal
from loadmaster.envs.gpu_scheduling import keys, queues
from loadmaster.envs.gpu_scheduling import state as cols
from loadmaster.envs.gpu_scheduling.baselines import (
    CONSOLIDATE,
    FASTEST,
    GIVEN,
    MIGRATE,
    SWAP,
    TETRIS,
)
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.gang_placement import STAY, TO_FREE, choose_gang, find_move
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.keys import LEAST_RESTARTS, has_progressed, key_now
from loadmaster.envs.gpu_scheduling.placement import (
    PlacementPreferences,
    choose_machines,
    copy_room,
    fits,
    take_room,
)
from loadmaster.envs.gpu_scheduling.queues import rekey
from loadmaster.envs.gpu_scheduling.simulator import start, stop
from loadmaster.envs.gpu_scheduling.state import NONE, SimState, Table


@compiled
def run_scheduling_pass(
    state: SimState,
    cluster: Cluster,
    jobs: Jobs,
    ordering: int,
    placement: int,
    preferences: PlacementPreferences,
) -> int:
    """Start pending jobs in order as far as they fit; return how many were started.

    With backfill a job that does not fit is skipped; without, it ends the pass. Jobs whose key is
    infinity do not take part.
    """
    backfill = state.setup[cols.BACKFILL] == 1
    epsilon, started = 0.0, 0
    state.clock[cols.EPOCHS] += 1
    if ordering == TETRIS:
        epsilon = keys.tetris_epsilon(state, jobs)
    while True:
        best, best_score = NONE, np.inf
        for place in range(state.clock[cols.WAITING_GROUPS]):
            group = state.groups[place, cols.WAITING]
            if backfill and not fits(state, group):
                continue
            job = state.heap[state.groups[group, cols.HEAP]]
            score = keys.score_of(state, jobs, ordering, epsilon, job)
            if score > best_score or state.key[job] == np.inf:
                continue
            tied = score == best_score and best != NONE
            if tied and queues.precedes(state.key, jobs.job_id, best, job):
                continue
            best, best_score = job, score
        if best == NONE or not fits(state, state.jobs[best, cols.GROUP]):
            return started
        rows = choose_gang(state, cluster, jobs, state.free, best, placement, preferences)
        queues.dequeue(state, jobs, best)
        start(state, cluster, jobs, best, rows)
        started += 1


@compiled
def list_pending(state: SimState, pending: NDArray[np.int64]) -> int:
    """Write the earliest pending jobs into `pending` until it is full; return how many."""
    count, end = 0, len(state.jobs) - 1
    job = state.jobs[end, cols.LATER]
    while job != end and count < len(pending):
        pending[count] = job
        count += 1
        job = state.jobs[job, cols.LATER]
    return count


@compiled
def set_priorities(
    state: SimState,
    jobs: Jobs,
    pending: NDArray[np.int64],
    priority: NDArray[np.float64],
    count: int,
) -> None:
    """Set the priorities of the first `count` of `pending`; other jobs do not take part."""
    clear_priorities(state, jobs)
    for place in range(count):
        rekey(state, jobs, pending[place], -priority[place])


@njit_internal
def clear_priorities(state: SimState, jobs: Jobs) -> None:
    """Exclude all pending jobs from the next pass."""
    end = len(state.jobs) - 1
    job = state.jobs[end, cols.LATER]
    while job != end:
        if state.key[job] != np.inf:
            rekey(state, jobs, job, np.inf)
        job = state.jobs[job, cols.LATER]


@compiled
def replan(
    state: SimState,
    cluster: Cluster,
    jobs: Jobs,
    ordering: int,
    placement: int,
    preferences: PlacementPreferences,
) -> None:
    """Place all jobs in order, each as if those behind it did not exist.

    A running job keeps its machines unless a job before it needs them, or the rule migrates it. A
    pending job first tries the resources that are free now, to avoid preemption. A preempted job
    returns to its last checkpoint and is placed again at its turn.
    """
    state.clock[cols.EPOCHS] += 1
    for place in range(state.clock[cols.RUNNING]):
        job = state.event_heap[place]
        state.key[job] = corrected_key(state, jobs, ordering, job, preferences)
    if ordering > GIVEN:
        _rekey_pending(state, jobs, ordering, preferences)
    left = rank_all(state, cluster, jobs)
    closed, moves = False, migrates(state, placement)
    while left > 0:
        job = state.order[0]
        queues.heap_remove(queues.replan_heap(state, jobs), 0, left, job)
        left -= 1
        move = STAY
        if moves:
            move = find_move(state, cluster, jobs, ordering, placement, job, preferences)
        if state.jobs[job, cols.ROWS_USED] > 0:
            if move == STAY and _reserve(state, jobs, job):
                continue
            _preempt(state, cluster, jobs, ordering, job, preferences)
        if closed:
            continue
        in_free = move in (STAY, TO_FREE) and fits(state, state.jobs[job, cols.GROUP])
        room = state.free if in_free else state.room
        rows = choose_gang(state, cluster, jobs, room, job, placement, preferences)
        if rows == 0:
            closed = state.setup[cols.BACKFILL] == 0
            continue
        queues.dequeue(state, jobs, job)
        start(state, cluster, jobs, job, rows)
        _reserve(state, jobs, job)


@njit_internal
def migrates(state: SimState, placement: int) -> bool:
    """Whether the rule moves running jobs to faster machines."""
    return placement >= FASTEST and (state.rule[MIGRATE] > 0 or state.rule[SWAP] > 0)


@njit_internal
def corrected_key(
    state: SimState, jobs: Jobs, ordering: int, job: int, preferences: PlacementPreferences
) -> float:
    """Current key of a job, divided by exp(priority) if the preferences correct it.

    Corrections may differ between running and pending jobs, so that jobs could stop each other
    before they progress: until then a job keeps the correction with which it started.
    """
    key = key_now(state, jobs, ordering, job)
    if len(preferences.priority) == 0:
        return key
    row, start_priority = preferences.row_of[job], preferences.start_priority
    priority = 0.0 if row == NONE else preferences.priority[row]
    if not has_progressed(state, job, LEAST_RESTARTS):
        priority = start_priority[job]
    elif state.jobs[job, cols.ROWS_USED] == 0:
        start_priority[job] = priority
    return float(key * np.exp(-priority))


@njit_internal
def _rekey_pending(
    state: SimState, jobs: Jobs, ordering: int, preferences: PlacementPreferences
) -> None:
    """Update the keys of pending jobs, which change with time."""
    end = len(state.jobs) - 1
    job = state.jobs[end, cols.LATER]
    while job != end:
        rekey(state, jobs, job, corrected_key(state, jobs, ordering, job, preferences))
        job = state.jobs[job, cols.LATER]


@compiled
def preempt_lower_ranked(state: SimState, cluster: Cluster, jobs: Jobs, free: Table) -> int:
    """Stop running jobs whose resources are needed by jobs before them; return how many.

    No job is started. Jobs are walked by their keys as in `replan`; pending ones reserve as few
    machines as possible, of free resources first, then of those that jobs behind them hold. A key
    of minus infinity protects a job, infinity reserves nothing. Without backfill, jobs behind one
    that does not fit reserve nothing either. `free` (M, 2) is scratch: neither used nor reserved.
    """
    left = rank_all(state, cluster, jobs)
    copy_room(state.free, free)
    unused = PlacementPreferences(state.factors, state.place, state.key[:0], state.key[:0])
    stopped, closed = 0, False
    while left > 0:
        job = state.order[0]
        queues.heap_remove(queues.replan_heap(state, jobs), 0, left, job)
        left -= 1
        used = state.jobs[job, cols.ROWS_USED]
        if used > 0:
            if not _reserve(state, jobs, job):
                take_room(state, jobs, free, job, used, -1)
                _preempt(state, cluster, jobs, GIVEN, job, unused)
                stopped += 1
            continue
        if closed or state.key[job] == np.inf:
            continue
        rows = choose_machines(state, cluster, jobs, free, job, CONSOLIDATE, unused)
        if rows == 0:
            rows = choose_machines(state, cluster, jobs, state.room, job, CONSOLIDATE, unused)
        closed = rows == 0 and state.setup[cols.BACKFILL] == 0
        take_room(state, jobs, free, job, rows, 1)
        take_room(state, jobs, state.room, job, rows, 1)
    return stopped


@njit_internal
def _preempt(
    state: SimState,
    cluster: Cluster,
    jobs: Jobs,
    ordering: int,
    job: int,
    preferences: PlacementPreferences,
) -> None:
    """Move a running job back to the queue.

    It loses min(RESTART_S, work since its last start), in seconds at speed 1. The new key takes
    effect in the next pass.
    """
    stop(state, cluster, jobs, job)
    state.progress[job, cols.LEFT_S] = min(
        state.progress[job, cols.LEFT_S] + state.times[cols.RESTART_S],
        state.progress[job, cols.PLACED_LEFT_S],
    )
    state.key[job] = corrected_key(state, jobs, ordering, job, preferences)
    state.clock[cols.PREEMPTIONS] += 1
    queues.enqueue(state, cluster, jobs, job)


@njit_internal
def rank_all(state: SimState, cluster: Cluster, jobs: Jobs) -> int:
    """Rank all jobs by key in `order` and reset `room` to an empty cluster; return their number."""
    for machine in range(len(state.room)):
        state.room[machine, cols.GPU] = cluster.gpu_capacity[machine]
        state.room[machine, cols.CPU] = cluster.cpu_capacity[machine]
    count = 0
    for place in range(state.clock[cols.RUNNING]):
        queues.heap_push(queues.replan_heap(state, jobs), 0, count, state.event_heap[place])
        count += 1
    end = len(state.jobs) - 1
    job = state.jobs[end, cols.LATER]
    while job != end:
        queues.heap_push(queues.replan_heap(state, jobs), 0, count, job)
        count += 1
        job = state.jobs[job, cols.LATER]
    return count


@njit_internal
def _reserve(state: SimState, jobs: Jobs, job: int) -> bool:
    """Subtract what a running job holds from `room`, if it is there; return whether it is."""
    first, used = state.jobs[job, cols.FIRST_ROW], state.jobs[job, cols.ROWS_USED]
    for row in range(first, first + used):
        machine, count = state.rows[row, cols.MACHINE], state.rows[row, cols.COUNT]
        if state.room[machine, cols.GPU] < count * jobs.gpu[job]:
            return False
        if state.room[machine, cols.CPU] < count * jobs.cpu[job]:
            return False
    take_room(state, jobs, state.room, job, used, 1)
    return True
