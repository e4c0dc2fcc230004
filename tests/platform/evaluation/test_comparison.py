"""Policies and episodes of an evaluation, their comparison, and its statistics."""

import json
import math
import re
import threading
import warnings
from dataclasses import replace
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.metrics import Metric
from loadmaster.platform.evaluation import adapters, report, statistics
from loadmaster.platform.evaluation.files import as_json
from loadmaster.platform.evaluation.statistics import paired_difference, resampled_means, summarise
from tests.platform.evaluation import machine
from tests.platform.evaluation.machine import MACHINE, compared, machine_episode


@pytest.mark.parametrize(
    ("policies", "against", "chosen"),
    [
        ([], None, ("arrival", "shortest", "longest")),
        ([], "all", ("arrival", "shortest", "longest")),
        (["longest"], None, ("longest",)),
        (["longest"], "all", ("longest", "arrival", "shortest")),
        (["longest", "optimal"], "shortest", ("optimal", "longest", "shortest")),
        ([], "shortest, shortest", ("shortest",)),
    ],
)
def test_policies_are_chosen(policies: list[str], against: str | None, chosen: Any) -> None:
    assert adapters.choose_policies(MACHINE, policies, against) == chosen


@pytest.mark.parametrize("workers", [1, 4])
def test_results_do_not_depend_on_threads(workers: int) -> None:
    class Network:
        def run(self, settings: machine.MachineSettings, seed: int, bank: object) -> Any:
            return machine_episode("learned", seed, settings.jobs)

    bundles: Any = {"learned": SimpleNamespace(policy=Network())}
    setup = machine.prepare(machine.MachineSettings())
    seeds, policies = (5, 6, 7), (*MACHINE.baselines, "learned")
    episodes = adapters.run_episodes(setup, bundles, policies, seeds, workers)
    for policy in policies:
        expected = [machine_episode(policy, seed).completion_s for seed in seeds]
        assert np.array_equal([each.completion_s for each in episodes[policy]], expected)


def test_episodes_run_in_parallel() -> None:
    both_inside = threading.Barrier(2, timeout=10)
    warmed_up: list[int] = []

    def wait_for_the_other(policy: str, seed: int) -> machine.MachineEpisode:
        if warmed_up:
            both_inside.wait()
        warmed_up.append(seed)
        return machine_episode(policy, seed)

    setup = replace(machine.prepare(machine.MachineSettings()), run=wait_for_the_other)
    ticks: list[int] = []
    adapters.run_episodes(setup, {}, ["arrival"], range(5), 2, lambda: ticks.append(1))
    assert len(ticks) == 5


def test_first_error_stops_the_run() -> None:
    started: list[int] = []

    def fail(policy: str, seed: int) -> machine.MachineEpisode:
        started.append(seed)
        raise InputError("too large")

    setup = replace(machine.prepare(machine.MachineSettings()), run=fail)
    with pytest.raises(InputError, match="too large"):
        adapters.run_episodes(setup, {}, ["arrival"], range(1000), 2)
    assert len(started) == 1


def test_user_warnings_become_one_note(recwarn: pytest.WarningsRecorder) -> None:
    with adapters.collect_warnings() as notes:
        for job in (3, 4, 3):
            warnings.warn(f"job {job} is left out", stacklevel=1)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    assert [str(each.message) for each in recwarn] == ["old"]
    assert notes == ["warning: job 3 is left out (and 1 more such warnings)"]


REWARD = Metric(
    "reward", "reward", "", lambda e: -float(e.completion_s.mean()), better="higher", relative=False
)
REWARDED = machine.varied(metrics=(REWARD,))


def mean_jct(policy: str, seed: int) -> float:
    return float(machine_episode(policy, seed).completion_s.mean())


def test_comparison_by_hand() -> None:
    result = compared("arrival", "longest", "shortest", seeds=12)
    costs = {p: [mean_jct(p, seed) for seed in range(12)] for p in result.policies}
    assert result.policies == ("shortest", "arrival", "longest")
    assert result.best_baseline == "shortest"
    for policy, means in costs.items():
        assert result.summaries[policy][0].mean == pytest.approx(np.mean(means))
        assert result.summaries[policy][0].iqm == pytest.approx(np.mean(np.sort(means)[3:9]))
    difference = result.differences["longest"]
    gaps = np.subtract(costs["longest"], costs["shortest"])
    assert difference.mean == pytest.approx(gaps.mean())
    assert difference.percent == pytest.approx(100 * gaps.mean() / np.mean(costs["shortest"]))
    assert 0 < difference.interval.low < gaps.mean() < difference.interval.high
    assert "shortest" not in result.differences


def test_gap_to_the_optimum() -> None:
    result = compared("optimal", "shortest", "arrival")
    assert result.best_baseline == "shortest"
    assert result.gaps["shortest"].mean == 0
    ratio = [mean_jct("arrival", seed) / mean_jct("optimal", seed) for seed in range(20)]
    assert result.gaps["arrival"].mean == pytest.approx(100 * (np.mean(ratio) - 1))
    assert "optimal" not in result.gaps
    assert as_json(result, [])["optimality_gap_percent"]["arrival"]["mean"] > 0


