"""Heuristics that decide on states where the network cannot."""

from importlib.metadata import version

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled
from loadmaster.envs.dag_scheduling.baselines import Baseline, Rule
from loadmaster.envs.dag_scheduling.baselines.rules import decide
from loadmaster.envs.dag_scheduling.calibration import Conditions, tuned_baseline_for
from loadmaster.envs.dag_scheduling.jobs import JobTemplates
from loadmaster.envs.dag_scheduling.observation import Observation
from loadmaster.envs.dag_scheduling.state import SimState
from loadmaster.envs.errors import unknown_name
from loadmaster.models.decima.policy import commit, observe_round
from loadmaster.models.policy import Explanation, Proposal
from loadmaster.serving.systems.decima.rounds import (
    ObservationBuffers,
    Round,
    decision_summary,
    state_summary,
)
from loadmaster.serving.systems.decima.schema import DecimaState

RULES = ("srpt-caps", "weighted-fair", "fair", "sjf-cp", "fifo")  # the first is the default
LOAD = 0.8  # work offered per executor that shares are tuned for: busy but stable


@compiled
def rule_round(
    state: SimState,
    bank: JobTemplates,
    view: Observation,
    rows: NDArray[np.int64],
    rule: Rule,
    granted: NDArray[np.int64],
) -> int:
    """Fill `granted` (most, GRANT_COLUMNS) by a heuristic; the number of assignments."""
    count = 0
    while count < len(granted) and observe_round(state, bank, view, rows) > 0:
        row, limit = decide(rule, view, 0, 0)
        if not commit(state, bank, view, rows, row, limit, granted[count]):
            break
        count += 1
    return count


class DecimaRule:
    """A heuristic that decides on states of the service."""

    def __init__(self, name: str) -> None:
        if name not in RULES:
            raise unknown_name("rule", name, RULES)
        self.name, self.version = name, version("loadmaster")
        self._baseline = tuned_rule(name)
        self._buffers = ObservationBuffers()

    def decide(self, state: DecimaState) -> Proposal:
        decided, (view, rows), rule = Round(state), self._buffers.fit(state), self._baseline
        count = rule_round(decided.state, decided.bank, view, rows, rule.encoded, decided.granted)
        decision = decided.decision(count)
        summary = (
            f"{state_summary(state)}; by {rule.name} ({rule.summary}): {decision_summary(decision)}"
        )
        return Proposal(decision, Explanation(summary))


def tuned_rule(name: str) -> Baseline:
    """The heuristic with parameters tuned for a stream of jobs, though not for those served."""
    return tuned_baseline_for(name, Conditions("", arrivals="poisson", load=LOAD, jobs=0))
