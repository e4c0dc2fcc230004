"""The lifecycle of a learned policy: its states, thresholds and transitions.

`next_state` is Algorithm 1 of AWARE (Qiu et al., USENIX ATC 2023) as a pure function, for a service
and for a training loop. An entry of a window is an episode's reward or one decision's, as the
caller chooses; the paper has 10 episodes and `z_threshold` 0.

    INITIALIZED -> OFFLINE (bootstrap) or ONLINE
    OFFLINE -> ONLINE     lower bound of an off-policy estimate >= T_online
    ONLINE  -> SERVING    mean >= T_serving and deviation in bounds
    SERVING -> ONLINE     mean < T_serving or deviation out of bounds

No threshold is configured (`measure_thresholds`). T_online is the larger of the rules' reward and
that of the application's profile. T_serving is `degradation` (2.6%) below what the policy itself
earned when it had converged (`reward_stats.ConvergedReward`), and at least the rules' reward.

Differences from the paper:
- A policy that does not act earns nothing, so OFFLINE ends by an `Estimate`, never by rewards.
- A policy is demoted only if its mean is below the threshold, or its deviation above, by more than
  `z_threshold` standard errors; 0 is the paper's rule.
- With `retrain_offline` a policy that earns less than the rules goes to OFFLINE, from ONLINE too,
  so that the rules act while it is retrained; with high stakes every degraded one does. A policy
  that still earns more than the rules goes on, in ONLINE.
- With `plateau` a policy that learns serves only once its rewards have stopped rising.
"""

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import ClassVar, NamedTuple

from pydantic import Field, FiniteFloat, PositiveInt

from loadmaster.envs.settings import Settings
from loadmaster.serving.monitoring.reward_stats import RewardStats, standard_error, summarize
from loadmaster.serving.system import Profile


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
    retrain_offline: bool = True  # a policy that earns less than the rules does not act
    # Rewards over which the mean may not rise by more than `degradation` before SERVING
    plateau: int = Field(default=0, ge=0, le=10_000)


class Thresholds(NamedTuple):
    online: float  # minimum lower bound of an estimate
    serving: float  # minimum mean
    deviation: float  # maximum standard deviation
    rules: float  # their mean


class Estimate(NamedTuple):
    """Reward of a policy that does not act, from logged decisions: fitted Q evaluation."""

    mean: FiniteFloat  # in the unit of the rewards
    lower: FiniteFloat  # confidence bound
    source: str  # method
    episodes: PositiveInt  # that it is from


class Transition(NamedTuple):
    to: LifecycleState | None  # None: no change
    why: str
    degraded: bool = False  # the policy acts, and earns less than it must


def measure_thresholds(
    rules: Sequence[float],
    settings: LifecycleSettings,
    profile: Profile | None = None,
    converged: float | None = None,
) -> Thresholds | None:
    """Thresholds from the latest rewards of the rules; None until their window is full.

    The degradation is a share of |converged|, subtracted from it, so that it means "worse" for
    either sign (2.6% of -100 allow -102.6). Where that is smaller than the rules' standard
    deviation, it is a share of the deviation. The tolerated deviation is at least the degradation,
    also where the rules always earn the same.
    """
    if len(rules) < settings.window:
        return None
    stats = summarize(rules[-settings.window :])
    required = None if profile is None else profile.reward
    own = stats.mean if converged is None else converged
    allowed = settings.degradation * max(abs(own), stats.std)
    return Thresholds(
        online=stats.mean if required is None else max(stats.mean, required),
        serving=stats.mean if converged is None else max(stats.mean, converged - allowed),
        deviation=max(settings.deviation * stats.std, allowed),
        rules=stats.mean,
    )


def first_state(profile: Profile, start: LifecycleState) -> LifecycleState:
    """State of a new application: `start`, unless its profile decides."""
    bootstrap = profile.bootstrap
    if bootstrap is None and profile.stakes == "high":
        bootstrap = True
    if bootstrap is None:
        return start
    if bootstrap:
        return LifecycleState.OFFLINE
    return LifecycleState.ONLINE if start is LifecycleState.OFFLINE else start


def trial_state(profile: Profile) -> LifecycleState:
    """State in which a new bundle starts. With high stakes it acts only after an estimate."""
    return LifecycleState.OFFLINE if profile.stakes == "high" else LifecycleState.ONLINE


