"""Means, interquartile means and paired bootstrap intervals over seeds.

Every figure is resampled over seeds with the same draws, so two policies that ran the same job
sequences are always resampled together: what makes a sequence hard for both cancels out of their
difference. The draws come from a fixed seed; the same results give the same interval.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 10_000
DRAWS_SEED = 20_190_819
CELLS_MAX = 20_000_000  # of the resampling weights in memory; past it, fewer resamples


@dataclass(frozen=True)
class Interval:
    """A 95% interval; both ends nan where there was only one seed."""

    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Summary:
    """One policy's figures in one metric, over seeds."""

    mean: float
    iqm: float
    interval: Interval  # of the mean


@dataclass(frozen=True)
class Difference:
    """A policy minus a reference, paired by seed."""

    mean: float
    interval: Interval
    percent: float  # of the reference's mean, without its sign
    percent_interval: Interval


def interquartile_mean(values: NDArray[np.float64]) -> float:
    """The mean of what is left when the lowest and the highest quarter of the values are cut.

    A quarter that is no whole number is rounded down, as in a 25% trimmed mean.
    """
    ordered = np.sort(values)
    cut = len(ordered) // 4
    return float(ordered[cut : len(ordered) - cut].mean()) if len(ordered) else float("nan")


def summarise(values: NDArray[np.float64]) -> Summary:
    """`values` (seeds,); a seed whose figure is nan has none, and is left out."""
    known = values[np.isfinite(values)]
    mean = float(known.mean()) if len(known) else float("nan")
    return Summary(mean, interquartile_mean(known), _interval(resampled_means(values), len(known)))


def paired_difference(values: NDArray[np.float64], reference: NDArray[np.float64]) -> Difference:
    """Both (seeds,), the same seeds in the same order."""
    both = np.isfinite(values) & np.isfinite(reference)
    ours, theirs = values[both], reference[both]
    if not len(ours):
        nothing = Interval(float("nan"), float("nan"))
        return Difference(float("nan"), nothing, float("nan"), nothing)
    our_means, their_means = resampled_means(ours), resampled_means(theirs)
    with np.errstate(divide="ignore", invalid="ignore"):
        percent = 100 * np.mean(ours - theirs) / np.abs(np.mean(theirs))
        percents = 100 * (our_means - their_means) / np.abs(their_means)
    # Of nothing there is no percentage.
    percents = np.where(np.isfinite(percents), percents, np.nan)
    return Difference(
        float(np.mean(ours - theirs)),
        _interval(our_means - their_means, len(ours)),
        float(percent),
        _interval(percents, len(ours)),
    )


def resampled_means(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """(resamples,) means of `values` (seeds,), drawn with replacement; nan is left out."""
    weights = _resampling_weights(len(values))  # (resamples, seeds)
    known = np.isfinite(values)
    if known.all():
        return weights @ values / len(values)
    with np.errstate(invalid="ignore"):
        means: NDArray[np.float64] = weights[:, known] @ values[known] / weights[:, known].sum(1)
    return means


@lru_cache(maxsize=2)
def _resampling_weights(seeds: int) -> NDArray[np.float64]:
    """(resamples, seeds) how often each resample drew each seed."""
    resamples = min(RESAMPLES, max(1000, CELLS_MAX // seeds))
    generator = np.random.default_rng(DRAWS_SEED)
    return generator.multinomial(seeds, np.full(seeds, 1 / seeds), resamples).astype(np.float64)


def _interval(means: NDArray[np.float64], seeds: int) -> Interval:
    """The percentile interval of resampled means, widened for the few seeds behind it.

    A plain percentile interval is too narrow on small samples: with 20 seeds it holds the true
    mean 93 times in 100, not 95. Hesterberg's expanded percentiles (2015) mend that: the tails are
    cut where a t interval would cut them.
    """
    if seeds < 2 or np.isnan(means).all():
        return Interval(float("nan"), float("nan"))
    tail = NormalDist().cdf(-np.sqrt(seeds / (seeds - 1)) * _student_975(seeds - 1))
    low, high = np.nanquantile(means, [tail, 1 - tail])
    return Interval(float(low), float(high))


def _student_975(freedom: int) -> float:
    """Student's t at 97.5%, by its expansion around the normal; 0.3% off at 4, less above."""
    z = NormalDist().inv_cdf(0.975)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + float(sum(term / freedom**power for power, term in enumerate(terms, start=1)))
