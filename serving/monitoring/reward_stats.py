"""Statistics of rewards: windows, standard errors, and what a converged policy earns."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul
from typing import NamedTuple, Self

from pydantic import FiniteFloat

SETTLED_WINDOWS = 10  # windows of rewards that the converged reward is a mean of


class RewardStats(NamedTuple):
    """Statistics of a window of rewards."""

    size: int
    mean: float
    std: float  # of the sample; 0 for a single reward


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


@dataclass
class ConvergedReward:
    """What a policy earns in SERVING: the highest long-run mean of its rewards.

    The mean is over SETTLED_WINDOWS windows, with exponential weights: noise and daily cycles of a
    single window would raise a maximum. Until there are as many rewards it is their plain mean. It
    never falls then, since a bar that follows a slow decay would not show it.
    """

    level: FiniteFloat
    count: int
    best: FiniteFloat | None = None  # None: not enough rewards for a maximum

    @classmethod
    def measure(cls, window: Sequence[float]) -> Self:
        """Start from the window with which the policy reached SERVING."""
        return cls(summarize(window).mean, len(window))

    @property
    def value(self) -> float:
        return self.level if self.best is None else self.best

    def bar(self, degradation: float) -> float:
        """The mean that it must not fall below, by a share of it."""
        return self.value - degradation * abs(self.value)

    def add(self, reward: float, window: int) -> None:
        """Add a reward of SERVING."""
        self.count += 1
        settled = SETTLED_WINDOWS * window
        self.level += (reward - self.level) / min(self.count, settled)
        if self.count >= settled:
            self.best = self.level if self.best is None else max(self.best, self.level)
