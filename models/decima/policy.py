"""Decima's policy: the network's best decisions, one at a time or a round in one call."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled
from loadmaster.envs.dag_scheduling import observation as obs_cols
from loadmaster.envs.dag_scheduling.actions import executors_granted, resolve_action, useful_limits
from loadmaster.envs.dag_scheduling.jobs import JobTemplates
from loadmaster.envs.dag_scheduling.observation import Observation, observe
from loadmaster.envs.dag_scheduling.placement import unplaced_executors
from loadmaster.envs.dag_scheduling.rounds import place
from loadmaster.envs.dag_scheduling.state import SimState
from loadmaster.models.bundle import Bundle
from loadmaster.models.decima import compiled as kernels
from loadmaster.models.decima import explain as explanations
from loadmaster.models.decima.compiled import Scratch
from loadmaster.models.decima.explain import PROBABILITY, BestOptions, Decision, StageNames
from loadmaster.models.decima.network import DecimaNetwork
from loadmaster.models.decima.weights import Weights, weights_of
from loadmaster.models.policy import Explanation

NOT_FINITE = -1
GRANT_COLUMNS = 3  # of a round's decisions: stage's row in the state, executors, limit


@compiled
def observe_round(
    state: SimState, bank: JobTemplates, view: Observation, rows: NDArray[np.int64]
) -> int:
    """Observe the round; how many stages may be chosen."""
    if unplaced_executors(state) == 0:
        return 0
    observe(state, bank, view, rows)
    schedulable = 0
    for row in range(int(view.cluster[obs_cols.STAGES])):
        schedulable += view.schedulable[row]
    return schedulable


@compiled
def commit(
    state: SimState,
    bank: JobTemplates,
    view: Observation,
    rows: NDArray[np.int64],
    row: int,
    limit: int,
    granted: NDArray[np.int64],
) -> bool:
    """Commit the executors that a decision grants and write `granted` (GRANT_COLUMNS,).

    Nothing is simulated: the caller carries the commitments out. False: the decision idles.
    """
    row, limit, _ = resolve_action(view, row, limit)
    if row == len(view.schedulable) - 1:
        return False
    granted[0] = rows[row]
    granted[1] = executors_granted(view, row, limit)
    granted[2] = limit
    place(state, bank, granted[0], granted[1])
    return True


@compiled
def decide_round(
    state: SimState,
    bank: JobTemplates,
    view: Observation,
    rows: NDArray[np.int64],
    weights: Weights,
    scratch: Scratch,
    granted: NDArray[np.int64],
    best: BestOptions,
) -> tuple[int, int, int, int, int]:
    """Fill `granted` (most, GRANT_COLUMNS) with the network's best decisions.

    Returns the number of decisions (or NOT_FINITE), and of the first one: the stages that could be
    chosen, the filled rows of `best.stages` (by their rows in the state) and of `best.limits`, and
    the limits that differ. One call, since passing these tables takes as long as a decision.
    """
    schedulable = observe_round(state, bank, view, rows)
    if schedulable == 0:
        return 0, 0, 0, 0, 0
    row, limit, stages, limits = explanations.decide_with_scores(view, weights, scratch, best)
    if stages == 0:
        return 0, 0, 0, 0, 0
    lowest, highest = useful_limits(view, row)
    for option in range(stages):  # rows of the view change with the next observation
        best.stages.option[option] = rows[best.stages.option[option]]
    finite = np.isfinite(best.stages.values[0, PROBABILITY])
    if limits > 0:
        finite &= np.isfinite(best.limits.values[0, PROBABILITY])
    count = NOT_FINITE
    if finite:
        commit(state, bank, view, rows, row, limit, granted[0])
        count = 1
    while 0 < count < len(granted) and observe_round(state, bank, view, rows) > 0:
        row, limit, log_probability = kernels.decide(view, weights, scratch, -1.0, -1.0)
        if not np.isfinite(log_probability):
            count = NOT_FINITE
        elif commit(state, bank, view, rows, row, limit, granted[count]):
            count += 1
        else:
            break
    return count, schedulable, stages, limits, highest - lowest + 1


class DecimaPolicy:
    """Takes the best-scored stage and limit. Not for two threads at once."""

    def __init__(self, network: DecimaNetwork, name: str = "decima", version: str = "") -> None:
        self.network, self.name, self.version = network, name, version
        self.weights = weights_of(network)
        self._executors = 64
        self._scratch = kernels.scratch_for(network, 64, 8, self._executors)

    @cached_property
    def _best(self) -> BestOptions:
        """Buffers for the best options, which only explained decisions need."""
        return explanations.empty_options()

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> DecimaPolicy:
        network = bundle.build("decima")
        assert isinstance(network, DecimaNetwork)
        return cls(network, bundle.name, bundle.version)

    def decide(
        self, view: Observation, stage_name: StageNames = "row {}".format
    ) -> tuple[Decision, Explanation]:
        """Decide on an observation with at least one schedulable stage."""
        total = int(view.cluster[obs_cols.TOTAL_EXECUTORS])
        row, limit, stages, limits = explanations.decide_with_scores(
            view, self.weights, self._scratch_for(view, total), self._best
        )
        schedulable = int(np.count_nonzero(view.schedulable[:-1]))  # the last place is idling
        executors, useful = 0, 0
        if stages > 0:
            lowest, highest = useful_limits(view, row)
            executors, useful = executors_granted(view, row, limit), highest - lowest + 1
        decision = Decision(
            row, limit, executors, schedulable, useful,
            *explanations.read_options(self._best, stages, limits),
        )  # fmt: skip
        free, jobs = int(view.cluster[obs_cols.FREE_EXECUTORS]), int(view.cluster[obs_cols.JOBS])
        summary = (
            f"{explanations.situation(free, total, jobs, schedulable)}: "
            f"{explanations.grant(stage_name(row) if executors else '', executors, limit)}"
        )
        return decision, explanations.explain(decision, stage_name, summary)

    def decide_round(
        self,
        state: SimState,
        bank: JobTemplates,
        view: Observation,
        rows: NDArray[np.int64],
        granted: NDArray[np.int64],
    ) -> tuple[int, Decision | None]:
        """Decide until all executors of the round are placed or `granted` is full.

        `view` and `rows` are buffers for observations of the state, which the decisions change.
        Returns how many rows of `granted` are filled, and the first decision by rows of the state;
        None: no stage could be chosen.
        """
        scratch = self._scratch_for(view, len(state.executors))
        count, schedulable, stages, limits, useful = decide_round(
            state, bank, view, rows, self.weights, scratch, granted, self._best
        )
        if schedulable == 0:
            return 0, None
        if count == NOT_FINITE:
            raise FloatingPointError(f"{self.name}: scores are not finite")
        row, executors, limit = granted[0].tolist()
        options = explanations.read_options(self._best, stages, limits)
        return count, Decision(row, limit, executors, schedulable, useful, *options)

    def _scratch_for(self, view: Observation, executors: int) -> Scratch:
        """Buffers as large as the observation's tables."""
        scratch, stages, jobs = self._scratch, len(view.stages), len(view.jobs)
        if len(scratch.row) < stages or scratch.job.shape[1] < jobs or self._executors < executors:
            self._executors = max(self._executors, executors)
            self._scratch = kernels.scratch_for(self.network, stages, jobs, self._executors)
        return self._scratch
