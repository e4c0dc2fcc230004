"""AWARE's endpoint of the decision service."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.pod_scaling.observation import LOAD_UNIT, STATE_COLUMNS
from loadmaster.envs.pod_scaling.rewards import slo_preservation, step_reward
from loadmaster.envs.pod_scaling.settings import RATES, PodScalingSettings
from loadmaster.envs.pod_scaling.snapshot import default_constants
from loadmaster.envs.pod_scaling.state import Floats, SimConstants, SimState
from loadmaster.envs.registry import resolve
from loadmaster.models.policy import EpisodeStep, Explanation, Learned, Proposal
from loadmaster.serving.system import Endpoint, Policy, Profile, Quantity
from loadmaster.serving.systems.aware.examples import examples
from loadmaster.serving.systems.aware.rules import RULES, AwareRule
from loadmaster.serving.systems.aware.schema import (
    AwareDecision,
    AwareOutcome,
    AwareState,
    set_values,
    to_decision,
)

# torch is only loaded to run a bundle
POLICY = "loadmaster.models.aware.policy:AwarePolicy"
LEARN = "loadmaster.models.aware.adaptation:learn_episode"
REPLICAS, CPU_M, MEMORY_MIB = "replicas", "cpu_m", "memory_mib"  # quantities; also kinds
_FEATURES = {
    "load": "load",
    "load change": "load_change",
    "cpu use": "cpu_use",
    "memory use": "memory_use",
    "slo slack": "slo_slack",
    "restarts": "restarts",
    "ready": "ready",
}
_COLUMNS = {_FEATURES[name]: STATE_COLUMNS.index(name) for name in _FEATURES}


Singles = NDArray[np.float32]


class PolicyDecision(Protocol):
    """What a bundle's policy decides."""

    @property
    def plan(self) -> Floats: ...  # (PLAN_COLUMNS,)
    @property
    def memory(self) -> Singles: ...
    @property
    def reason(self) -> Explanation: ...
    @property
    def unknown(self) -> str: ...  # why the rule should act; "": it should not
    @property
    def step(self) -> EpisodeStep | None: ...  # for the embedding; None: there is none


class ApplicationPolicy(Protocol):
    """A bundle's policy, as `models/aware` has it."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def memory_format(self) -> str: ...  # of what it remembers of an application
    @property
    def embedding_format(self) -> str: ...  # of embeddings; "": it has none
    @property
    def trained_in(self) -> PodScalingSettings: ...

    def decide(
        self,
        constants: SimConstants,
        state: SimState,
        memory: Singles | None,
        embedding: Singles | None,
    ) -> PolicyDecision: ...


class BundlePolicy:
    """A bundle's policy that decides on states of the service."""

    def __init__(self, policy: ApplicationPolicy) -> None:
        self.policy, self.name, self.version = policy, policy.name, policy.version
        self.memory_format = policy.memory_format
        self.learned_format = policy.embedding_format
        self.episode_steps = policy.trained_in.steps  # as many as the encoder was trained with

    def decide(
        self, state: AwareState, memory: Singles | None = None, embedding: Singles | None = None
    ) -> Proposal:
        """Decide with what was remembered of the application; None: it was never seen."""
        found = self.policy.decide(*state.parsed.tables(), memory, embedding)
        if not np.isfinite(found.plan).all():
            raise FloatingPointError(f"policy {self.name!r} returned NaN or infinity")
        reason = found.reason
        notes = (*state.parsed.notes, *reason.notes)
        reason = Explanation(reason.summary, reason.choices, reason.others, notes)
        decision = to_decision(state, found.plan)
        return Proposal(decision, reason, found.memory, found.unknown, found.step)

    def learn(self, rows: Singles, rewards: Singles, episodes: Singles | None) -> Learned:
        """The embedding after an episode; see `learn_episode`."""
        learned: Learned = resolve(LEARN)(self.policy, rows, rewards, episodes)
        return learned


