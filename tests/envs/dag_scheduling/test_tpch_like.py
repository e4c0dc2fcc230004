"""tpch-like against the statistics of the published profiles."""

import numpy as np
import pytest
from numpy.typing import NDArray

from loadmaster.envs.dag_scheduling.jobs import FIRST, FRESH, REST, Workload
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.workloads import load_workload, synthetic
from tests.envs.dag_scheduling.cluster import simulate
from tests.traces import needs_traces

SLOWER_FIRST = {  # percentiles of the ratio to later tasks, and their tolerances
    FIRST: ((1.1, 1.8, 3.1, 6.1, 18), (0.1, 0.1, 0.1, 0.1, 0.3)),
    FRESH: ((1.3, 2.0, 2.3, 14.6, 45), (0.35, 0.1, 0.1, 0.35, 0.35)),
}
SLOWER_AT = {  # executors: 10th, 50th and 90th percentile of the ratio to 5 executors
    10: (0.98, 1.09, 1.33),
    20: (1.02, 1.30, 1.74),
    40: (1.12, 1.75, 2.66),
    50: (1.16, 1.95, 3.12),
    60: (1.19, 2.15, 3.52),
    80: (1.29, 2.53, 4.39),
    100: (1.39, 2.96, 5.05),
}


@pytest.fixture(scope="module")
def like() -> Workload:
    return load_workload(DagSchedulingSettings())


@pytest.fixture(scope="module")
def means(like: Workload) -> NDArray[np.float64]:
    """(S, 3, L) Mean duration of each list; nan where another wave's list serves."""
    bank = like.bank
    starts = np.unique(bank.wave_first)
    sums = np.add.reduceat(bank.durations_ms, starts)
    mean = (sums / np.diff(starts, append=len(bank.durations_ms)))[
        np.searchsorted(starts, bank.wave_first)
    ]
    fresh, first, rest = (bank.wave_first[:, wave] for wave in (FRESH, FIRST, REST))
    mean[:, REST][(rest == first) | (rest == fresh)] = np.nan
    mean[:, FIRST][(first == fresh) & (bank.cold_start == 0)] = np.nan
    mean[:, FRESH][bank.cold_start == 1] = np.nan
    return mean


def percentiles(ratio: NDArray[np.float64], *ranks: int) -> NDArray[np.float64]:
    """5th, 25th, 50th, 75th and 95th percentile, or others."""
    return np.percentile(ratio[~np.isnan(ratio)], ranks or (5, 25, 50, 75, 95))


def test_stages_and_tasks_equal_the_published(like: Workload) -> None:
    bank, stages = like.bank, np.diff(like.bank.first_stage)
    assert (len(stages), round(stages.mean(), 2)) == (154, 9.18)
    assert (stages.min(), stages.max()) == (2, 18) == (2, like.stages_max)
    assert (np.bincount(np.diff(bank.parent_first)) / 7).tolist() == [78, 64, 57, 3]
    tasks = np.add.reduceat(bank.tasks, bank.first_stage[:-1]).reshape(7, 22).mean(axis=1)
    assert tasks[[0, -1]] == pytest.approx([912, 1575], rel=0.01)
    assert (np.diff(tasks) > 0).all()
    assert np.percentile(bank.tasks, [0, 25, 50, 95, 100]).tolist() == [1, 3, 200, 200, 593]
    cpu, memory = bank.demand.T
    assert not cpu.any()
    assert 0 < memory.min() < memory.max() <= 1


def test_work_and_durations_equal_the_published(like: Workload) -> None:
    sizes = [name.split("-")[2] for name in like.job_names[::22]]
    assert sizes == ["2g", "5g", "10g", "20g", "50g", "80g", "100g"]
    bank, work_s = like.bank, like.bank.work_ms / 1000
    assert work_s.mean() == pytest.approx(935, rel=0.03)
    by_size = work_s.reshape(7, 22).mean(axis=1)
    assert by_size == pytest.approx([203, 269, 380, 589, 1152, 1743, 2209], rel=0.04)
    heaviest = np.sort(work_s)[::-1][: round(0.23 * len(work_s))]
    assert heaviest.sum() / work_s.sum() == pytest.approx(0.60, abs=0.02)
    assert percentiles(bank.mean_ms) == pytest.approx([35, 122, 357, 2270, 3828], rel=0.20)
    stages = np.split(bank.durations_ms, bank.wave_first[1:].min(axis=(1, 2)))  # lists are adjacent
    variation = np.array([np.std(each) / np.mean(each) for each in stages])
    assert percentiles(variation) == pytest.approx([0.13, 0.29, 0.57, 1.14, 1.82], rel=0.2)


@pytest.mark.parametrize("wave", SLOWER_FIRST)
def test_first_tasks_in_a_stage_or_job_take_longer(means: NDArray[np.float64], wave: int) -> None:
    published, tolerance = SLOWER_FIRST[wave]
    found = percentiles(means[:, wave] / means[:, REST])
    assert (np.abs(found / published - 1) <= tolerance).all()


@pytest.mark.parametrize("level", SLOWER_AT)
def test_more_executors_slow_tasks_down(
    like: Workload, means: NDArray[np.float64], level: int
) -> None:
    column = like.bank.levels.tolist().index(level)
    ratio = means[:, REST, column] / means[:, REST, 0]
    assert percentiles(ratio, 10, 50, 90) == pytest.approx(SLOWER_AT[level], rel=0.15)


def test_more_executors_slow_short_tasks_most(like: Workload, means: NDArray[np.float64]) -> None:
    at_5, at_50 = means[:, REST, 0], means[:, REST, 4]
    wide = like.bank.tasks >= 100
    assert percentiles((at_50 / at_5)[wide & (at_5 < 50)], 50) > 1.8
    assert 1.05 < percentiles((at_50 / at_5)[wide & (at_5 > 1000)], 50) < 1.3


def test_generation_is_deterministic_and_cached(like: Workload) -> None:
    synthetic.tpch_like.cache_clear()
    again = load_workload(DagSchedulingSettings())
    assert again is not like
    for field, expected in zip(again.bank, like.bank, strict=True):
        np.testing.assert_array_equal(field, expected)
    assert load_workload(DagSchedulingSettings(executors=7)) is again


@needs_traces
def test_policies_rank_as_on_the_published_profiles() -> None:
    like, real = (
        [
            np.mean([simulate(policy, seed, workload=workload).mean_jct_s for seed in range(8)])
            for policy in ("fair", "sjf-cp", "fifo")
        ]
        for workload in (None, load_workload(DagSchedulingSettings(workload="tpch")))
    )
    assert like == sorted(like)
    assert real == sorted(real)
    assert like == pytest.approx(real, rel=0.10)
