"""tpch-like against the statistics of the published profiles, each with its tolerance."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from loadmaster.envs.dag_scheduling.episode import run_episode
from loadmaster.envs.dag_scheduling.jobs import FIRST, FRESH, REST, Workload
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.workloads import load_workload, synthetic
from tests.traces import needs_traces

# 5th, 25th, 50th, 75th and 95th percentile.
SPREAD = (5, 25, 50, 75, 95)


@pytest.fixture(scope="module")
def like() -> Workload:
    return load_workload(DagSchedulingSettings())


class Ratios(NamedTuple):
    """Between mean durations of a stage's waves at one level."""

    first_to_rest: list[float]
    fresh_to_rest: list[float]
    rest_to_five: dict[int, list[float]]  # by level: rest wave there to rest wave at 5 executors


@pytest.fixture(scope="module")
def ratios(like: Workload) -> Ratios:
    bank = like.bank
    found = Ratios([], [], defaultdict(list))
    means = np.add.reduceat(bank.durations_ms, np.unique(bank.wave_first)) / np.diff(
        np.append(np.unique(bank.wave_first), len(bank.durations_ms))
    )
    mean = means[np.searchsorted(np.unique(bank.wave_first), bank.wave_first)]  # (S, 3, L)
    first_is_own = bank.wave_first[:, FIRST] != bank.wave_first[:, FRESH]
    rest_is_own = (bank.wave_first[:, REST] != bank.wave_first[:, FIRST]) & (
        bank.wave_first[:, REST] != bank.wave_first[:, FRESH]
    )
    fresh_is_own = bank.cold_start == 0
    ratio = mean / mean[:, REST : REST + 1]
    found.first_to_rest.extend(ratio[:, FIRST][rest_is_own & (first_is_own | ~fresh_is_own)])
    found.fresh_to_rest.extend(ratio[:, FRESH][rest_is_own & fresh_is_own])
    for column, level in enumerate(bank.levels.tolist()):
        both = rest_is_own[:, column] & rest_is_own[:, 0]
        found.rest_to_five[level] = (mean[both, REST, column] / mean[both, REST, 0]).tolist()
    return found


def by_size(like: Workload, per_job: NDArray[np.float64]) -> list[float]:
    """Mean over the 22 queries of each of the 7 sizes."""
    assert [name.split("-")[2] for name in like.job_names[::22]] == [
        "2g", "5g", "10g", "20g", "50g", "80g", "100g",
    ]  # fmt: skip
    return per_job.reshape(7, 22).mean(axis=1).tolist()


def test_stages_and_their_parents(like: Workload) -> None:
    stages = np.diff(like.bank.first_stage)
    assert len(stages) == 154
    assert round(stages.mean(), 2) == 9.18
    assert (stages.min(), stages.max()) == (2, 18) == (2, like.stages_max)
    parents = np.bincount(np.diff(like.bank.parent_first))
    assert (parents / 7).tolist() == [78, 64, 57, 3]


def test_tasks_rise_with_the_size(like: Workload) -> None:
    tasks = by_size(like, np.add.reduceat(like.bank.tasks, like.bank.first_stage[:-1]))
    assert tasks[0] == pytest.approx(912, rel=0.01)
    assert tasks[-1] == pytest.approx(1575, rel=0.01)
    assert (np.diff(tasks) > 0).all()
    assert np.percentile(like.bank.tasks, [0, 25, 50, 95, 100]).tolist() == [1, 3, 200, 200, 593]


def test_work(like: Workload) -> None:
    work = like.bank.work_ms / 1000
    assert work.mean() == pytest.approx(935, rel=0.03)
    sizes = by_size(like, work)
    assert sizes == pytest.approx([203, 269, 380, 589, 1152, 1743, 2209], rel=0.04)
    heaviest = np.sort(work)[::-1][: round(0.23 * len(work))]
    assert heaviest.sum() / work.sum() == pytest.approx(0.60, abs=0.02)


def test_mean_durations_of_stages(like: Workload) -> None:
    percentiles = np.percentile(like.bank.mean_ms, SPREAD)
    assert percentiles == pytest.approx([35, 122, 357, 2270, 3828], rel=0.20)


