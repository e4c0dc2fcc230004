"""Advantages in environments driven by an outside input, such as a sequence of arriving jobs.

Most of the spread in returns comes from the input, not from the policy: a heavy sequence costs
much whoever schedules it. So several rollouts share one sequence, and the baseline of a decision is
the mean return the rollouts of its group had left at the same moment (Mao et al., ICLR 2019). It
depends on the input and the time but not on the action, so the policy gradient stays unbiased.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Rollout:
    """What advantages need of a rollout: when decisions were made, and what followed each."""

    time_s: Floats  # (T,) when each decision was made, never falling
    reward: Floats  # (T,) from that decision to the next
    end_s: float  # when the last reward was complete
    outlook: Floats | None = None  # (T, P) what the state says of the return to come, as features


def differential_rewards(rollout: Rollout, rate: float) -> Floats:
    """(T,) rewards less what passes anyway: `rate` is the stream's mean reward per second."""
    passed = np.diff(np.append(rollout.time_s, rollout.end_s))
    return rollout.reward - rate * passed


def returns_to_go(rollout: Rollout, discount_per_s: float = 0.0) -> Floats:
    """(T,) the reward still to come, discounted by exp(-discount_per_s * seconds until then)."""
    if discount_per_s == 0.0:
        return np.ascontiguousarray(np.cumsum(rollout.reward[::-1])[::-1])
    left = np.zeros(len(rollout.reward))
    following, when = 0.0, rollout.end_s
    for step in range(len(left) - 1, -1, -1):
        fade = np.exp(-discount_per_s * (when - rollout.time_s[step]))
        following = rollout.reward[step] + fade * following
        left[step], when = following, rollout.time_s[step]
    return left


def group_baselines(group: Sequence[Rollout], discount_per_s: float = 0.0) -> list[Floats]:
    """For each rollout, (T,): the mean over the *other* rollouts of the return left at that moment.

    Between a rollout's decisions its return left is interpolated linearly in time, and it is 0
    after the end. Leaving the rollout itself out keeps the baseline free of its own actions, so
    that the gradient is unbiased for any size of group, not only for large ones.
    """
    if len(group) < 2:
        raise ValueError(f"a group of {len(group)} rollouts has no others to compare with")
    curves = [_return_left(rollout, discount_per_s) for rollout in group]
    baselines = []
    for own, rollout in enumerate(group):
        others = [
            np.interp(rollout.time_s, times, left)
            for place, (times, left) in enumerate(curves)
            if place != own
        ]
        baselines.append(np.mean(others, axis=0))
    return baselines


def group_advantages(group: Sequence[Rollout], discount_per_s: float = 0.0) -> list[Floats]:
    """For each rollout, (T,): its return to go less the baseline."""
    baselines = group_baselines(group, discount_per_s)
    return [
        returns_to_go(rollout, discount_per_s) - baseline
        for rollout, baseline in zip(group, baselines, strict=True)
    ]


def bootstrapped_advantages(
    groups: Sequence[Sequence[Rollout]], discount_per_s: float, memory_s: float
) -> list[Floats]:
    """For each rollout of every group, (T,): generalised advantages over what a state promises.

    Rollouts of one sequence drift apart: at the same moment one has more work left than another,
    by earlier decisions, and a baseline of the moment alone would blame the later ones for it. So
    the baseline is corrected by how a state's outlook differs from the others' at that moment, in
    a linear fit over the whole iteration. The corrected baseline serves as a value function, and a
    decision is held responsible for `memory_s` seconds instead of for all that follows: the
    advantage of Schulman et al. (2016), eq. 16, with a decay in time instead of steps.
    """
    compared = [_compared(group, own, discount_per_s) for group in groups for own in group]
    slope = _fit([c.unusual for c in compared], [c.left - c.baseline for c in compared])
    advantages = []
    for each in compared:
        value = np.append(each.baseline + each.unusual @ slope, 0.0)
        times = np.append(each.rollout.time_s, each.rollout.end_s)
        fade = np.exp(-discount_per_s * np.diff(times))
        surprise = each.rollout.reward + fade * value[1:] - value[:-1]
        decay = fade * np.exp(-np.diff(times) / memory_s)
        advantage, following = np.zeros(len(surprise)), 0.0
        for step in range(len(surprise) - 1, -1, -1):
            following = surprise[step] + decay[step] * following
            advantage[step] = following
        advantages.append(advantage)
    return advantages


class _Compared(NamedTuple):
    """A rollout beside the others of its group."""

    rollout: Rollout
    left: Floats  # (T,) its return to go
    baseline: Floats  # (T,) the others' at the same moments
    unusual: Floats  # (T, P) its outlook less the others'


def _compared(group: Sequence[Rollout], own: Rollout, discount_per_s: float) -> _Compared:
    others = [rollout for rollout in group if rollout is not own]
    left = returns_to_go(own, discount_per_s)
    curves = [_return_left(rollout, discount_per_s) for rollout in others]
    baseline = np.mean([np.interp(own.time_s, *curve) for curve in curves], axis=0)
    if own.outlook is None:
        return _Compared(own, left, baseline, np.zeros((len(left), 0)))
    usual = np.mean([_outlook_at(rollout, own.time_s) for rollout in others], axis=0)
    return _Compared(own, left, baseline, own.outlook - usual)


def _outlook_at(rollout: Rollout, moments: Floats) -> Floats:
    """(moments, P) between decisions on straight lines; 0 after the end."""
    assert rollout.outlook is not None
    times = np.append(rollout.time_s, max(rollout.end_s, rollout.time_s[-1] + 1e-9))
    features = np.vstack([rollout.outlook, np.zeros(rollout.outlook.shape[1])])
    return np.stack([np.interp(moments, times, feature) for feature in features.T], axis=1)


def _fit(unusual: Sequence[Floats], residual: Sequence[Floats]) -> Floats:
    """(P,) least squares with a touch of ridge, for features that say nothing or the same."""
    features, target = np.concatenate(unusual), np.concatenate(residual)
    scale = features.std(axis=0) + 1e-12
    scaled = features / scale
    ridge = 1e-6 * len(scaled) * np.eye(scaled.shape[1])
    return np.asarray(np.linalg.solve(scaled.T @ scaled + ridge, scaled.T @ target) / scale)


def _return_left(rollout: Rollout, discount_per_s: float) -> tuple[Floats, Floats]:
    """Times and returns to go as a curve in time.

    Of several decisions at one moment the first counts: then all of the return was still to come.
    """
    left = returns_to_go(rollout, discount_per_s)
    first = np.append(True, np.diff(rollout.time_s) > 0)
    times = np.append(rollout.time_s[first], max(rollout.end_s, rollout.time_s[-1] + 1e-9))
    return times, np.append(left[first], 0.0)
