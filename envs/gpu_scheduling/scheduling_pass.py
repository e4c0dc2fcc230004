"""A decision epoch: pending jobs are offered to the cluster one by one, the best first.

A policy from outside asks whether there is a choice (`anything_fits`) and for whom
(`list_pending`), says whom it wants first (`offer`) and where (`Wishes`), and holds the epoch with
the rules GIVEN and AFFINITY.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, njit_internal
from loadmaster.envs.gpu_scheduling import queues as heaps
from loadmaster.envs.gpu_scheduling import rule_ids as rules
from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.placement import Wishes, choose_machines
from loadmaster.envs.gpu_scheduling.queues import dequeue, rekey, score_of, tetris_epsilon
from loadmaster.envs.gpu_scheduling.shapes import fits
from loadmaster.envs.gpu_scheduling.simulator import start
from loadmaster.envs.gpu_scheduling.state import SimState


@compiled
def run_scheduling_pass(
    state: SimState, cluster: Cluster, jobs: Jobs, ordering: int, placement: int, wishes: Wishes
) -> int:
    """Walk the queue once and start what fits; how many jobs that were.

    With backfill a job that does not fit is skipped; without, it ends the epoch. A key of infinity
    means that the policy does not offer the job.
    """
    backfill = state.setup[at.BACKFILL] == 1
    epsilon, started = 0.0, 0
    state.clock[at.EPOCHS] += 1
    if ordering == rules.TETRIS:
        epsilon = tetris_epsilon(state, jobs)
    while True:
        best, best_score = at.NONE, np.inf
        for place in range(state.clock[at.WAITING_GROUPS]):
            group = state.groups[place, at.WAITING]
            if backfill and not fits(state, group):
                continue
            job = state.heap[state.groups[group, at.HEAP]]
            score = score_of(state, jobs, ordering, epsilon, job)
            if score > best_score or state.key[job] == np.inf:
                continue
            if (
                score == best_score
                and best != at.NONE
                and heaps.before(state.key, jobs.job_id, best, job)
            ):
                continue
            best, best_score = job, score
        if best == at.NONE or not fits(state, state.jobs[best, at.GROUP]):
            return started
        rows = choose_machines(state, cluster, jobs, state.free, best, placement, wishes)
        dequeue(state, jobs, best)
        start(state, cluster, jobs, best, rows)
        started += 1


@compiled
def anything_fits(state: SimState) -> bool:
    """Whether some pending job could start now."""
    for place in range(state.clock[at.WAITING_GROUPS]):
        if fits(state, state.groups[place, at.WAITING]):
            return True
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
    withdraw(state, jobs)
    for place in range(count):
        rekey(state, jobs, pending[place], -priority[place])


@njit_internal
def withdraw(state: SimState, jobs: Jobs) -> None:
    """No pending job is offered."""
    end = len(state.jobs) - 1
    job = state.jobs[end, at.LATER]
    while job != end:
        if state.key[job] != np.inf:
            rekey(state, jobs, job, np.inf)
        job = state.jobs[job, at.LATER]
