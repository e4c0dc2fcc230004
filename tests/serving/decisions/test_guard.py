"""The guard: bounds, steps, totals, stabilisation, flaps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings
from loadmaster.serving.decisions import guard as guards
from loadmaster.serving.decisions.guard import Guard, GuardSettings
from loadmaster.serving.system import Quantity

numbers = st.floats(-1e6, 1e6)


def ruled(guard: Guard, current: float, proposed: float, now_s: float = 0.0) -> float:
    ruling = guard.rule([Quantity("web", current, proposed)], now_s)
    return ruling.allowed.get("web", proposed)


def test_nothing_is_changed_by_default() -> None:
    ruling = Guard(GuardSettings()).rule([Quantity("web", 3, 400)], 0.0)
    assert ruling == ({}, (), ())


def test_bounds_and_what_is_said_of_them() -> None:
    guard = Guard(GuardSettings(minimum=2, maximum=8))
    ruling = guard.rule([Quantity("web", 5, 12), Quantity("db", 5, 1)], 0.0)
    assert ruling.allowed == {"web": 8, "db": 2}
    assert ruling.said == ("bounds: web from 12 to 8", "bounds: db from 1 to 2")
    assert ruling.kinds == (guards.BOUNDS, guards.BOUNDS)


def test_a_step_is_counted_from_where_things_are() -> None:
    guard = Guard(GuardSettings(step=2))
    assert ruled(guard, 5, 9) == 7
    assert ruled(guard, 5, 1) == 3
    assert ruled(guard, 5, 6) == 6


def test_of_a_total_the_last_to_rise_give_way() -> None:
    guard = Guard(GuardSettings(total=10))
    quantities = [Quantity("a", 2, 5), Quantity("b", 2, 5), Quantity("c", 4, 3)]
    assert guard.rule(quantities, 0.0).allowed == {"b": 2}


def test_a_total_that_is_passed_already_lets_nothing_rise_and_cuts_nothing() -> None:
    guard = Guard(GuardSettings(total=5))
    assert guard.rule([Quantity("a", 8, 9), Quantity("b", 1, 1)], 0.0).allowed == {"a": 8}


def test_falling_waits_for_the_window() -> None:
    guard = Guard(GuardSettings(stabilisation_s=60, flaps=None))
    assert ruled(guard, 4, 8, now_s=0) == 8
    assert ruled(guard, 8, 3, now_s=30) == 8
    assert ruled(guard, 8, 5, now_s=59) == 8
    assert ruled(guard, 8, 3, now_s=61) == 5, "30 s ago 3 was proposed, 2 s ago still 5"
    assert ruled(guard, 5, 3, now_s=120) == 3
    assert ruled(guard, 3, 9, now_s=121) == 9, "rising never waits"


def test_what_turns_too_often_holds_still_for_a_while() -> None:
    guard = Guard(GuardSettings(flaps=2, flap_window_s=100))
    assert ruled(guard, 1, 2, now_s=0) == 2
    assert ruled(guard, 2, 1, now_s=1) == 1  # the first turn
    assert ruled(guard, 1, 2, now_s=2) == 2  # the second
    ruling = guard.rule([Quantity("web", 2, 1)], 3.0)
    assert ruling.allowed == {"web": 2}
    assert ruling.kinds == (guards.FLAP,)
    assert ruled(guard, 2, 4, now_s=4) == 4, "the same direction is no turn"
    assert ruled(guard, 4, 1, now_s=102) == 1, "the first turns are forgotten"


def test_others_flapping_is_nobody_elses_concern() -> None:
    guard = Guard(GuardSettings(flaps=0))
    guard.rule([Quantity("a", 1, 2)], 0.0)
    assert guard.rule([Quantity("a", 2, 1)], 1.0).allowed == {"a": 2}
    assert guard.rule([Quantity("b", 2, 1)], 1.0).allowed == {}


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "REMEMBERED", 3)
    guard = Guard(GuardSettings(flaps=0))
    for name in "abcd":
        guard.rule([Quantity(name, 1, 2)], 0.0)
    assert guard.rule([Quantity("a", 2, 1)], 1.0).allowed == {}, "a was forgotten"
    assert guard.rule([Quantity("d", 2, 1)], 1.0).allowed == {"d": 2}


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=20), st.floats(0.1, 1e5))
def test_no_history_leads_past_bounds_and_steps(
    moves: list[tuple[float, float]], step: float
) -> None:
    guard = Guard(GuardSettings(minimum=-100, maximum=100, step=step, stabilisation_s=3, flaps=1))
    for now_s, (current, proposed) in enumerate(moves):
        current = min(max(current, -100), 100)
        allowed = ruled(guard, current, proposed, float(now_s))
        assert -100 <= allowed <= 100
        assert abs(allowed - current) <= step * (1 + 1e-9)


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"minimum": 3, "maximum": 2}, "minimum 3 is above maximum 2"),
        ({"step": 0}, "step"),
        ({"stabilisation_s": -1}, "stabilisation_s"),
        ({"flap": 3}, "did you mean 'flaps'"),
    ],
)
def test_settings_that_make_no_sense(values: dict[str, float], line: str) -> None:
    with pytest.raises(InputError, match=line):
        build_settings(GuardSettings, values)
