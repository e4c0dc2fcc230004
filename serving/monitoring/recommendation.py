"""What rewards and drifts recommend for a policy.

- Rewards come first: `next_state` compares them with those of the rules and with what the policy
  earned when it had converged.
- A fall of rewards that a detector finds is faster than a full window. The rules take over if they
  are known to earn more than the policy does after the fall, if their rewards are unknown, or if
  the stakes are high. Otherwise the policy goes on, on trial, while it is retrained.
- A drift of inputs alone does no harm. With rewards, a window of them that is newer than the drift
  decides. Without rewards the policy is retrained if `on_input_drift` is "retrain", and goes on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from loadmaster.serving.monitoring.drift import Drift
from loadmaster.serving.monitoring.lifecycle import (
    Estimate,
    LifecycleSettings,
    LifecycleState,
    Thresholds,
    degraded_state,
    measure_thresholds,
    next_state,
    serving_bar,
)
from loadmaster.serving.system import Profile

SHOWN_INPUTS = 3  # drifts in one reason


class Recommendation(NamedTuple):
    """`keep`: no change of actor. `retrain`: the policy acts while another is trained.
    `fall back`: the rules act meanwhile."""

    action: Literal["keep", "retrain", "fall back"]
    to: LifecycleState | None  # the next state, if it changes
    why: str


@dataclass
class Evidence:
    """Drifts that no recommendation has been carried out for yet."""

    fall: Drift | None = None  # of the policy's rewards
    inputs: dict[str, Drift] = field(default_factory=dict)
    rewards_since: int = 0  # rewards of the policy since the latest drift of an input

    def add_input_drift(self, drift: Drift) -> None:
        self.inputs[drift.name] = drift
        self.rewards_since = 0

    def add_reward(self, window: int) -> None:
        """Count a reward; a full window of newer rewards supersedes drifts of inputs."""
        self.rewards_since += 1
        if self.rewards_since > window:
            self.inputs.clear()


def recommend(
    state: LifecycleState,
    rewards: Sequence[float],
    rules: Sequence[float],
    evidence: Evidence,
    settings: LifecycleSettings,
    *,
    retrain_on_inputs: bool,
    profile: Profile | None = None,
    estimate: Estimate | None = None,
    converged: float | None = None,
) -> Recommendation:
    """Recommend an action from rewards of the policy and of the rules (latest last) and drifts.

    The other arguments are those of `next_state`.
    """
    profile = profile or Profile()
    transition = next_state(
        state, rewards, rules, settings, profile=profile, estimate=estimate, converged=converged
    )
    if state in (LifecycleState.ONLINE, LifecycleState.SERVING):
        fall = evidence.fall
        if transition.degraded and transition.to is not None:
            cause = "" if fall is None else f"{fall.description}; "
            return _retrain(transition.to, f"{cause}{transition.why}", evidence)
        if fall is not None:
            thresholds = measure_thresholds(rules, settings, profile, converged)
            return _after_fall(state, fall, thresholds, evidence, settings, profile)
        if evidence.inputs and retrain_on_inputs and len(rewards) < settings.window:
            why = f"{_input_drifts(evidence)}; no rewards show its effect"
            return Recommendation("retrain", None, why)
    return Recommendation("keep", transition.to, transition.why)


def _after_fall(
    state: LifecycleState,
    fall: Drift,
    thresholds: Thresholds | None,
    evidence: Evidence,
    settings: LifecycleSettings,
    profile: Profile,
) -> Recommendation:
    to: LifecycleState | None
    if thresholds is None:
        offline = settings.retrain_offline or profile.stakes == "high"
        to = LifecycleState.OFFLINE if offline else None
        why = "the rewards of the rules are not known"
    elif fall.after < thresholds.serving:
        to = degraded_state(fall.after, thresholds, settings, profile)
        why = f"below {serving_bar(thresholds)}"
    else:
        to, why = None, f"not below {serving_bar(thresholds)}"
    return _retrain(None if to is state else to, f"{fall.description}, {why}", evidence)


def _retrain(to: LifecycleState | None, why: str, evidence: Evidence) -> Recommendation:
    """Only in OFFLINE do the rules act."""
    action: Literal["retrain", "fall back"]
    action = "fall back" if to is LifecycleState.OFFLINE else "retrain"
    drifted = f"; {_input_drifts(evidence)}" if evidence.inputs else ""
    return Recommendation(action, to, f"{why}{drifted}")


def _input_drifts(evidence: Evidence) -> str:
    """Describe the latest drifts of inputs."""
    latest = sorted(evidence.inputs.values(), key=lambda drift: -drift.time)
    more = len(latest) - SHOWN_INPUTS
    shown = "; ".join(drift.description for drift in latest[:SHOWN_INPUTS])
    return f"{shown}; and {more} more" if more > 0 else shown
