"""Means, interquartile means and bootstrap intervals."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from loadmaster.platform.evaluation import comparison
from loadmaster.platform.evaluation.comparison import paired_difference, resampled_means, summarise


@pytest.mark.parametrize(
    ("values", "mean"),
    [
        ([100.0, 1, 3, 4, 5, 6, 2, -50], 3.5),  # two of eight go each side: (2 + 3 + 4 + 5) / 4
        ([1.0, 2, 3, 10, 900], 5.0),  # a quarter is 1.25, rounded down to one: (2 + 3 + 10) / 3
        ([1.0, 2, 9], 4.0),
        ([7.0], 7.0),
    ],
)
def test_interquartile_mean_by_hand(values: list[float], mean: float) -> None:
    assert comparison.interquartile_mean(np.array(values)) == mean


@pytest.mark.parametrize("seeds", [8, 20])
def test_interval_covers_the_true_mean_95_times_in_100(seeds: int) -> None:
    samples = np.random.default_rng(seeds).normal(10.0, 3.0, (500, seeds))
    intervals = [summarise(sample).interval for sample in samples]
    held = np.mean([interval.low <= 10.0 <= interval.high for interval in intervals])
    assert held == pytest.approx(0.95, abs=0.02)  # the standard error is one point


def test_interval_of_skewed_values_is_asymmetric() -> None:
    values = np.random.default_rng(3).lognormal(0.0, 1.2, 40)
    summary = summarise(values)
    assert summary.interval.high - summary.mean > summary.mean - summary.interval.low


def test_pairing_tightens_the_interval_of_correlated_results() -> None:
    generator = np.random.default_rng(5)
    hardness = generator.normal(100, 30, 20)  # of the job sequence, for every policy
    ours = hardness + 5 + generator.normal(0, 2, 20)
    theirs = hardness + generator.normal(0, 2, 20)
    paired = paired_difference(ours, theirs)
    unpaired = summarise(ours).interval
    assert paired.mean == pytest.approx(float(np.mean(ours - theirs)))
    assert paired.interval.excludes_zero
    assert paired.percent_interval.excludes_zero
    width = paired.interval.high - paired.interval.low
    assert width < 0.15 * (unpaired.high - unpaired.low)
    assert paired.percent == pytest.approx(100 * (ours.mean() / theirs.mean() - 1))
    assert paired.percent_interval.low < paired.percent < paired.percent_interval.high
    back = paired_difference(theirs, ours)
    assert (back.mean, back.interval.high) == pytest.approx((-paired.mean, -paired.interval.low))


def test_equal_policies_include_zero() -> None:
    generator = np.random.default_rng(6)
    same = generator.normal(50, 5, 30)
    noisy = same + generator.normal(0, 3, 30)
    noisy -= (noisy - same).mean()
    assert not paired_difference(noisy, same).interval.excludes_zero
    nothing = paired_difference(same, same)
    assert (nothing.mean, nothing.interval.low, nothing.interval.high) == (0.0, 0.0, 0.0)
    assert not nothing.interval.excludes_zero


def test_nan_values_are_left_out() -> None:
    whole = np.random.default_rng(9).normal(20, 2, 15)
    summary = summarise(np.append(whole, np.nan))
    assert summary.mean == pytest.approx(whole.mean())
    assert summary.interval.low < whole.mean() < summary.interval.high
    assert np.isnan(summarise(np.full(3, np.nan)).mean)
    difference = paired_difference(np.append(whole, np.nan), np.append(whole - 1, 5.0))
    assert difference.mean == pytest.approx(1.0)


@pytest.mark.parametrize("seeds", [2, 3, 5, 20])
def test_interval_cuts_the_tails_where_students_t_does(seeds: int) -> None:
    """Hesterberg's expanded percentiles: tail = Phi(-sqrt(n / (n - 1)) t)."""
    values = np.random.default_rng(seeds).normal(0, 1, seeds)
    t = {2: 12.706, 3: 4.303, 5: 2.776, 20: 2.093}[seeds]
    tail = NormalDist().cdf(-math.sqrt(seeds / (seeds - 1)) * t)
    low, high = np.quantile(resampled_means(values), [tail, 1 - tail])
    interval = summarise(values).interval
    assert [interval.low, interval.high] == pytest.approx([low, high], abs=1e-3)


def test_memory_is_bounded_with_many_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "CELLS_MAX", 150_000)
    values = np.arange(101.0)  # no other test has as many
    means = resampled_means(values)
    assert len(means) == 150_000 // 101
    assert means.mean() == pytest.approx(values.mean(), rel=0.01)
