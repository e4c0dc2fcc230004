"""Scheduling pass: walk the pending jobs in order and start those that fit.

An external policy lists the pending jobs (`list_pending`), sets their priorities (`offer`) and runs
the pass with the rules GIVEN and AFFINITY and its `PlacementPreferences`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, njit_internal
from loadmaster.envs.gpu_scheduling import state as cols
from loadmaster.envs.gpu_scheduling.baselines import TETRIS
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.placement import PlacementPreferences, choose_machines, fits
from loadmaster.envs.gpu_scheduling.queues import dequeue, precedes, rekey, score_of, tetris_epsilon
from loadmaster.envs.gpu_scheduling.simulator import start
from loadmaster.envs.gpu_scheduling.state import NONE, SimState


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
        epsilon = tetris_epsilon(state, jobs)
    while True:
        best, best_score = NONE, np.inf
        for place in range(state.clock[cols.WAITING_GROUPS]):
            group = state.groups[place, cols.WAITING]
            if backfill and not fits(state, group):
                continue
            job = state.heap[state.groups[group, cols.HEAP]]
            score = score_of(state, jobs, ordering, epsilon, job)
            if score > best_score or state.key[job] == np.inf:
                continue
            tied = score == best_score and best != NONE
            if tied and precedes(state.key, jobs.job_id, best, job):
                continue
            best, best_score = job, score
        if best == NONE or not fits(state, state.jobs[best, cols.GROUP]):
            return started
        rows = choose_machines(state, cluster, jobs, state.free, best, placement, preferences)
        dequeue(state, jobs, best)
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
