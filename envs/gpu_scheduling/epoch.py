"""A decision epoch: pending jobs are offered to the cluster one by one, the best first."""

from __future__ import annotations

import numpy as np

from loadmaster.envs.compiled import compiled
from loadmaster.envs.gpu_scheduling import orderings
from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.orderings import score_of, tetris_epsilon
from loadmaster.envs.gpu_scheduling.pending import dequeue
from loadmaster.envs.gpu_scheduling.placement import Wishes, choose_machines
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
            if state.groups[group, at.BLOCKED] == 1 and backfill:
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
        if best == at.NONE or state.groups[state.jobs[best, at.GROUP], at.BLOCKED] == 1:
            return started
        rows = choose_machines(state, cluster, jobs, state.free, best, placement, wishes)
        if rows == 0:
            state.groups[state.jobs[best, at.GROUP], at.BLOCKED] = 1
            if not backfill:
                return started
            continue
        dequeue(state, jobs, best)
        start(state, cluster, jobs, best, rows)
        started += 1
