"""A whole event in one compiled call: what is asked is seen, decided and done, moment by moment.

A call from Python costs more than a small moment's arithmetic: every table that it hands over has
to be unwrapped. What an explanation needs is therefore picked out on the way.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, njit_internal
from loadmaster.envs.gpu_scheduling import decision_state as on
from loadmaster.envs.gpu_scheduling.actions import apply_action
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.decision_state import DecisionState
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.observation import Observation, observe_if_waiting
from loadmaster.envs.gpu_scheduling.rewards import Terms
from loadmaster.envs.gpu_scheduling.state import SimState
from loadmaster.models.das.compiled import Weights, Workspace, decide, log_amplitude_of
from loadmaster.models.das.compiled_placement import KINDS, SPREAD, look_at_pairs
from loadmaster.models.das.compiled_process import believe, doubt
from loadmaster.models.das.heuristic_init import LEAST_LOG_STD, MOST_LOG_STD
from loadmaster.models.eigensolver import Numbers
from loadmaster.models.layers import Table, top_k

# How sure the placement agent is, machine by machine, in compiled code: for those who explain.


_LEAST, _MOST = np.float32(LEAST_LOG_STD), np.float32(MOST_LOG_STD)


@compiled
def doubts(
    view: Observation,
    row: int,
    machines: NDArray[np.int64],
    weights: Weights,
    room: Workspace,
    turned: Numbers,
    out: Table,
) -> None:
    """Standard deviations of a job's affinities to K machines, after `decide` about this view.

    The job of that row fits somewhere. `turned` (M, K) is scratch.
    """
    said = room.placement.said
    if room.last[0] != row:  # mostly one job fits, and has just been looked at
        look_at_pairs(view, row, weights.placement, room.placement)
        if weights.has_process:
            believe(said[KINDS:], view.rack, room.standard, False, weights.process, room.process)
        room.last[0] = row
    if weights.has_process:
        doubt(machines, room.process, turned, out)
        amplitude = np.exp(log_amplitude_of(said[SPREAD], len(view.machines)))
        for place in range(len(machines)):
            out[place] *= amplitude
    else:
        for place in range(len(machines)):
            out[place] = np.exp(min(max(said[SPREAD, machines[place]], _LEAST), _MOST))


EVENT = on.NOTHING  # instead of a moment: all that the event has
NO_REWARD = Terms(1.0, 1.0, 0.0, 1.0, 1.0)  # an action is told its worth, and here nobody asks

# Places in `Weighed.counts`.
IS_OPEN, ROWS, MACHINES = 0, 1, 2
# IS_OPEN         1: that moment left the agents a choice
# ROWS, MACHINES  how many are told


class Scores(NamedTuple):
    """The best K jobs of a moment, and the best K machines for the first of them; best first."""

    counts: NDArray[np.int64]  # (3,)
    rows: NDArray[np.int64]  # (K,) of the observation
    jobs: NDArray[np.int64]  # (K,) behind these rows
    priority: Table  # (K,)
    priority_log_std: Table  # (K,)
    machines: NDArray[np.int64]  # (K,)
    affinity: Table  # (K,)
    affinity_std: Table  # (K,)
    turned: Numbers  # (M * K,) scratch


def empty_scores(told: int, machines: int) -> Scores:
    """With room for so many jobs, and for so many of all machines."""
    places, numbers = np.zeros((3, told), np.int64), np.zeros((4, told), np.float32)
    return Scores(
        counts=np.zeros(3, np.int64),
        rows=places[0],
        jobs=places[1],
        priority=numbers[0],
        priority_log_std=numbers[1],
        machines=places[2],
        affinity=numbers[2],
        affinity_std=numbers[3],
        turned=np.zeros(machines * told),
    )


@compiled
def answer_event(
    state: SimState,
    cluster: Cluster,
    jobs: Jobs,
    desk: DecisionState,
    view: Observation,
    weights: Weights,
    room: Workspace,
    ask: int,
    weighed: Scores,
) -> bool:
    """Do what the agents want at a moment, or at all that the event has; whether it was legal.

    What they weighed at the first moment that left them a choice is told.
    """
    weighed.counts[:] = 0
    while observe_if_waiting(state, cluster, jobs, desk, view):
        if ask not in (EVENT, desk.counts[on.MOMENT]):
            return True
        decide(view, weights, room, False, np.int64(0))
        if score_options(view, desk, room.priority, room.affinity, weighed):
            _tell_doubts(view, weights, room, weighed)
        if not apply_action(state, cluster, jobs, desk, NO_REWARD, room.priority, room.affinity):
            return False
        if ask != EVENT:
            return True
    return True


@compiled
def score_options(
    view: Observation, desk: DecisionState, priority: Table, affinity: Table, weighed: Scores
) -> bool:
    """Whether the moment is the one to tell of: the first with a choice, else the first of all.

    Then its best jobs and machines are told, but for how sure the agents are.
    """
    counts = weighed.counts
    if counts[IS_OPEN] == 1:
        return False
    is_open = _is_open(view, desk)
    if counts[ROWS] > 0 and not is_open:
        return False
    counts[IS_OPEN] = is_open
    counts[ROWS], counts[MACHINES] = 0, 0
    for row in range(desk.counts[on.SHOWN]):
        if view.heeded[row]:
            counts[ROWS] = top_k(row, priority[row], weighed.rows, weighed.priority, counts[ROWS])
    for place in range(counts[ROWS]):
        weighed.jobs[place] = desk.shown[weighed.rows[place]]
    # In a strict queue one that does not fit may come first, and block those behind it.
    first = weighed.rows[0]
    for machine in range(len(view.rack)):
        if view.held[first, machine] > 0:
            own = affinity[first, machine]
            counts[MACHINES] = top_k(
                machine, own, weighed.machines, weighed.affinity, counts[MACHINES]
            )
    return True


@njit_internal
def _is_open(view: Observation, desk: DecisionState) -> bool:
    """Whether there is more than one job on one machine to choose from."""
    if desk.counts[on.MOMENT] == on.RECONSIDERING:
        return True
    pairs = 0
    for row in range(desk.counts[on.SHOWN]):
        for machine in range(len(view.rack)):
            pairs += view.held[row, machine] > 0
            if pairs > 1:
                return True
    return False


@njit_internal
def _tell_doubts(view: Observation, weights: Weights, room: Workspace, weighed: Scores) -> None:
    rows, machines = weighed.counts[ROWS], weighed.counts[MACHINES]
    for place in range(rows):
        weighed.priority_log_std[place] = room.ordering.log_std[weighed.rows[place]]
    if machines > 0:
        told, out = weighed.machines[:machines], weighed.affinity_std[:machines]
        scratch = weighed.turned[: len(view.rack) * machines].reshape((len(view.rack), machines))
        doubts(view, weighed.rows[0], told, weights, room, scratch, out)
