"""A decision round on a cluster that somebody else runs: observe, decide, promise, and again.

As in the simulator, but nobody moves: what the promises lead to is for that cluster to do.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled
from loadmaster.envs.dag_scheduling import observation as seen
from loadmaster.envs.dag_scheduling.actions import executors_granted, settled
from loadmaster.envs.dag_scheduling.baselines.decide import decide as decide_by_rule
from loadmaster.envs.dag_scheduling.jobs import JobBank
from loadmaster.envs.dag_scheduling.observation import Observation, observe
from loadmaster.envs.dag_scheduling.placement import unplaced_executors
from loadmaster.envs.dag_scheduling.rounds import place
from loadmaster.envs.dag_scheduling.state import SimState
from loadmaster.models.decima.explain import Best, weigh
from loadmaster.models.decima.kernel import Scratch, Weights
from loadmaster.models.decima.kernel import decide as decide_by_network

NOT_FINITE = -1
GIVEN = 3  # columns of what a round gives: the stage's row in the state, executors, limit


@compiled
def look(state: SimState, bank: JobBank, view: Observation, rows: NDArray[np.int64]) -> int:
    """Observe the round; how many stages may be chosen."""
    if unplaced_executors(state) == 0:
        return 0
    observe(state, bank, view, rows)
    options = 0
    for row in range(int(view.cluster[seen.STAGES])):
        options += view.schedulable[row]
    return options


@compiled
def take(
    state: SimState,
    bank: JobBank,
    view: Observation,
    rows: NDArray[np.int64],
    row: int,
    limit: int,
    given: NDArray[np.int64],
) -> bool:
    """Promise what the decision grants and write it into `given` (GIVEN,); False: it idles."""
    row, limit, _ = settled(view, row, limit)
    if row == len(view.schedulable) - 1:
        return False
    given[0] = rows[row]
    given[1] = executors_granted(view, row, limit)
    given[2] = limit
    place(state, bank, given[0], given[1])
    return True


@compiled
def rule_round(
    state: SimState,
    bank: JobBank,
    view: Observation,
    rows: NDArray[np.int64],
    rule: int,
    alpha: float,
    threshold: float,
    release: bool,
    given: NDArray[np.int64],
) -> int:
    """Let a heuristic fill `given` (most, GIVEN); how many decisions place executors."""
    count = 0
    while count < len(given) and look(state, bank, view, rows) > 0:
        row, limit = decide_by_rule(rule, alpha, threshold, release, view, 0, 0)
        if not take(state, bank, view, rows, row, limit, given[count]):
            break
        count += 1
    return count


@compiled
def network_round(
    state: SimState,
    bank: JobBank,
    view: Observation,
    rows: NDArray[np.int64],
    weights: Weights,
    room: Scratch,
    given: NDArray[np.int64],
    best_stages: Best,
    best_limits: Best,
) -> tuple[int, int, int, int]:
    """The same with the network's best decisions, and what was weighed at the first of them.

    How many decisions place executors, or NOT_FINITE where the network does not know; how many
    stages there were to choose from; how many of them `best_stages` tells, by their rows in the
    state, and how many `best_limits`. It is all one call, since to hand these tables over takes
    about as long as to decide.
    """
    options = look(state, bank, view, rows)
    if options == 0:
        return 0, 0, 0, 0
    row, limit, stages, limits = weigh(view, weights, room, best_stages, best_limits)
    for best in range(stages):  # rows of the view are others at the next decision
        best_stages.places[best] = rows[best_stages.places[best]]
    # One score that is no number leaves none of them a probability.
    known = np.isfinite(best_stages.chances[0])
    if limits > 0:
        known &= np.isfinite(best_limits.chances[0])
    if not known:
        return NOT_FINITE, options, stages, limits
    take(state, bank, view, rows, row, limit, given[0])
    count = 1
    while count < len(given) and look(state, bank, view, rows) > 0:
        row, limit, log_probability = decide_by_network(view, weights, room, -1.0, -1.0)
        if not np.isfinite(log_probability):
            return NOT_FINITE, options, stages, limits
        take(state, bank, view, rows, row, limit, given[count])
        count += 1
    return count, options, stages, limits
