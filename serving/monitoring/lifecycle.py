"""A learned policy's life: rules act while it learns, it acts while it proves itself, it serves.

Algorithm 1 of AWARE (Qiu et al., USENIX ATC 2023) as a pure function of a window of rewards; what
an entry of the window is, an episode's reward or one decision's, is the caller's to say.

    INITIALIZED -> OFFLINE (bootstrap) or ONLINE
    OFFLINE -> ONLINE     mean >= online
    ONLINE  -> SERVING    mean >= serving and deviation in bounds
    SERVING -> ONLINE     mean < serving or deviation out of bounds

The thresholds are what the rules were measured to earn, see `measure`. Two things are ours. A
policy is only sent back where its mean is below the threshold by more than luck explains (`doubt`;
0 is the paper's rule). And where the stakes are high (`retrain_offline`), a policy whose mean falls
goes back to OFFLINE, from ONLINE too, so that the rules act while it learns again. One that only
varies too much is on trial again; the rules would earn less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import mul
from typing import NamedTuple

from pydantic import Field

from loadmaster.envs.settings import Settings


class LifecycleState(StrEnum):
    INITIALIZED = "INITIALIZED"
    OFFLINE = "OFFLINE"  # rules act, the policy learns from what they do
    ONLINE = "ONLINE"  # the policy acts, on trial
    SERVING = "SERVING"  # the policy acts, and is only watched


class LifecycleSettings(Settings):
    window: int = Field(default=10, ge=2, le=10_000)  # rewards judged, of policy and rules
    degradation: float = Field(default=0.026, ge=0, lt=1)  # share of reward that it may lack
    deviation: float = Field(default=2.0, gt=0)  # allowed, times that of the rules
    doubt: float = Field(default=2.0, ge=0)  # standard errors that count as luck
    bootstrap: bool = True  # the first state is OFFLINE, not ONLINE
    retrain_offline: bool = False  # a policy that falls acts no longer


@dataclass(frozen=True)
class Rewards:
    """A window of rewards in three figures."""

    count: int
    mean: float
    std: float  # of the sample; 0 for a single reward

    @property
    def scale(self) -> float:
        """What a share of the reward is a share of. See `measure`."""
        return max(abs(self.mean), self.std)


class Thresholds(NamedTuple):
    online: float  # mean at least
    serving: float  # mean at least
    deviation: float  # standard deviation at most


class Judgement(NamedTuple):
    to: LifecycleState | None  # None: it stays where it is
    why: str
    fallen: bool = False  # it acts, and the rules would earn more


def summary(rewards: Sequence[float]) -> Rewards:
    """Mean and deviation of at least one reward."""
    count = len(rewards)
    mean = math.fsum(rewards) / count
    squares = math.fsum((reward - mean) * (reward - mean) for reward in rewards)
    return Rewards(count, mean, math.sqrt(squares / (count - 1)) if count > 1 else 0.0)


def standard_error(rewards: Sequence[float]) -> float:
    """Of their mean: how far luck moves it, of at least two rewards in the order they came.

    Jobs that share a cluster are slow together, so fifty rewards in a row may tell no more than ten
    from different days. So many rewards as the integrated autocorrelation says, summed until it is
    first lost in noise, count as one.
    """
    earned = summary(rewards)
    around = [reward - earned.mean for reward in rewards]
    squares = math.fsum(map(mul, around, around))
    if squares == 0.0:
        return 0.0
    as_one = 1.0
    for lag in range(1, len(around) // 2):
        together = math.fsum(map(mul, around[lag:], around)) / squares
        if together <= 0.0:
            break
        as_one += 2.0 * together
    return earned.std * math.sqrt(as_one / earned.count)


def measure(rules: Sequence[float], settings: LifecycleSettings) -> Thresholds | None:
    """The thresholds that the rules' latest rewards set; None until a window of them is full.

    A degradation of 2.6% has to mean "worse" whatever the sign of a reward: it is 2.6% of the
    size of the rules' mean, taken off it (a mean of -100 allows -102.6). Where that mean is smaller
    than the rules' own standard deviation, a share of it says little, and of 0 nothing: there it is
    a share of the deviation. A policy whose rewards vary by no more than the allowed degradation is
    steady in any case, also where the rules earn the same every time.
    """
    if len(rules) < settings.window:
        return None
    earned = summary(rules[-settings.window :])
    allowed = settings.degradation * earned.scale
    return Thresholds(
        online=earned.mean,
        serving=earned.mean - allowed,
        deviation=max(settings.deviation * earned.std, allowed),
    )


def judge(
    state: LifecycleState,
    rewards: Sequence[float],
    rules: Sequence[float],
    settings: LifecycleSettings,
) -> Judgement:
    """Where a policy in `state` goes, by its own latest rewards and by those of the rules."""
    if state is LifecycleState.INITIALIZED:
        if settings.bootstrap:
            return Judgement(LifecycleState.OFFLINE, "the rules act while the policy learns")
        return Judgement(LifecycleState.ONLINE, "the policy learns while it acts")
    thresholds = measure(rules, settings)
    for whose, measured in (("policy", rewards), ("rules", rules)):
        if len(measured) < settings.window:
            told = f"{len(measured)} of {settings.window} rewards of the {whose} measured"
            return Judgement(None, f"not judged yet: {told}")
    assert thresholds is not None  # the rules' window is full
    earned = summary(rewards[-settings.window :])
    mean = f"the mean {earned.mean:.4g} of the last {earned.count} rewards"
    if state is LifecycleState.OFFLINE:
        if earned.mean >= thresholds.online:
            told = f"reaches the {thresholds.online:.4g} of the rules"
            return Judgement(LifecycleState.ONLINE, f"{mean} {told}")
        return Judgement(None, f"{mean} is below the {thresholds.online:.4g} of the rules")
    luck = 0.0
    if earned.mean < thresholds.serving:
        errors = [standard_error(window[-settings.window :]) for window in (rewards, rules)]
        luck = settings.doubt * math.hypot(*errors)
    return _acting(state, earned, luck, thresholds, settings)


def _acting(
    state: LifecycleState,
    earned: Rewards,
    luck: float,
    thresholds: Thresholds,
    settings: LifecycleSettings,
) -> Judgement:
    """ONLINE and SERVING: the policy acts. `luck`: how far below the threshold that explains."""
    mean = f"the mean {earned.mean:.4g} of the last {earned.count} rewards"
    bar = f"{thresholds.serving:.4g}, the rules' less {settings.degradation:.2%}"
    spread = f"their deviation {earned.std:.4g}"
    most = f"the {thresholds.deviation:.4g} allowed"
    down = LifecycleState.OFFLINE if settings.retrain_offline else LifecycleState.ONLINE
    fallen = earned.mean + luck < thresholds.serving
    steady = earned.std <= thresholds.deviation
    if fallen:
        return Judgement(None if down is state else down, f"{mean} is below {bar}", fallen)
    if state is LifecycleState.SERVING:
        if not steady:
            return Judgement(LifecycleState.ONLINE, f"{spread} is above {most}, at {mean}")
        if earned.mean < thresholds.serving:
            return Judgement(None, f"{mean} may be below {bar}, by luck alone")
        return Judgement(None, f"{mean} holds against {bar}")
    if earned.mean >= thresholds.serving and steady:
        told = f"{mean} reaches {bar}, {spread} stays within {most}"
        return Judgement(LifecycleState.SERVING, told)
    if steady:
        return Judgement(None, f"{mean} is below {bar}")
    return Judgement(None, f"{spread} is above {most}, at {mean}")
