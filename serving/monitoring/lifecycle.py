"""The lifecycle of a learned policy, and what drifts and rewards recommend for it.

`next_state` is Algorithm 1 of AWARE (Qiu et al., USENIX ATC 2023) as a pure function of a window of
rewards. An entry of the window is an episode's reward or one decision's, as the caller chooses.

    INITIALIZED -> OFFLINE (bootstrap) or ONLINE
    OFFLINE -> ONLINE     mean >= online
    ONLINE  -> SERVING    mean >= serving and deviation in bounds
    SERVING -> ONLINE     mean < serving or deviation out of bounds

The thresholds are measured on the rules, see `measure_thresholds`. Differences from the paper:
- A policy is demoted only if its mean is below the threshold by more than `z_threshold` standard
  errors; 0 is the paper's rule.
- With `retrain_offline` a policy whose mean degrades goes to OFFLINE, from ONLINE too, so that the
  rules act while it is retrained. A policy whose rewards only vary too much goes to ONLINE.

`recommend` adds the detected drifts:
- Rewards come first: `next_state` compares them with those of the rules.
- A fall of rewards that ADWIN detects is faster than a full window. The rules take over if they are
  known to earn more than the policy does after the fall, or if their rewards are unknown. Otherwise
  the policy goes on while it is retrained.
- A drift of inputs alone does no harm. With rewards, a window of them that is newer than the drift
  decides. Without rewards the policy is retrained if `on_input_drift` is "retrain", and goes on.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from operator import mul
from typing import ClassVar, Literal, NamedTuple

from pydantic import Field

from loadmaster.envs.settings import Settings
from loadmaster.serving.monitoring.drift import Drift

SHOWN_INPUTS = 3  # drifts in one reason


class LifecycleState(StrEnum):
    INITIALIZED = "INITIALIZED"
    OFFLINE = "OFFLINE"  # the rules act; the policy learns
    ONLINE = "ONLINE"  # the policy acts, on trial
    SERVING = "SERVING"  # the policy acts and is monitored


class LifecycleSettings(Settings):
    """Defaults for a service: one outcome is noisier than an episode's reward, so window and noise
    tolerance are larger than the paper's; and the rules act while a degraded policy is retrained.
    """

    renamed: ClassVar[Mapping[str, str]] = {"doubt": "z_threshold"}

    window: int = Field(default=200, ge=2, le=10_000)  # rewards compared, of policy and rules
    degradation: float = Field(default=0.026, ge=0, lt=1)  # tolerated loss, share of reward
    deviation: float = Field(default=3.0, gt=0)  # tolerated, times that of the rules
    # Standard errors that count as noise: many, since every reward is followed by a test.
    z_threshold: float = Field(default=4.0, ge=0)
    bootstrap: bool = True  # the first state is OFFLINE, not ONLINE
    retrain_offline: bool = True  # a degraded policy does not act


class RewardStats(NamedTuple):
    """Statistics of a window of rewards."""

    size: int
    mean: float
    std: float  # of the sample; 0 for a single reward


class Thresholds(NamedTuple):
    online: float  # minimum mean
    serving: float  # minimum mean
    deviation: float  # maximum standard deviation


class Transition(NamedTuple):
    to: LifecycleState | None  # None: no change
    why: str
    degraded: bool = False  # the policy acts, and the rules would earn more


def summarize(rewards: Sequence[float]) -> RewardStats:
    """Mean and standard deviation of at least one reward."""
    count = len(rewards)
    mean = math.fsum(rewards) / count
    squares = math.fsum((reward - mean) * (reward - mean) for reward in rewards)
    return RewardStats(count, mean, math.sqrt(squares / (count - 1)) if count > 1 else 0.0)


def standard_error(rewards: Sequence[float]) -> float:
    """Standard error of the mean of at least two autocorrelated rewards, in order of time.

    Jobs that share a cluster are slow together, so successive rewards are correlated. The sample
    size is divided by the integrated autocorrelation time, summed up to the first lag whose
    autocorrelation is not positive.
    """
    stats = summarize(rewards)
    centred = [reward - stats.mean for reward in rewards]
    squares = math.fsum(map(mul, centred, centred))
    if squares == 0.0:
        return 0.0
    correlation_time = 1.0
    for lag in range(1, len(centred) // 2):
        correlation = math.fsum(map(mul, centred[lag:], centred)) / squares
        if correlation <= 0.0:
            break
        correlation_time += 2.0 * correlation
    return stats.std * math.sqrt(correlation_time / len(rewards))


def measure_thresholds(rules: Sequence[float], settings: LifecycleSettings) -> Thresholds | None:
    """Thresholds from the latest rewards of the rules; None until their window is full.

    The degradation is a share of |mean|, subtracted from the mean, so that it means "worse" for
    either sign (2.6% of a mean of -100 allow -102.6). Where |mean| is smaller than the standard
    deviation, it is a share of the deviation. The tolerated deviation is at least the degradation,
    also where the rules always earn the same.
    """
    if len(rules) < settings.window:
        return None
    stats = summarize(rules[-settings.window :])
    allowed = settings.degradation * max(abs(stats.mean), stats.std)
    return Thresholds(
        online=stats.mean,
        serving=stats.mean - allowed,
        deviation=max(settings.deviation * stats.std, allowed),
    )


def next_state(
    state: LifecycleState,
    rewards: Sequence[float],
    rules: Sequence[float],
    settings: LifecycleSettings,
) -> Transition:
    """Transition of a policy in `state`, from its latest rewards and those of the rules."""
    if state is LifecycleState.INITIALIZED:
        if settings.bootstrap:
            return Transition(LifecycleState.OFFLINE, "the rules act while the policy learns")
        return Transition(LifecycleState.ONLINE, "the policy learns while it acts")
    for whose, measured in (("policy", rewards), ("rules", rules)):
        if len(measured) < settings.window:
            progress = f"{len(measured)} of {settings.window} rewards of the {whose}"
            return Transition(None, f"too few rewards: {progress}")
    thresholds = measure_thresholds(rules, settings)
    assert thresholds is not None  # the rules' window is full
    stats = summarize(rewards[-settings.window :])
    if state is LifecycleState.OFFLINE:
        mean, bar = _mean_text(stats), f"the {thresholds.online:.4g} of the rules"
        if stats.mean >= thresholds.online:
            return Transition(LifecycleState.ONLINE, f"{mean} reaches {bar}")
        return Transition(None, f"{mean} is below {bar}")
    margin = 0.0
    if stats.mean < thresholds.serving:
        errors = [standard_error(window[-settings.window :]) for window in (rewards, rules)]
        margin = settings.z_threshold * math.hypot(*errors)
    return _next_acting_state(state, stats, margin, thresholds, settings)


def _next_acting_state(
    state: LifecycleState,
    stats: RewardStats,
    margin: float,
    thresholds: Thresholds,
    settings: LifecycleSettings,
) -> Transition:
    """Transition from ONLINE or SERVING. `margin`: shortfall that noise explains."""
    mean, bar = _mean_text(stats), _bar_text(thresholds, settings)
    spread = f"their deviation {stats.std:.4g}"
    most = f"the {thresholds.deviation:.4g} allowed"
    down = LifecycleState.OFFLINE if settings.retrain_offline else LifecycleState.ONLINE
    serves = state is LifecycleState.SERVING
    if stats.mean + margin < thresholds.serving:
        return Transition(None if down is state else down, f"{mean} is below {bar}", degraded=True)
    if stats.std > thresholds.deviation:
        to = LifecycleState.ONLINE if serves else None
        return Transition(to, f"{spread} is above {most}, at {mean}")
    if stats.mean < thresholds.serving:
        return Transition(None, f"{mean} is below {bar}, within noise")
    if serves:
        return Transition(None, f"{mean} holds against {bar}")
    why = f"{mean} reaches {bar}, {spread} stays within {most}"
    return Transition(LifecycleState.SERVING, why)


def _mean_text(stats: RewardStats) -> str:
    return f"the mean {stats.mean:.4g} of the last {stats.size} rewards"


def _bar_text(thresholds: Thresholds, settings: LifecycleSettings) -> str:
    return f"{thresholds.serving:.4g}, the rules' less {settings.degradation:.2%}"


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
    retrain_on_inputs: bool,
) -> Recommendation:
    """Recommend an action from rewards of the policy and of the rules (latest last) and drifts."""
    transition = next_state(state, rewards, rules, settings)
    if state in (LifecycleState.ONLINE, LifecycleState.SERVING):
        fall = evidence.fall
        if transition.degraded and transition.to is not None:
            cause = "" if fall is None else f"{fall.description}; "
            return _retrain(transition.to, f"{cause}{transition.why}", evidence)
        if fall is not None:
            return _after_fall(fall, measure_thresholds(rules, settings), evidence, settings)
        if evidence.inputs and retrain_on_inputs and len(rewards) < settings.window:
            why = f"{_input_drifts(evidence)}; no rewards show its effect"
            return Recommendation("retrain", None, why)
    return Recommendation("keep", transition.to, transition.why)


def _after_fall(
    fall: Drift, thresholds: Thresholds | None, evidence: Evidence, settings: LifecycleSettings
) -> Recommendation:
    to = LifecycleState.OFFLINE if settings.retrain_offline else None
    if thresholds is None:
        why = "the rewards of the rules are not known"
    else:
        why = f"below {_bar_text(thresholds, settings)}"
        if fall.after >= thresholds.serving:
            to, why = None, f"not {why}"
    return _retrain(to, f"{fall.description}, {why}", evidence)


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
