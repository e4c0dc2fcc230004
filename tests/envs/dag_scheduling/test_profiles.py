"""Which duration list serves where a profile has a gap."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loadmaster.envs.dag_scheduling.jobs import (
    FIRST,
    FRESH,
    REST,
    Job,
    JobTemplates,
    Stage,
    build_workload,
)
from loadmaster.envs.errors import InputError


def durations(bank: JobTemplates, stage: int, wave: int, level: int) -> list[int]:
    column = bank.levels.tolist().index(level)
    start, count = bank.wave_first[stage, wave, column], bank.wave_count[stage, wave, column]
    return bank.durations_ms[start : start + count].tolist()


def bank_of(*stages: Stage) -> JobTemplates:
    return build_workload("w", [Job("j", stages)]).bank


def test_every_list_is_found_where_it_was_measured() -> None:
    bank = bank_of(
        Stage(
            4,
            (),
            first={5: [11], 10: [12, 13]},
            rest={5: [21], 10: [22]},
            fresh={5: [31], 10: [32]},
        )
    )
    assert bank.levels.tolist() == [5, 10]
    assert durations(bank, 0, FIRST, 10) == [12, 13]
    assert durations(bank, 0, REST, 5) == [21]
    assert durations(bank, 0, FRESH, 10) == [32]
    assert bank.cold_start.tolist() == [[0, 0]]
    assert bank.mean_ms[0] == np.mean([11, 12, 13, 21, 22, 31, 32])


def test_gaps_are_filled_from_the_likeliest_list() -> None:
    bank = bank_of(
        Stage(4, (), first={5: [11], 10: []}, rest={5: [], 10: [22]}, fresh={5: [], 10: [32]}),
        Stage(4, (), first={10: [50]}),
    )
    assert durations(bank, 0, FRESH, 5) == [11]  # and the simulator adds a warm-up
    assert bank.cold_start[0].tolist() == [1, 0]
    assert durations(bank, 0, REST, 5) == [11]
    assert durations(bank, 0, FIRST, 10) == [32]
    assert durations(bank, 1, REST, 5) == [50]  # never measured at 5: the largest level there is


def test_a_level_beyond_the_stage_takes_its_largest() -> None:
    bank = bank_of(
        Stage(4, (), first={5: [1], 10: [2], 20: [3]}),
        Stage(4, (), first={5: [4], 12: [5]}),
    )
    assert bank.levels.tolist() == [5, 10, 12, 20]
    assert [durations(bank, 1, FIRST, level) for level in (5, 10, 20)] == [[4], [5], [5]]


def test_a_list_that_serves_twice_is_stored_once_and_counts_twice() -> None:
    shared = [10, 20]
    bank = bank_of(Stage(4, (), first={5: shared, 10: shared}, rest={5: [0]}))
    assert len(bank.durations_ms) == 3
    assert bank.mean_ms[0] == 60 / 5


def test_a_given_mean_is_kept_and_arrays_do_as_well_as_lists() -> None:
    bank = bank_of(
        Stage(4, (), first={5: np.array([10, 20])}, mean_ms=99.5), Stage(2, (0,), first={5: [4]})
    )
    assert bank.mean_ms.tolist() == [99.5, 4]
    assert bank.work_ms.tolist() == [4 * 99.5 + 2 * 4]
    assert bank.critical_ms.tolist() == [103.5, 4]


@pytest.mark.parametrize("bad", [[-1], [2**31], [float("nan")], np.array([1, -5])])
def test_impossible_durations_are_refused(bad: Any) -> None:
    with pytest.raises(InputError, match="job 'j': stage 1 has a task duration of"):
        bank_of(Stage(1, (), first={5: [1]}), Stage(1, (), first={5: [1]}, rest={5: bad}))


def test_a_stage_without_durations_is_refused() -> None:
    with pytest.raises(InputError, match="job 'j': stage 0 has no task durations"):
        bank_of(Stage(1, (), first={5: []}))
