"""Where a state is decided on: tables that are kept from one decision to the next."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled
from loadmaster.envs.dag_scheduling import observation as seen
from loadmaster.envs.dag_scheduling import state as at
from loadmaster.envs.dag_scheduling.actions import executors_granted, resolve_action
from loadmaster.envs.dag_scheduling.baselines.rules import decide as decide_by_rule
from loadmaster.envs.dag_scheduling.jobs import JobTemplates
from loadmaster.envs.dag_scheduling.observation import Observation, blank_observation, observe
from loadmaster.envs.dag_scheduling.placement import unplaced_executors
from loadmaster.envs.dag_scheduling.rounds import place
from loadmaster.envs.dag_scheduling.snapshot import state_from_snapshot
from loadmaster.envs.dag_scheduling.state import SimState
from loadmaster.models.decima.compiled import Scratch, Weights
from loadmaster.models.decima.compiled import decide as decide_by_network
from loadmaster.models.decima.explain import TopOptions, decide_with_scores
from loadmaster.serving.systems.decima.limits import ROUND_MAX
from loadmaster.serving.systems.decima.schema import Assignment, DecimaDecision, DecimaState

# A decision round on a cluster that somebody else runs: observe, decide, promise, and again.
#
# As in the simulator, but nobody moves: what the promises lead to is for that cluster to do.


NOT_FINITE = -1
GIVEN = 3  # columns of what a round gives: the stage's row in the state, executors, limit


@compiled
def look(state: SimState, bank: JobTemplates, view: Observation, rows: NDArray[np.int64]) -> int:
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
    bank: JobTemplates,
    view: Observation,
    rows: NDArray[np.int64],
    row: int,
    limit: int,
    given: NDArray[np.int64],
) -> bool:
    """Promise what the decision grants and write it into `given` (GIVEN,); False: it idles."""
    row, limit, _ = resolve_action(view, row, limit)
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
    bank: JobTemplates,
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
    bank: JobTemplates,
    view: Observation,
    rows: NDArray[np.int64],
    weights: Weights,
    room: Scratch,
    given: NDArray[np.int64],
    best_stages: TopOptions,
    best_limits: TopOptions,
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
    row, limit, stages, limits = decide_with_scores(view, weights, room, best_stages, best_limits)
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


class Workspace:
    """An observation's tables, grown when a larger state comes. Not for two threads at once."""

    def __init__(self) -> None:
        self.view: Observation = blank_observation(64, 8, 128)
        self.rows: NDArray[np.int64] = np.zeros(64, np.int64)

    def open(self, asked: DecimaState) -> Round:
        """Make room, and lay out the state's round."""
        bank = asked.moment.bank
        stages, jobs, edges = len(bank.tasks), len(asked.jobs), len(bank.child)
        view = self.view
        if stages > len(view.stages) or jobs > len(view.jobs) or edges > len(view.edges):
            self.view = blank_observation(
                _room(len(view.stages), stages),
                _room(len(view.jobs), jobs),
                _room(len(view.edges), edges),
            )
            self.rows = np.zeros(len(self.view.stages), np.int64)
        return Round(asked)


class Round:
    """One state being decided on."""

    def __init__(self, asked: DecimaState) -> None:
        self.asked = asked
        self.bank: JobTemplates = asked.moment.bank
        self.state: SimState = state_from_snapshot(asked.moment)
        self.free = int(asked.moment.left.sum())
        most = 1 if asked.ask == "one" else min(self.free, ROUND_MAX)
        self.given: NDArray[np.int64] = np.zeros((most, GIVEN), np.int64)

    def place_of(self, stage: int) -> tuple[str, str]:
        """The ids of job and stage behind a row of the state's stages."""
        slot, place = divmod(stage, int(self.state.setup[at.STRIDE]))
        job = self.asked.jobs[slot]
        return job.id, job.stages[place].id

    def decision(self, count: int) -> DecimaDecision:
        """What the first `count` rows of `given` say."""
        assignments = []
        for stage, executors, limit in self.given[:count].tolist():
            job_id, stage_id = self.place_of(stage)
            assignments.append(
                Assignment(job=job_id, stage=stage_id, executors=executors, limit=max(limit, 1))
            )
        left = int(self.state.left.sum())
        ended = count < len(self.given)  # nobody could take the rest, or nobody should
        return DecimaDecision(
            assignments=tuple(assignments),
            idle=left if ended else 0,
            undecided=0 if ended else left,
        )


def _room(have: int, need: int) -> int:
    return have if need <= have else max(need, 2 * have)
