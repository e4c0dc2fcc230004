"""Returns, baselines and advantages of recorded rollouts.

In an environment driven by an outside input, such as arriving jobs, most of the variance of returns
comes from the input. Several rollouts therefore share one input sequence, and the baseline of a
decision is the mean return-to-go of the other rollouts of its group at the same time (Mao et al.,
ICLR 2019). It depends on input and time but not on the action, so the gradient stays unbiased.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Rollout:
    """Times and rewards of one rollout of T decisions."""

    time_s: Floats  # (T,) of each decision, never decreasing
    reward: Floats  # (T,) from that decision to the next
    end_s: float  # time at which the last reward is complete
    outlook: Floats | None = None  # (T, P) state features that predict the return-to-go


@dataclass(frozen=True)
class Decay:
    """Discounts of later rewards, per decision and per second."""

    gamma: float = 1.0  # reward discount per decision
    per_s: float = 0.0  # reward discount: exp(-per_s * seconds)
    gae_lambda: float = 1.0  # trace decay per decision
    credit_horizon_s: float | None = None  # trace decay: exp(-seconds / credit_horizon_s)


class Segments(NamedTuple):
    """A rollout cut at its K kept decisions: from each to the next, or to the end."""

    reward: Floats  # (K,) discounted to the segment's start
    discount: Floats  # (K,) of a value at the segment's end
    trace: Floats  # (K,) decay of the error that is passed back over the segment


def with_differential_rewards(rollout: Rollout, rate: float) -> Rollout:
    """Subtract the mean reward `rate` per second, for streams without an end."""
    return replace(rollout, reward=rollout.reward - rate * _elapsed_s(rollout))


def returns_to_go(rollout: Rollout, discount_per_s: float = 0.0) -> Floats:
    """(T,) future reward, discounted by exp(-discount_per_s * seconds)."""
    if discount_per_s == 0.0:
        return np.ascontiguousarray(np.cumsum(rollout.reward[::-1])[::-1])
    return _decayed_sum(rollout.reward, np.exp(-discount_per_s * _elapsed_s(rollout)))


def group_baselines(group: Sequence[Rollout], discount_per_s: float = 0.0) -> list[Floats]:
    """For each rollout, (T,): the mean return-to-go of the *other* rollouts at the same times.

    Return-to-go is interpolated linearly between decisions and is 0 after the end. Leaving the
    rollout itself out keeps the baseline independent of its actions for any group size.
    """
    if len(group) < 2:
        raise ValueError(f"a group of {len(group)} rollouts has no others to compare with")
    curves = [_return_curve(rollout, discount_per_s) for rollout in group]
    return [
        _mean_at(rollout.time_s, curves[:own] + curves[own + 1 :])[:, 0]
        for own, rollout in enumerate(group)
    ]


def group_advantages(group: Sequence[Rollout], discount_per_s: float = 0.0) -> list[Floats]:
    """For each rollout, (T,): return-to-go minus the group's baseline."""
    pairs = zip(group, group_baselines(group, discount_per_s), strict=True)
    return [returns_to_go(rollout, discount_per_s) - baseline for rollout, baseline in pairs]


def bootstrapped_advantages(
    groups: Sequence[Sequence[Rollout]], discount_per_s: float, credit_horizon_s: float
) -> list[Floats]:
    """For each rollout of every group, (T,): generalised advantages with a fitted value function.

    At the same time one rollout of a group may have more work left than another because of earlier
    decisions, and the group baseline would charge later decisions for it. The value function is
    the baseline plus a linear fit, over all groups, on how `outlook` differs from the others'. Its
    advantages follow Schulman et al. (2016), eq. 16, with a decay in seconds instead of steps.
    """
    baselines = [base for group in groups for base in group_baselines(group, discount_per_s)]
    differences = [each for group in groups for each in _outlook_differences(group)]
    rollouts = [rollout for group in groups for rollout in group]
    pairs = zip(rollouts, baselines, strict=True)
    residual = [returns_to_go(rollout, discount_per_s) - base for rollout, base in pairs]
    slope = _least_squares(differences, residual)
    decay = Decay(per_s=discount_per_s, credit_horizon_s=credit_horizon_s)
    advantages = []
    for rollout, base, features in zip(rollouts, baselines, differences, strict=True):
        value = np.append(base + features @ slope, 0.0)
        segments = segments_of(rollout, np.arange(len(rollout.reward)), decay)
        advantages.append(gae(segments, value[:-1], value))
    return advantages


