"""Compiled loops of observing, deciding and acting: one event of a service, or a whole episode.

A call from Python costs more than the arithmetic of a small decision, since every array argument is
unboxed. So an event is one call, which also extracts the scores that an explanation shows.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, njit_internal
from loadmaster.envs.gpu_scheduling.actions import apply_action
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.decision_state import (
    GUIDE,
    NOT_STARTED,
    PHASE,
    RECONSIDERING,
    SHOWN,
    DecisionState,
    advance_to_decision,
)
from loadmaster.envs.gpu_scheduling.episode_runner import EpisodeRunner
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.observation import Observation, observe, observe_if_decision
from loadmaster.envs.gpu_scheduling.rewards import Terms
from loadmaster.envs.gpu_scheduling.state import DECIDE, GROW_TRACE, SimState
from loadmaster.models.das.compiled import MEANS, Weights, Workspace, affinity_std, decide
from loadmaster.models.eigensolver import Array64
from loadmaster.models.layers import Array32, top_k

EVENT = NOT_STARTED  # instead of a phase: all phases of the event
NO_REWARD = Terms(1.0, 1.0, 0.0, 1.0, 1.0)  # services do not use the reward of an action

# Places in `Scores.counts`: whether the phase had more than one option; entries in use.
HAS_CHOICE, ROWS, MACHINES = 0, 1, 2


class Scores(NamedTuple):
    """The best K jobs of a phase, and the best K machines for the first of them; best first."""

    counts: NDArray[np.int64]  # (3,)
    rows: NDArray[np.int64]  # (K,) of the observation
    jobs: NDArray[np.int64]  # (K,) of these rows
    priority: Array32  # (K,)
    priority_log_std: Array32  # (K,)
    machines: NDArray[np.int64]  # (K,)
    affinity: Array32  # (K,)
    affinity_std: Array32  # (K,)
    scratch: Array64  # (M * K,)


def empty_scores(options: int, machines: int) -> Scores:
    """For K = `options`; `machines` is 0 where no scratch memory is needed."""
    places, numbers = np.zeros((3, options), np.int64), np.zeros((4, options), np.float32)
    return Scores(
        counts=np.zeros(3, np.int64),
        rows=places[0],
        jobs=places[1],
        priority=numbers[0],
        priority_log_std=numbers[1],
        machines=places[2],
        affinity=numbers[2],
        affinity_std=numbers[3],
        scratch=np.zeros(machines * options),
    )


@compiled
def run_event(
    state: SimState,
    cluster: Cluster,
    jobs: Jobs,
    decision_state: DecisionState,
    view: Observation,
    weights: Weights,
    work: Workspace,
    phase: int,
    scores: Scores,
) -> bool:
    """Decide and act in one phase, or in all of the EVENT; False if an action was not finite.

    `scores` gets those of the first phase with a choice.
    """
    scores.counts[:] = 0
    while observe_if_decision(state, cluster, jobs, decision_state, view):
        if phase not in (EVENT, decision_state.counts[PHASE]):
            return True
        decide(view, weights, work, MEANS, np.int64(0))
        if score_options(view, decision_state, work.priority, work.affinity, scores):
            _score_uncertainty(view, weights, work, scores)
        if not apply_action(
            state, cluster, jobs, decision_state, NO_REWARD, work.priority, work.affinity
        ):
            return False
        if phase != EVENT:
            return True
    return True


@compiled
def score_options(
    view: Observation,
    decision_state: DecisionState,
    priority: Array32,
    affinity: Array32,
    scores: Scores,
) -> bool:
    """Write the best jobs and machines unless an earlier phase is to be kept; whether written.

    The first phase with a choice is kept, else the first of all.
    """
    counts = scores.counts
    if counts[HAS_CHOICE] == 1:
        return False
    has_choice = _has_choice(view, decision_state)
    if counts[ROWS] > 0 and not has_choice:
        return False
    counts[HAS_CHOICE] = has_choice
    counts[ROWS], counts[MACHINES] = 0, 0
    is_guided = decision_state.counts[GUIDE] > 0
    for row in range(decision_state.counts[SHOWN]):
        if view.heeded[row]:
            value = priority[row]
            if is_guided:
                value += np.float32(decision_state.rule_priority[row])
            counts[ROWS] = top_k(row, value, scores.rows, scores.priority, counts[ROWS])
    for place in range(counts[ROWS]):
        scores.jobs[place] = decision_state.shown[scores.rows[place]]
    if is_guided or counts[ROWS] == 0:
        return True  # affinities alone do not rank machines: they correct the rule's values
    # In a strict queue the first job may fit nowhere and block those behind it.
    first = scores.rows[0]
    for machine in range(len(view.rack)):
        if view.held[first, machine] > 0:
            counts[MACHINES] = top_k(
                machine,
                affinity[first, machine],
                scores.machines,
                scores.affinity,
                counts[MACHINES],
            )
    return True


@njit_internal
def _has_choice(view: Observation, decision_state: DecisionState) -> bool:
    """Whether there is more than one pair of a job and a machine."""
    if decision_state.counts[PHASE] == RECONSIDERING:
        return True
    pairs = 0
    for row in range(decision_state.counts[SHOWN]):
        for machine in range(len(view.rack)):
            pairs += view.held[row, machine] > 0
            if pairs > 1:
                return True
    return False


@njit_internal
def _score_uncertainty(
    view: Observation, weights: Weights, work: Workspace, scores: Scores
) -> None:
    rows, machines = scores.counts[ROWS], scores.counts[MACHINES]
    for place in range(rows):
        scores.priority_log_std[place] = work.ordering.log_std[scores.rows[place]]
    if machines > 0:
        best, out = scores.machines[:machines], scores.affinity_std[:machines]
        scratch = scores.scratch[: len(view.rack) * machines].reshape((len(view.rack), machines))
        affinity_std(view, scores.rows[0], best, weights, work, scratch, out)


def run_episode(runner: EpisodeRunner, weights: Weights, work: Workspace) -> int:
    """Decide by the means until the episode ends; returns the number of decisions."""
    (cluster, jobs, _), decisions = runner.episode, np.zeros(1, np.int64)
    while run_greedy(
        runner.state, cluster, jobs, runner.decision_state, runner.terms, runner.view,
        weights, work, decisions,
    ) == GROW_TRACE:  # fmt: skip
        runner.grow_trace()
    return int(decisions[0])


@compiled
def run_greedy(
    state: SimState,
    cluster: Cluster,
    jobs: Jobs,
    decision_state: DecisionState,
    terms: Terms,
    view: Observation,
    weights: Weights,
    work: Workspace,
    decisions: NDArray[np.int64],
) -> int:
    """Decide by the means until the episode ends or its trace is full; returns the status."""
    while True:
        status = advance_to_decision(state, cluster, jobs, decision_state)
        if status != DECIDE:
            return status
        observe(state, cluster, jobs, decision_state, view)
        decide(view, weights, work, MEANS, np.int64(0))
        apply_action(state, cluster, jobs, decision_state, terms, work.priority, work.affinity)
        decisions[0] += 1
