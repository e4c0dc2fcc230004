"""Decima's record for the decision service."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadmaster.serving.system import Endpoint, Quantity
from loadmaster.serving.systems.decima import features as figures
from loadmaster.serving.systems.decima import quantities
from loadmaster.serving.systems.decima.examples import examples
from loadmaster.serving.systems.decima.policy import DecimaPolicy, load_policy
from loadmaster.serving.systems.decima.rules import RULES, DecimaRule, load_rule
from loadmaster.serving.systems.decima.schema import DecimaDecision, DecimaOutcome, DecimaState


class DecimaEndpoint(Endpoint[DecimaState, DecimaDecision, DecimaOutcome]):
    """Which stage gets the free executors, and how many."""

    system = "decima"
    summary = "which stage of which job gets the free executors of a cluster, and how many"
    pretrained = "decima-stream"
    rules = RULES
    state = DecimaState
    decision = DecimaDecision
    outcome = DecimaOutcome

    def examples(self) -> Mapping[str, DecimaState]:
        return examples()

    def policy(self, folder: Path) -> DecimaPolicy:
        policy = load_policy(folder)
        policy.decide(examples()["tiny"])  # compiles, so that no request has to wait for it
        return policy

    def rule(self, name: str) -> DecimaRule:
        rule = load_rule(name)
        rule.decide(examples()["tiny"])
        return rule

    def quantities(self, state: DecimaState, decision: DecimaDecision) -> tuple[Quantity, ...]:
        return quantities.quantities(state, decision)

    def constrain(
        self, state: DecimaState, decision: DecimaDecision, allowed: Mapping[str, float]
    ) -> DecimaDecision:
        return quantities.constrain(state, decision, allowed)

    def validate_decision(self, state: DecimaState, decision: DecimaDecision) -> str | None:
        return quantities.validate_decision(state, decision)

    def features(self, state: DecimaState) -> Mapping[str, float]:
        return figures.features(state)

    def reward(self, outcome: DecimaOutcome) -> float:
        return figures.reward(outcome)

    def retraining(self, features: Mapping[str, float]) -> Mapping[str, Any]:
        return figures.retraining(features)


ENDPOINT = DecimaEndpoint()
