"""A decision epoch: pending jobs are offered to the cluster one by one, the best first.

A policy from outside asks whether there is a choice (`anything_fits`) and for whom
(`list_pending`), says whom it wants first (`offer`) and where (`Wishes`), and holds the epoch with
the rules GIVEN and AFFINITY.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled
from loadmaster.envs.gpu_scheduling import orderings
from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.orderings import score_of, tetris_epsilon
from loadmaster.envs.gpu_scheduling.pending import dequeue, rekey, worth_a_try
from loadmaster.envs.gpu_scheduling.placement import FIRST_FIT, Wishes, choose_machines
from loadmaster.envs.gpu_scheduling.simulator import start
from loadmaster.envs.gpu_scheduling.state import SimState


@compiled
def hold_epoch(
    state: SimState, cluster: Cluster, jobs: Jobs, ordering: int, placement: int, wishes: Wishes
) -> int:
    """Walk the queue once and start what fits; how many jobs that were.

    With backfill a job that does not fit is skipped, and all others of its group with it; without,
    it ends the epoch. A key of infinity means that the policy does not offer the job.
    """
    backfill = state.setup[at.BACKFILL] == 1
    epsilon, started = 0.0, 0
    state.clock[at.EPOCHS] += 1
    if ordering == orderings.TETRIS:
        epsilon = tetris_epsilon(state, jobs)
    while True:
        best, best_score = at.NONE, np.inf
        for place in range(state.clock[at.WAITING_GROUPS]):
            group = state.groups[place, at.WAITING]
            if backfill and not worth_a_try(state, cluster, jobs, group):
                continue
            job = state.heap[state.groups[group, at.HEAP]]
            score = score_of(state, jobs, ordering, epsilon, job)
            if score > best_score or state.key[job] == np.inf:
                continue
            if score == best_score and best != at.NONE:
                key, best_key = state.key[job], state.key[best]
                if key > best_key or (key == best_key and jobs.job_id[job] > jobs.job_id[best]):
                    continue
            best, best_score = job, score
        if best == at.NONE:
            return started
        group, rows = state.jobs[best, at.GROUP], 0
        if worth_a_try(state, cluster, jobs, group):
            rows = choose_machines(state, cluster, jobs, state.free, best, placement, wishes)
        if rows == 0:
            state.groups[group, at.FITS] = at.BLOCKED
            if not backfill:
                return started
            continue
        dequeue(state, jobs, best)
        start(state, cluster, jobs, best, rows)
        started += 1


@compiled
def anything_fits(state: SimState, cluster: Cluster, jobs: Jobs, wishes: Wishes) -> bool:
    """Whether some pending job could start now; groups that could not are marked."""
    for place in range(state.clock[at.WAITING_GROUPS]):
        group = state.groups[place, at.WAITING]
        if not worth_a_try(state, cluster, jobs, group):
            continue
        job = state.heap[state.groups[group, at.HEAP]]
        if choose_machines(state, cluster, jobs, state.free, job, FIRST_FIT, wishes) > 0:
            return True
        state.groups[group, at.FITS] = at.BLOCKED
    return False


@compiled
def list_pending(state: SimState, pending: NDArray[np.int64]) -> int:
    """Write the pending jobs that came first into `pending` until it is full; how many."""
    count, end = 0, len(state.jobs) - 1
    job = state.jobs[end, at.LATER]
    while job != end and count < len(pending):
        pending[count] = job
        count += 1
        job = state.jobs[job, at.LATER]
    return count


@compiled
def offer(
    state: SimState,
    jobs: Jobs,
    pending: NDArray[np.int64],
    priority: NDArray[np.float64],
    count: int,
) -> None:
    """Give the first `count` of `pending` their priorities; other jobs are not offered."""
    end = len(state.jobs) - 1
    job = state.jobs[end, at.LATER]
    while job != end:
        if state.key[job] != np.inf:
            rekey(state, jobs, job, np.inf)
        job = state.jobs[job, at.LATER]
    for place in range(count):
        rekey(state, jobs, pending[place], -priority[place])