def segments_of(rollout: Rollout, kept: NDArray[np.int64], decay: Decay) -> Segments:
    """Cut a rollout at its `kept` decisions; rewards before the first are left out."""
    steps = np.diff(np.append(kept, len(rollout.reward)))
    times = np.append(rollout.time_s, rollout.end_s)
    seconds = np.diff(np.append(times[kept], rollout.end_s))
    segment = np.repeat(np.arange(len(kept)), steps)  # of each decision from the first kept one on
    first = kept[0] if len(kept) else len(rollout.reward)
    steps_before = np.arange(first, len(rollout.reward)) - kept[segment]
    seconds_before = times[first:-1] - times[kept][segment]
    discounted = rollout.reward[first:] * decay.gamma**steps_before
    discounted = discounted * np.exp(-decay.per_s * seconds_before)
    discount = decay.gamma**steps * np.exp(-decay.per_s * seconds)
    trace = decay.gae_lambda**steps * np.ones(len(kept))
    if decay.credit_horizon_s is not None:
        trace = trace * np.exp(-seconds / decay.credit_horizon_s)
    reward = np.bincount(segment, discounted, len(kept)).astype(np.float64)
    return Segments(reward, discount, trace)


def gae(segments: Segments, predicted: Floats, state_value: Floats) -> Floats:
    """(K,) discounted sum of temporal-difference errors from each kept decision on.

    `predicted` (K,) is the critic's value of the decision, `state_value` (K + 1,) its value of the
    state before any action; the last is 0 where the episode is over. For V both are the same and
    the result is the generalised advantage of Schulman et al. (2016), eq. 16. For Q, predicted plus
    the result is the Retrace target of Munos et al. (2016), eq. 4, for on-policy decisions; with
    lambda 0 it is r + gamma * state_value, the TD target.
    """
    error = segments.reward + segments.discount * state_value[1:] - predicted
    return _decayed_sum(error, segments.discount * segments.trace)


class RunningNormalizer:
    """Running mean and standard deviation of critic targets, to train on numbers of about one.

    Returns grow a hundredfold during training and differ as much between workloads.
    """

    DECAY = 0.9

    def __init__(self) -> None:
        self._weight, self._mean, self._square = 0.0, 0.0, 0.0

    def update(self, values: Floats) -> None:
        new = 1 - self.DECAY
        self._weight = self.DECAY * self._weight + new
        self._mean = self.DECAY * self._mean + new * float(values.mean())
        self._square = self.DECAY * self._square + new * float((values**2).mean())

    @property
    def mean(self) -> float:
        return self._mean / self._weight if self._weight else 0.0

    @property
    def std(self) -> float:
        if not self._weight:
            return 1.0
        return float(np.sqrt(max(self._square / self._weight - self.mean**2, 1e-8)))

    def normalize(self, values: Floats) -> NDArray[np.float32]:
        return np.asarray((values - self.mean) / self.std, np.float32)

    def denormalize(self, values: NDArray[np.float32]) -> Floats:
        return np.asarray(values, np.float64) * self.std + self.mean


def explained_variance(values: Sequence[Floats], targets: Sequence[Floats]) -> float:
    """Share of the targets' variance that the values predict: 1 is all, 0 none."""
    target = np.concatenate(targets)
    residual = target - np.concatenate(values)
    return float(1 - residual.var() / (target.var() + 1e-12))