def next_state(
    state: LifecycleState,
    rewards: Sequence[float],
    rules: Sequence[float],
    settings: LifecycleSettings,
    *,
    profile: Profile | None = None,
    estimate: Estimate | None = None,
    converged: float | None = None,
) -> Transition:
    """Transition of a policy in `state`, from its latest rewards and those of the rules.

    `estimate` counts in OFFLINE only, `rewards` in the other states. An estimate is evidence from
    before the policy acted: on a change to OFFLINE the caller drops it, and the rewards too.
    `converged`: what the policy earned in SERVING; None if it was never there.
    """
    profile = profile or Profile()
    if state is LifecycleState.INITIALIZED:
        start = LifecycleState.OFFLINE if settings.bootstrap else LifecycleState.ONLINE
        to = first_state(profile, start)
        acts = "the rules act" if to is LifecycleState.OFFLINE else "the policy acts"
        return Transition(to, f"{acts} while the policy learns")
    offline = state is LifecycleState.OFFLINE
    measured = [("rules", rules)] if offline else [("policy", rewards), ("rules", rules)]
    for whose, some in measured:
        if len(some) < settings.window:
            progress = f"{len(some)} of {settings.window} rewards of the {whose}"
            return Transition(None, f"too few rewards: {progress}")
    thresholds = measure_thresholds(rules, settings, profile, converged)
    assert thresholds is not None  # the rules' window is full
    if offline:
        return _leave_offline(estimate, thresholds)
    return _next_acting_state(state, rewards, rules, thresholds, settings, profile)


def _leave_offline(estimate: Estimate | None, thresholds: Thresholds) -> Transition:
    source = "the rules" if thresholds.online == thresholds.rules else "the profile"
    bar = f"the {thresholds.online:.4g} of {source}"
    if estimate is None:
        return Transition(None, f"no estimate of the policy's reward; expected at least {bar}")
    bound = f"the lower bound {estimate.lower:.4g} of its estimated reward ({estimate.source})"
    if estimate.lower >= thresholds.online:
        return Transition(LifecycleState.ONLINE, f"{bound} reaches {bar}")
    return Transition(None, f"{bound} is below {bar}")


def _next_acting_state(
    state: LifecycleState,
    rewards: Sequence[float],
    rules: Sequence[float],
    thresholds: Thresholds,
    settings: LifecycleSettings,
    profile: Profile,
) -> Transition:
    """Transition from ONLINE or SERVING."""
    window = settings.window
    stats = summarize(rewards[-window:])
    mean, bar = f"the mean {stats.mean:.4g} of the last {window} rewards", serving_bar(thresholds)
    spread = f"their deviation {stats.std:.4g}"
    most = f"the {thresholds.deviation:.4g} allowed"
    serves = state is LifecycleState.SERVING
    if stats.mean < thresholds.serving:
        error = standard_error(rewards[-window:])
        if thresholds.serving == thresholds.rules:
            error = math.hypot(error, standard_error(rules[-window:]))
        if stats.mean + settings.z_threshold * error < thresholds.serving:
            down = degraded_state(stats.mean, thresholds, settings, profile)
            to = None if down is state else down
            return Transition(to, f"{mean} is below {bar}", degraded=True)
    # The logarithm of a sample's deviation has a variance of 1 / (2 (n - 1)); here are two samples.
    noise = math.exp(settings.z_threshold / math.sqrt(window - 1)) if serves else 1.0
    if stats.std > thresholds.deviation * noise:
        to = LifecycleState.ONLINE if serves else None
        return Transition(to, f"{spread} is above {most}, at {mean}")
    if stats.mean < thresholds.serving:
        return Transition(None, f"{mean} is below {bar}, within noise")
    if serves:
        return Transition(None, f"{mean} holds against {bar}")
    if (rising := _rising(rewards, stats, settings)) is not None:
        return Transition(None, rising)
    why = f"{mean} reaches {bar}, {spread} stays within {most}"
    return Transition(LifecycleState.SERVING, why)


def _rising(
    rewards: Sequence[float], stats: RewardStats, settings: LifecycleSettings
) -> str | None:
    """Why the policy has not converged; None if it has, or need not."""
    if not (plateau := settings.plateau):
        return None
    before = rewards[-settings.window - plateau : -plateau]
    if len(before) < settings.window:
        needed = settings.window + plateau
        return f"too few rewards: {len(rewards)} of {needed} that show whether they rise"
    old = summarize(before)
    if stats.mean - old.mean <= settings.degradation * max(abs(old.mean), old.std):
        return None
    return f"the mean still rises: {stats.mean:.4g}, {old.mean:.4g} {plateau} rewards before"


def degraded_state(
    mean: float, thresholds: Thresholds, settings: LifecycleSettings, profile: Profile
) -> LifecycleState:
    """State of a degraded policy: OFFLINE if the rules should act while it is retrained."""
    by_rules = settings.retrain_offline and mean < thresholds.rules
    offline = by_rules or profile.stakes == "high"
    return LifecycleState.OFFLINE if offline else LifecycleState.ONLINE


def serving_bar(thresholds: Thresholds) -> str:
    """What T_serving is, in words."""
    source = "the rules" if thresholds.serving == thresholds.rules else "its converged reward"
    return f"the {thresholds.serving:.4g} required by {source}"
