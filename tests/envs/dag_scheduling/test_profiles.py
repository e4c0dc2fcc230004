"""Task durations: gaps in the lists of a stage, refused jobs, and draws in the simulator."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.envs.dag_scheduling.jobs import FIRST, FRESH, REST, JobTemplates, Stage
from loadmaster.envs.errors import InputError
from tests.envs.dag_scheduling.cluster import jct_ms, run, task_ms, workload_of


def durations(bank: JobTemplates, stage: int, wave: int, level: int) -> list[int]:
    column = bank.levels.tolist().index(level)
    start, count = bank.wave_first[stage, wave, column], bank.wave_count[stage, wave, column]
    return bank.durations_ms[start : start + count].tolist()


def bank_of(*stages: Stage) -> JobTemplates:
    return workload_of(stages).bank


def test_measured_lists_serve_their_level() -> None:
    bank = bank_of(
        Stage(4, (), {5: [11], 10: [12, 13]}, rest={5: [21], 10: [22]}, fresh={5: [31], 10: [32]})
    )
    assert bank.levels.tolist() == [5, 10]
    assert durations(bank, 0, FIRST, 10) == [12, 13]
    assert durations(bank, 0, REST, 5) == [21]
    assert durations(bank, 0, FRESH, 10) == [32]
    assert bank.cold_start.tolist() == [[0, 0]]
    assert bank.mean_ms[0] == np.mean([11, 12, 13, 21, 22, 31, 32])


def test_gaps_are_filled_from_the_nearest_list() -> None:
    bank = bank_of(
        Stage(4, (), first={5: [11], 10: []}, rest={5: [], 10: [22]}, fresh={5: [], 10: [32]}),
        Stage(4, (), first={5: [50], 12: [60]}),
    )
    assert bank.levels.tolist() == [5, 10, 12]
    assert durations(bank, 0, FRESH, 5) == [11]  # and the simulator adds a warm-up
    assert bank.cold_start[0].tolist() == [1, 0, 0]
    assert durations(bank, 0, REST, 5) == [11]
    assert durations(bank, 0, FIRST, 10) == [32]
    # Not measured at 10: the largest level.
    assert [durations(bank, 1, REST, level) for level in (5, 10, 12)] == [[50], [60], [60]]


def test_shared_list_is_stored_once_and_counts_twice() -> None:
    shared = [10, 20]
    bank = bank_of(Stage(4, (), first={5: shared, 10: shared}, rest={5: [0]}))
    assert len(bank.durations_ms) == 3
    assert bank.mean_ms[0] == 60 / 5


def test_given_mean_is_kept_and_arrays_are_accepted() -> None:
    bank = bank_of(
        Stage(4, (), first={5: np.array([10, 20])}, mean_ms=99.5), Stage(2, (0,), first={5: [4]})
    )
    assert bank.mean_ms.tolist() == [99.5, 4]
    assert bank.work_ms.tolist() == [4 * 99.5 + 2 * 4]
    assert bank.critical_ms.tolist() == [103.5, 4]


ONE = {5: [1]}


@pytest.mark.parametrize(
    ("stages", "problem"),
    [
        *(
            ([Stage(1, (), ONE), Stage(1, (), ONE, rest={5: bad})], "stage 1 has a task duration")
            for bad in ([-1], [2**31], [float("nan")], np.array([1, -5]))
        ),
        ([Stage(1, (), first={5: []})], "stage 0 has no task durations"),
        ([], "no stages"),
        ([Stage(0, (), ONE)], "stage 0 has 0 tasks"),
        ([Stage(1, (1,), ONE)], "stage 0 names parent 1"),
        ([Stage(1, (), ONE), Stage(1, (2,), ONE), Stage(1, (1,), ONE)], "cyclic: stage 1"),
    ],
)
def test_invalid_jobs_are_refused(stages: list[Stage], problem: str) -> None:
    with pytest.raises(InputError, match=f"job 'job-0'.*{problem}"):
        bank_of(*stages)


def test_warm_up_is_added_where_no_fresh_list_was_measured() -> None:
    # Move 2; an executor's first task 1 + 1, its second 1.
    cold = workload_of([Stage(4, (), first={1: [1000]})])
    for warmup, expected_ms in (({}, 5000), ({"warmup_s": 0.5}, 4500), ({"warmup_s": 0}, 4000)):
        assert jct_ms(run("fifo", cold, [(0, 0)], executors=2, **warmup)) == [expected_ms]


def test_durations_follow_the_wave() -> None:
    waves = {"fresh": {1: [1000]}, "first": {1: [300]}, "rest": {1: [20]}}
    workload = workload_of(
        [Stage(2, (), **waves), Stage(2, (), **waves), Stage(1, (0, 1), **waves)]
    )
    result = run("fifo", workload, [(0, 0)], executors=1, moving_delay_s=0)
    # Stage 0: fresh, then rest. Stage 1, straight from stage 0: first, then rest. Stage 2 unlocks,
    # for which the executor goes through the job's pool: fresh.
    assert task_ms(result) == [1000, 20, 300, 20, 1000]
    assert jct_ms(result) == [2340]


LEVELS = {5: [5], 10: [10]}  # a task's duration identifies its list
MANY = workload_of([Stage(20_000, (), first=LEVELS, rest=LEVELS, fresh=LEVELS)])


@pytest.mark.parametrize(
    ("interpolation", "share"),
    # 9 executors are a fifth of the way below 10: four times in five the 10-list is the better
    # guess. The published simulator has it the other way round.
    [("corrected", 0.8), ("as-published", 0.2)],
)
def test_level_is_drawn_between_two_measured_ones(interpolation: str, share: float) -> None:
    result = run("fifo", MANY, [(0, 0)], executors=9, interpolation=interpolation)
    settled = np.array(task_ms(result))[9:]  # before, not all nine had come
    error = np.sqrt(share * (1 - share) / len(settled))
    assert set(settled.tolist()) == {5, 10}
    assert abs((settled == 10).mean() - share) < 4 * error


@pytest.mark.parametrize(("executors", "only"), [(3, 5), (5, 5), (10, 10), (12, 10)])
def test_level_is_fixed_at_or_outside_measured_ones(executors: int, only: int) -> None:
    for interpolation in ("corrected", "as-published"):
        result = run("fifo", MANY, [(0, 0)], executors=executors, interpolation=interpolation)
        assert set(task_ms(result)[executors:]) == {only}


def test_durations_are_drawn_uniformly_from_the_list() -> None:
    drawn = {1: [0, 1, 2, 3]}
    workload = workload_of([Stage(20_000, (), first=drawn, rest=drawn, fresh=drawn)])
    counts = np.bincount(task_ms(run("fifo", workload, [(0, 0)], executors=1)))
    # Chi-square with 3 degrees of freedom: 16.3 is exceeded once in a thousand.
    assert ((counts - 5000) ** 2 / 5000).sum() < 16.3
