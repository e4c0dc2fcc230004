"""The figures a comparison rests on."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.platform.evaluation import statistics
from loadmaster.platform.evaluation.statistics import (
    interquartile_mean,
    paired_difference,
    summarise,
)


def test_interquartile_mean_by_hand() -> None:
    # Of eight values the two lowest and the two highest go: (2 + 3 + 4 + 5) / 4.
    assert interquartile_mean(np.array([100.0, 1, 3, 4, 5, 6, 2, -50])) == 3.5
    # Of five a quarter is 1.25, rounded down to one each side: (2 + 3 + 10) / 3.
    assert interquartile_mean(np.array([1.0, 2, 3, 10, 900])) == 5.0
    assert interquartile_mean(np.array([1.0, 2, 9])) == 4.0
    assert interquartile_mean(np.array([7.0])) == 7.0


@pytest.mark.parametrize("seeds", [8, 20, 60])
def test_interval_holds_the_true_mean_95_times_in_100(seeds: int) -> None:
    generator = np.random.default_rng(seeds)
    trials = 1000
    held = 0
    for sample in generator.normal(10.0, 3.0, (trials, seeds)):
        interval = summarise(sample).interval
        held += interval.low <= 10.0 <= interval.high
    # The standard error of a 95% proportion in 1,000 trials is 0.7 points.
    assert held / trials == pytest.approx(0.95, abs=0.02)


def test_interval_of_skewed_values_leans_to_the_long_tail() -> None:
    values = np.random.default_rng(3).lognormal(0.0, 1.2, 40)
    summary = summarise(values)
    assert summary.interval.high - summary.mean > summary.mean - summary.interval.low


def test_pairing_tightens_the_interval_of_correlated_results() -> None:
    generator = np.random.default_rng(5)
    hardness = generator.normal(100, 30, 20)  # what the job sequence does to every policy
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


def test_no_difference_is_not_called_one() -> None:
    generator = np.random.default_rng(6)
    same = generator.normal(50, 5, 30)
    noisy = same + generator.normal(0, 3, 30)
    noisy -= (noisy - same).mean()
    assert not paired_difference(noisy, same).interval.excludes_zero
    nothing = paired_difference(same, same)
    assert (nothing.mean, nothing.interval.low, nothing.interval.high) == (0.0, 0.0, 0.0)
    assert not nothing.interval.excludes_zero


def test_same_results_give_the_same_interval() -> None:
    values = np.random.default_rng(7).normal(0, 1, 20)
    first = summarise(values)
    statistics._resampling_weights.cache_clear()
    assert summarise(values) == first


def test_order_of_policies_does_not_matter_only_seeds_are_paired() -> None:
    generator = np.random.default_rng(8)
    ours, theirs = generator.normal(10, 1, 12), generator.normal(11, 1, 12)
    forth, back = paired_difference(ours, theirs), paired_difference(theirs, ours)
    assert forth.mean == pytest.approx(-back.mean)
    assert forth.interval.low == pytest.approx(-back.interval.high)


def test_one_seed_has_no_interval() -> None:
    summary = summarise(np.array([4.0]))
    assert (summary.mean, summary.iqm) == (4.0, 4.0)
    assert np.isnan([summary.interval.low, summary.interval.high]).all()
    assert not paired_difference(np.array([4.0]), np.array([3.0])).interval.excludes_zero


def test_seeds_without_a_figure_are_left_out() -> None:
    whole = np.random.default_rng(9).normal(20, 2, 15)
    summary = summarise(np.append(whole, np.nan))
    assert summary.mean == pytest.approx(whole.mean())
    assert summary.interval.low < whole.mean() < summary.interval.high
    assert np.isnan(summarise(np.full(3, np.nan)).mean)
    difference = paired_difference(np.append(whole, np.nan), np.append(whole - 1, 5.0))
    assert difference.mean == pytest.approx(1.0)


@pytest.mark.parametrize(("freedom", "exact"), [(4, 2.776), (9, 2.262), (19, 2.093), (99, 1.984)])
def test_student_quantile_against_the_tables(freedom: int, exact: float) -> None:
    assert statistics._student_975(freedom) == pytest.approx(exact, rel=0.004)


def test_memory_stays_bounded_with_many_seeds() -> None:
    weights = statistics._resampling_weights(10_000)
    assert weights.size <= statistics.CELLS_MAX
    assert len(weights) >= 1000
    statistics._resampling_weights.cache_clear()
