"""A simulated application whose operator calls the endpoint `aware` of a decision service."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from loadmaster.envs.pod_scaling.episode import Setup
from loadmaster.envs.pod_scaling.episode_runner import EpisodeRunner
from loadmaster.envs.pod_scaling.settings import STEP_INTERVALS, PodScalingSettings
from loadmaster.envs.pod_scaling.state import (
    NOW,
    P99_S,
    S_ARRIVED,
    S_CPU_USE,
    S_MEMORY_USE,
    S_RESTARTS,
    SLO,
)
from loadmaster.models.aware.rule import carry_out
from loadmaster.serving.client import Client, Decision
from loadmaster.serving.systems.aware.examples import state_of
from loadmaster.serving.systems.aware.schema import AwareOutcome, AwareState
from loadmaster.serving.systems.aware.snapshot import CORE_M

SYSTEM = "aware"


class PodClient:
    """One episode: its states, decisions that are carried out, and the outcome of each."""

    def __init__(self, settings: PodScalingSettings, setup: Setup, seed: int) -> None:
        self.runner = EpisodeRunner(settings, setup, seed)
        self.name = self.runner.episode.application.name

    @property
    def over(self) -> bool:
        return self.runner.over

    def state(self) -> AwareState:
        """The state before the next decision."""
        return state_of(self.runner)

    def carry_out(self, decision: Mapping[str, Any]) -> None:
        """Set the plan of a decision, and simulate the control step that follows."""
        plan = [decision["cpu_m"] / CORE_M, decision["memory_mib"], float(decision["replicas"])]
        carry_out(self.runner.setup.constants, self.runner.episode.state, np.array(plan))

    def outcome(self) -> AwareOutcome:
        """The last control step, for feedback."""
        state = self.runner.episode.state
        row = state.outcome[int(state.clock[NOW]) // STEP_INTERVALS - 1]
        return AwareOutcome(
            application=self.name,
            p99_s=float(row[P99_S]) if row[S_ARRIVED] else None,
            slo_s=float(row[SLO]),
            cpu_use=min(float(row[S_CPU_USE]), 1.0),
            memory_use=min(float(row[S_MEMORY_USE]), 1.0),
            restarts=int(row[S_RESTARTS]),
        )

    def step(self, client: Client) -> tuple[Decision, float]:
        """Request a decision, carry it out, and report the outcome; the reward is the service's."""
        decision = client.decide(SYSTEM, self.state())
        self.carry_out(decision.decision)
        reward = client.feedback(SYSTEM, self.outcome(), id=decision.id).reward
        if reward is None:
            raise RuntimeError("the service returned no reward")
        return decision, reward