class AwareEndpoint(Endpoint[AwareState, AwareDecision, AwareOutcome]):
    """Sets replicas, CPU limit and memory limit of an application's pods."""

    system = "aware"
    summary = "applications in pods: how many replicas, with which CPU and memory limits"
    pretrained = "aware"
    rules = RULES
    state = AwareState
    decision = AwareDecision
    outcome = AwareOutcome
    tenant_field = "application"
    kinds = (CPU_M, MEMORY_MIB)

    def examples(self) -> Mapping[str, AwareState]:
        return examples()

    def policy(self, folder: Path) -> Policy:
        from loadmaster.models.bundle import load_bundle

        policy = BundlePolicy(resolve(POLICY).from_bundle(load_bundle(folder)))
        policy.decide(examples()["tiny"])  # raises if the network cannot decide
        return policy

    def rule(self, name: str) -> Policy:
        return AwareRule(name)

    def quantities(self, state: AwareState, decision: AwareDecision) -> tuple[Quantity, ...]:
        """Three numbers in units of their own: the guard's own limits are those of replicas."""
        now = state.plan
        return (
            Quantity(REPLICAS, float(now.replicas), float(decision.replicas)),
            Quantity(CPU_M, now.cpu_m, decision.cpu_m, kind=CPU_M),
            Quantity(MEMORY_MIB, now.memory_mib, decision.memory_mib, kind=MEMORY_MIB),
        )

    def constrain(
        self, state: AwareState, decision: AwareDecision, allowed: Mapping[str, float]
    ) -> AwareDecision:
        """Round replicas towards the present number; within the bounds, or nearer to them."""
        now = state.plan
        replicas = allowed.get(REPLICAS, decision.replicas)
        replicas = math.floor(replicas) if replicas > now.replicas else math.ceil(replicas)
        values: dict[str, float] = {
            REPLICAS: replicas,
            CPU_M: allowed.get(CPU_M, decision.cpu_m),
            MEMORY_MIB: allowed.get(MEMORY_MIB, decision.memory_mib),
        }
        for name, (least, most) in _limits(state).items():
            values[name] = min(max(values[name], least), most)
        return set_values(state, int(values[REPLICAS]), values[CPU_M], values[MEMORY_MIB])

    def validate_decision(self, state: AwareState, decision: AwareDecision) -> str | None:
        for name, (least, most) in _limits(state).items():
            value = getattr(decision, name)
            if not least <= value <= most:
                return f"{name} is {value:g}; expected {least:g} to {most:g}"
        changes = any(getattr(decision, name) != getattr(state.plan, name) for name in _NAMES)
        return None if decision.act == changes else "act does not fit the plan"

    def agreement(self, decision: AwareDecision, other: AwareDecision) -> float:
        """Mean over the three quantities of the smaller over the larger one."""
        pairs = [(getattr(decision, name), getattr(other, name)) for name in _NAMES]
        return fmean(min(pair) / max(pair) for pair in pairs)

    def features(self, state: AwareState) -> Mapping[str, float]:
        """Load, use of the limits, slack of the SLO and restarts, as observed, and the plan."""
        seen, plan = state.parsed.observation, state.plan
        return {
            **{name: float(seen[column]) for name, column in _COLUMNS.items()},
            "replicas": float(plan.replicas),
            "cpu_log_m": math.log(plan.cpu_m),
            "memory_log_mib": math.log(plan.memory_mib),
        }

    def reward(self, outcome: AwareOutcome) -> float:
        """The environment's, with its default weights."""
        preserved = slo_preservation(outcome.slo_s, outcome.p99_s or 0.0)
        uses = outcome.cpu_use, outcome.memory_use
        return float(step_reward(default_constants(), preserved, *uses))

    def profile_reward(self, profile: Profile) -> float | None:
        """That of a step in which the SLO holds and both utilisation targets are met."""
        targets = profile.utilisation
        if not {"cpu", "memory"} <= targets.keys():
            return None
        return float(step_reward(default_constants(), 1.0, targets["cpu"], targets["memory"]))

    def retraining(self, features: Mapping[str, float]) -> Mapping[str, Any]:
        """Generated applications at the observed load; the application itself is not known."""
        if "load" not in features:
            return {}
        rate = max(math.expm1(LOAD_UNIT * features["load"]), 1e-3)
        level = min(RATES, key=lambda name: abs(math.log(rate / RATES[name])))
        return {"load": level, "load_scale": float(f"{rate / RATES[level]:.3g}")}


_NAMES = (REPLICAS, CPU_M, MEMORY_MIB)


def _limits(state: AwareState) -> dict[str, tuple[float, float]]:
    """Bounds of each quantity, widened by the plan where that is outside."""
    found = {}
    for name in _NAMES:
        now, (least, most) = getattr(state.plan, name), getattr(state.bounds, name)
        found[name] = min(least, now), max(most, now)
    return found


ENDPOINT = AwareEndpoint()
