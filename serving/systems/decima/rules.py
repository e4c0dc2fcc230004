"""Heuristics at work on states: what stands in where the network cannot decide."""

from __future__ import annotations

from importlib.metadata import version

from loadmaster.envs.dag_scheduling.baselines import BASELINES, Baseline
from loadmaster.envs.dag_scheduling.calibration import tuned_for
from loadmaster.envs.errors import unknown_name
from loadmaster.models.policy import Explanation, Proposal
from loadmaster.serving.systems.decima import explanation as wording
from loadmaster.serving.systems.decima.schema import DecimaState
from loadmaster.serving.systems.decima.workspace import Workspace, rule_round

RULES = ("weighted-fair", "fair", "sjf-cp", "fifo")
LOAD = 0.8  # work offered per executor that shares are tuned for: busy, but keeping up


class DecimaRule:
    """A heuristic's decisions, until the round is over."""

    def __init__(self, baseline: Baseline) -> None:
        self.name, self.version = baseline.name, version("loadmaster")
        self._baseline = baseline
        self._desk = Workspace()

    def decide(self, state: DecimaState) -> Proposal:
        table, rule = self._desk.open(state), self._baseline
        count = rule_round(
            table.state, table.bank, self._desk.view, self._desk.rows, rule.rule, rule.alpha,
            rule.threshold, rule.release, table.given,
        )  # fmt: skip
        decision = table.decision(count)
        summary = (
            f"{wording.situation(state)}; by {rule.name} ({rule.summary}): "
            f"{wording.outcome(decision)}"
        )
        return Proposal(decision, Explanation(summary, {}))


def load_rule(name: str) -> DecimaRule:
    """One of RULES at work."""
    if name not in RULES:
        raise unknown_name("rule", name, RULES)
    return DecimaRule(tuned_rule(name))


def tuned_rule(name: str) -> Baseline:
    """The heuristic with the parameters that suit a stream of jobs."""
    baseline = BASELINES[name]
    return tuned_for(name, arrivals="poisson", load=LOAD) if baseline.calibrated else baseline