def test_higher_can_be_better() -> None:
    result = compared("arrival", "longest", "shortest", adapter=REWARDED)
    assert result.policies == ("shortest", "arrival", "longest")


def test_share_closed_of_the_gap_to_an_oracle() -> None:
    """Of a metric with an arbitrary zero there are no percentages, but shares of a gap."""
    policies = ("optimal", "learned", "arrival", "longest")
    result = compared(*policies, adapter=REWARDED)
    rewards = {p: np.array([-mean_jct(p, seed) for seed in range(20)]) for p in policies}
    whole = (rewards["optimal"] - rewards["arrival"]).mean()
    share = result.closed["learned"]
    assert (result.best_baseline, share.oracle) == ("arrival", "optimal")
    assert share.mean == pytest.approx((rewards["learned"] - rewards["arrival"]).mean() / whole)
    assert 0.9 < share.interval.low < share.mean < share.interval.high < 1
    assert result.closed["longest"].mean < 0
    assert (set(result.closed), result.gaps) == ({"learned", "longest"}, {})
    record = as_json(result, [])
    assert record["metrics"]["reward"]["relative"] is False
    assert record["share_of_gap_closed"]["learned"]["mean"] == pytest.approx(share.mean, abs=1e-6)
    assert re.sub(r"\d+\.\d+|\d+%", "#", report.conclusion(result)) == (
        "learned is best: reward -#, # [#, #] of the gap to optimal, "
        "# [#, #] ahead of arrival, the best baseline."
    )


def test_one_seed_has_no_interval() -> None:
    record = as_json(compared("arrival", "shortest", seeds=1), [])
    record = json.loads(json.dumps(record, allow_nan=False))
    assert record["policies"]["shortest"]["jct"]["ci95"] == [None, None]
    assert record["differences"]["arrival"]["excludes_zero"] is False


def test_charts_show_the_best_of_each_family() -> None:
    adapter = machine.many_variants(30)
    result = compared(*adapter.baselines, adapter=adapter, seeds=2)
    assert result.representatives == ("shortest-1", "arrival-0", "longest-2")
    few = compared(*adapter.baselines[:6], adapter=adapter, seeds=2)
    assert few.representatives == few.policies


def test_oracle_is_never_the_best_baseline() -> None:
    oracle = machine.with_oracles("shortest")
    result = compared("arrival", "longest", "shortest", "learned", adapter=oracle)
    assert result.policies[0] == "shortest"
    assert result.best_baseline == "arrival"
    assert result.differences["shortest"].percent < 0
    assert as_json(result, [])["oracles"] == ["shortest"]
    alone = compared("shortest", adapter=oracle)
    assert (alone.best_baseline, alone.differences) == (None, {})


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
    assert statistics.interquartile_mean(np.array(values)) == mean


@pytest.mark.parametrize("seeds", [8, 20])
def test_interval_covers_the_true_mean_95_times_in_100(seeds: int) -> None:
    samples = np.random.default_rng(seeds).normal(10.0, 3.0, (500, seeds))
    intervals = [summarise(sample).interval for sample in samples]
    held = np.mean([interval.low <= 10.0 <= interval.high for interval in intervals])
    assert held == pytest.approx(0.95, abs=0.02)  # the standard error is one point


def test_interval_of_skewed_values_is_asymmetric() -> None:
    summary = summarise(np.random.default_rng(3).lognormal(0.0, 1.2, 40))
    assert summary.interval.high - summary.mean > summary.mean - summary.interval.low


def test_pairing_tightens_the_interval_of_correlated_results() -> None:
    generator = np.random.default_rng(5)
    hardness = generator.normal(100, 30, 20)  # of the job sequence, for every policy
    ours = hardness + 5 + generator.normal(0, 2, 20)
    theirs = hardness + generator.normal(0, 2, 20)
    paired = paired_difference(ours, theirs)
    unpaired = summarise(ours).interval
    assert paired.mean == pytest.approx(float(np.mean(ours - theirs)))
    assert (paired.interval.excludes_zero, paired.percent_interval.excludes_zero) == (True, True)
    width = paired.interval.high - paired.interval.low
    assert width < 0.15 * (unpaired.high - unpaired.low)
    assert paired.percent == pytest.approx(100 * (ours.mean() / theirs.mean() - 1))
    assert paired.percent_interval.low < paired.percent < paired.percent_interval.high
    back = paired_difference(theirs, ours)
    assert (back.mean, back.interval.high) == pytest.approx((-paired.mean, -paired.interval.low))


def test_equal_policies_include_zero() -> None:
    same, noise = np.random.default_rng(6).normal(50, 5, (2, 30))
    assert not paired_difference(same + noise - noise.mean(), same).interval.excludes_zero
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
    monkeypatch.setattr(statistics, "CELLS_MAX", 150_000)
    values = np.arange(101.0)  # no other test has as many
    means = resampled_means(values)
    assert len(means) == 150_000 // 101
    assert means.mean() == pytest.approx(values.mean(), rel=0.01)