def test_spread_within_a_stage(like: Workload) -> None:
    bank = like.bank
    ends = [
        *bank.wave_first[1:].reshape(len(bank.tasks) - 1, -1).min(axis=1),
        len(bank.durations_ms),
    ]
    stages = np.split(bank.durations_ms, ends[:-1])  # a stage's lists lie together
    variation = [float(np.std(each) / np.mean(each)) for each in stages]
    assert np.percentile(variation, SPREAD) == pytest.approx(
        [0.13, 0.29, 0.57, 1.14, 1.82], rel=0.2
    )


def test_first_tasks_in_a_stage_take_longer(ratios: Ratios) -> None:
    percentiles = np.percentile(ratios.first_to_rest, SPREAD)
    assert percentiles[:4] == pytest.approx([1.1, 1.8, 3.1, 6.1], rel=0.10)
    assert percentiles[4] == pytest.approx(18, rel=0.30)


def test_first_tasks_in_a_job_take_longest(ratios: Ratios) -> None:
    percentiles = np.percentile(ratios.fresh_to_rest, SPREAD)
    assert percentiles[1:3] == pytest.approx([2.0, 2.3], rel=0.10)
    assert percentiles[[0, 3, 4]] == pytest.approx([1.3, 14.6, 45], rel=0.35)


def test_more_executors_slow_every_task_down(ratios: Ratios) -> None:
    """The diminishing return that makes a parallelism limit worth learning."""
    measured = {e: np.percentile(r, [10, 50, 90]) for e, r in ratios.rest_to_five.items()}
    for level, published in {
        10: (0.98, 1.09, 1.33),
        20: (1.02, 1.30, 1.74),
        40: (1.12, 1.75, 2.66),
        50: (1.16, 1.95, 3.12),
        60: (1.19, 2.15, 3.52),
        80: (1.29, 2.53, 4.39),
        100: (1.39, 2.96, 5.05),
    }.items():
        assert measured[level] == pytest.approx(published, rel=0.15), level


def test_short_tasks_suffer_most_from_more_executors(like: Workload) -> None:
    bank = like.bank
    start, count = bank.wave_first[:, REST], bank.wave_count[:, REST]
    rest = np.array(
        [
            [bank.durations_ms[s : s + c].mean() for s, c in zip(*row, strict=True)]
            for row in zip(start[:, [0, 4]], count[:, [0, 4]], strict=True)
        ]
    )
    wide = bank.tasks >= 100
    slowdown = rest[:, 1] / rest[:, 0]
    short, long = wide & (rest[:, 0] < 50), wide & (rest[:, 0] > 1000)
    assert np.median(slowdown[short]) > 1.8
    assert 1.05 < np.median(slowdown[long]) < 1.3


def test_demands_are_for_memory_alone(like: Workload) -> None:
    assert (like.bank.demand[:, 0] == 0).all()
    assert like.bank.demand[:, 1].min() > 0
    assert like.bank.demand[:, 1].max() <= 1


def test_the_bank_is_the_same_every_time_and_quickly_there(like: Workload) -> None:
    began = time.process_time()
    synthetic.tpch_like.cache_clear()
    again = load_workload(DagSchedulingSettings())
    took = time.process_time() - began
    assert again is not like
    for field, expected in zip(again.bank, like.bank, strict=True):
        np.testing.assert_array_equal(field, expected)
    assert load_workload(DagSchedulingSettings(executors=7)) is again
    assert took < 1.0  # 0.15 s on a quiet core


@needs_traces
def test_schedulers_do_as_well_and_rank_as_on_the_real_profiles() -> None:
    """The same queries at the same sizes arrive in both, so few seeds tell."""
    jct = {}
    for workload in ("tpch", "tpch-like"):
        settings = DagSchedulingSettings(workload=workload)
        jct[workload] = {
            policy: np.mean([run_episode(policy, settings, seed).mean_jct_s for seed in range(8)])
            for policy in ("fifo", "sjf-cp", "fair")
        }
    for figures in jct.values():
        assert figures["fair"] < figures["sjf-cp"] < figures["fifo"]
    for policy, expected in jct["tpch"].items():
        assert jct["tpch-like"][policy] == pytest.approx(expected, rel=0.10)
