"""Advantages in environments driven by an outside input, such as a sequence of arriving jobs.

Most of the spread in returns comes from the input, not from the policy: a heavy sequence costs
much whoever schedules it. So several rollouts share one sequence, and the baseline of a decision is
the mean return the rollouts of its group had left at the same moment (Mao et al., ICLR 2019). It
depends on the input and the time but not on the action, so the policy gradient stays unbiased.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Rollout:
    """What advantages need of a rollout: when decisions were made, and what followed each."""

    time_s: Floats  # (T,) when each decision was made, never falling
    reward: Floats  # (T,) from that decision to the next
    end_s: float  # when the last reward was complete


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


def _return_left(rollout: Rollout, discount_per_s: float) -> tuple[Floats, Floats]:
    """Times and returns to go as a curve in time.

    Of several decisions at one moment the first counts: then all of the return was still to come.
    """
    left = returns_to_go(rollout, discount_per_s)
    first = np.append(True, np.diff(rollout.time_s) > 0)
    times = np.append(rollout.time_s[first], max(rollout.end_s, rollout.time_s[-1] + 1e-9))
    return times, np.append(left[first], 0.0)
