"""DAS's record for the decision service."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadmaster.serving.system import Endpoint, Policy, Quantity
from loadmaster.serving.systems.das.decisions import constrained, fault_in, quantities_of
from loadmaster.serving.systems.das.features import features_of, settings_like
from loadmaster.serving.systems.das.recording import Examples
from loadmaster.serving.systems.das.rules import RULES, DasRule
from loadmaster.serving.systems.das.schema import DasDecision, DasOutcome, DasState


class DasEndpoint(Endpoint[DasState, DasDecision, DasOutcome]):
    """Which waiting jobs start on which machines, and which running ones make room."""

    system = "das"
    summary = "GPU clusters: which jobs start on which machines, which running ones make room"
    pretrained = "das-small"
    rules = RULES
    state = DasState
    decision = DasDecision
    outcome = DasOutcome

    def examples(self) -> Mapping[str, DasState]:
        return Examples()

    def policy(self, folder: Path) -> Policy:
        from loadmaster.serving.systems.das.policy import DasPolicy

        return DasPolicy(folder)

    def rule(self, name: str) -> Policy:
        return DasRule(name)

    def quantities(self, state: DasState, decision: DasDecision) -> tuple[Quantity, ...]:
        return quantities_of(decision)

    def constrain(
        self, state: DasState, decision: DasDecision, allowed: Mapping[str, float]
    ) -> DasDecision:
        return constrained(state, decision, allowed)

    def validate_decision(self, state: DasState, decision: DasDecision) -> str | None:
        return fault_in(state, decision)

    def features(self, state: DasState) -> Mapping[str, float]:
        return features_of(state)

    def reward(self, outcome: DasOutcome) -> float:
        """Minus log(1 + minutes) to completion: twice as long is as bad for a short job as for a
        long one, and no single giant drowns the others."""
        return -math.log1p(outcome.completion_s / 60)

    def retraining(self, features: Mapping[str, float]) -> Mapping[str, Any]:
        return settings_like(features)


ENDPOINT = DasEndpoint()
