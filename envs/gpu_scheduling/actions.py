"""A decision applied: priorities and affinities become jobs on machines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, njit_internal
from loadmaster.envs.gpu_scheduling import decision_state as on
from loadmaster.envs.gpu_scheduling import rule_ids as rules
from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.decision_state import DecisionState, list_started, strike_off
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.placement import Wishes
from loadmaster.envs.gpu_scheduling.preemption import preempt_lower_ranked
from loadmaster.envs.gpu_scheduling.queues import rekey
from loadmaster.envs.gpu_scheduling.rewards import Terms, published_reward
from loadmaster.envs.gpu_scheduling.scheduling_pass import run_scheduling_pass, withdraw
from loadmaster.envs.gpu_scheduling.state import SimState

ORDERING, PLACEMENT = "ordering", "placement"
AGENTS = (ORDERING, PLACEMENT)

_LAST = -1e300  # before infinity, which would keep a job from being offered at all


@compiled
def apply_action(
    state: SimState,
    cluster: Cluster,
    jobs: Jobs,
    desk: DecisionState,
    terms: Terms,
    priority: NDArray[np.float32],
    affinity: NDArray[np.float32],
) -> bool:
    """Do what was just asked for; whether the action was a legal one.

    Placing: jobs are offered by descending priority; a gang fills its machines by descending
    affinity. Reconsidering: running jobs that are in the way of others with a higher priority are
    stopped; a job that is not shown is left alone. A priority that is no finite number comes last,
    an affinity that is no number counts as minus infinity: neither stops the episode.
    """
    legal, shown = True, desk.counts[on.SHOWN]
    if desk.counts[on.PREEMPTS] == 1:
        _leave_alone(state, jobs)
    for row in range(shown):
        value = float(priority[row])
        if not np.isfinite(value):
            legal, value = False, _LAST
        # Without preemption whoever is shown stays so until it starts: no other was ever offered.
        if state.jobs[desk.shown[row], at.ROWS_USED] > 0:
            state.key[desk.shown[row]] = -value
        else:
            rekey(state, jobs, desk.shown[row], -value)
        for machine in range(affinity.shape[1]):
            drawn = float(affinity[row, machine])
            if np.isnan(drawn):
                legal, drawn = False, -np.inf
            desk.affinity[row, machine] = drawn
    if desk.counts[on.MOMENT] == on.RECONSIDERING:
        if preempt_lower_ranked(state, cluster, jobs, desk.free) > 0:
            strike_off(state, jobs, desk)
        return legal
    wishes = Wishes(desk.affinity, desk.row_of)
    run_scheduling_pass(state, cluster, jobs, rules.GIVEN, rules.AFFINITY, wishes)
    list_started(state, desk)
    desk.sums[on.PUBLISHED] += published_reward(state, cluster, jobs, desk, terms)
    return legal


@njit_internal
def _leave_alone(state: SimState, jobs: Jobs) -> None:
    """A job that is not shown keeps its machines, or waits."""
    withdraw(state, jobs)
    for place in range(state.clock[at.RUNNING]):
        state.key[state.event_heap[place]] = -np.inf


def sample_legal_action(
    observation: Mapping[str, NDArray[Any]], rng: np.random.Generator
) -> dict[str, NDArray[np.float32]]:
    """Any priorities and any affinities, one action for each agent."""
    shape = observation["held"].shape
    return {
        ORDERING: rng.standard_normal(shape[:1], np.float32),
        PLACEMENT: rng.standard_normal(shape, np.float32),
    }