def _decayed_sum(values: Floats, decay: Floats) -> Floats:
    """(T,) total[t] = values[t] + decay[t] * total[t + 1]."""
    total = np.zeros(len(values))
    _sum_backwards(values, decay, total)
    return total


@compiled  # in Python it took a quarter of the time of all advantages
def _sum_backwards(values: Floats, decay: Floats, total: Floats) -> None:
    following = 0.0
    for step in range(len(values) - 1, -1, -1):
        following = values[step] + decay[step] * following
        total[step] = following


def _elapsed_s(rollout: Rollout) -> Floats:
    return np.diff(np.append(rollout.time_s, rollout.end_s))


def _outlook_differences(group: Sequence[Rollout]) -> list[Floats]:
    """For each rollout, (T, P): its outlook minus the mean outlook of the others at these times."""
    outlooks = [rollout.outlook for rollout in group]
    known = [outlook for outlook in outlooks if outlook is not None]
    if len(known) < len(group):
        return [np.zeros((len(rollout.reward), 0)) for rollout in group]
    curves = [_outlook_curve(*pair) for pair in zip(group, known, strict=True)]
    return [
        own - _mean_at(rollout.time_s, curves[:place] + curves[place + 1 :])
        for place, (rollout, own) in enumerate(zip(group, known, strict=True))
    ]


def _outlook_curve(rollout: Rollout, outlook: Floats) -> tuple[Floats, Floats]:
    """Times, and the outlook (times, P) at each; 0 after the end."""
    times = np.append(rollout.time_s, max(rollout.end_s, rollout.time_s[-1] + 1e-9))
    return times, np.vstack([outlook, np.zeros(outlook.shape[1])])


def _mean_at(times: Floats, curves: Sequence[tuple[Floats, Floats]]) -> Floats:
    """(times, P) the mean of several curves, interpolated linearly; `times` never decrease."""
    total = np.zeros((len(times), curves[0][1].shape[1]))
    for known, values in curves:
        _add_interpolated(times, known, values, total)
    return total / len(curves)


@compiled  # numpy.interp, a call for each feature of each pair of rollouts, took half of the time
def _add_interpolated(times: Floats, known: Floats, values: Floats, total: Floats) -> None:
    """Add what numpy.interp returns for each column of `values`."""
    place, last = 0, len(known) - 1
    for row in range(len(times)):
        time = times[row]
        while place < last and known[place + 1] <= time:
            place += 1
        if place == last or time <= known[place]:  # a known time, or outside of them
            for column in range(values.shape[1]):
                total[row, column] += values[place, column]
            continue
        length, passed = known[place + 1] - known[place], time - known[place]
        for column in range(values.shape[1]):
            slope = (values[place + 1, column] - values[place, column]) / length
            total[row, column] += slope * passed + values[place, column]


def _least_squares(features: Sequence[Floats], target: Sequence[Floats]) -> Floats:
    """(P,) with a small ridge term, for features that are constant or collinear."""
    columns = np.concatenate(features)
    scale = columns.std(axis=0) + 1e-12
    scaled = columns / scale
    ridge = 1e-6 * len(scaled) * np.eye(scaled.shape[1])
    solution = np.linalg.solve(scaled.T @ scaled + ridge, scaled.T @ np.concatenate(target))
    return np.asarray(solution / scale)


def _return_curve(rollout: Rollout, discount_per_s: float) -> tuple[Floats, Floats]:
    """Times and returns-to-go (times, 1); of several decisions at one time the first counts."""
    left = returns_to_go(rollout, discount_per_s)
    first = np.append(True, np.diff(rollout.time_s) > 0)
    times = np.append(rollout.time_s[first], max(rollout.end_s, rollout.time_s[-1] + 1e-9))
    return times, np.append(left[first], 0.0)[:, None]
