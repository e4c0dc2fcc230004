"""Guard: bounds, steps, totals, stabilisation, flapping."""

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


def applied(guard: Guard, current: float, proposed: float, now_s: float = 0.0) -> float:
    result = guard.apply([Quantity("web", current, proposed)], now_s)
    return result.allowed.get("web", proposed)


def test_nothing_changes_by_default() -> None:
    result = Guard(GuardSettings()).apply([Quantity("web", 3, 400)], 0.0)
    assert result == ({}, (), ())


def test_bounds_are_applied_and_reported() -> None:
    guard = Guard(GuardSettings(minimum=2, maximum=8))
    result = guard.apply([Quantity("web", 5, 12), Quantity("db", 5, 1)], 0.0)
    assert result.allowed == {"web": 8, "db": 2}
    assert result.messages == ("bounds: web from 12 to 8", "bounds: db from 1 to 2")
    assert result.kinds == (guards.BOUNDS, guards.BOUNDS)


def test_a_step_counts_from_the_current_value() -> None:
    guard = Guard(GuardSettings(step=2))
    assert applied(guard, 5, 9) == 7
    assert applied(guard, 5, 1) == 3
    assert applied(guard, 5, 6) == 6


def test_a_total_reduces_the_last_that_rise() -> None:
    guard = Guard(GuardSettings(total=10))
    quantities = [Quantity("a", 2, 5), Quantity("b", 2, 5), Quantity("c", 4, 3)]
    assert guard.apply(quantities, 0.0).allowed == {"b": 2}


def test_an_exceeded_total_prevents_rises_only() -> None:
    guard = Guard(GuardSettings(total=5))
    assert guard.apply([Quantity("a", 8, 9), Quantity("b", 1, 1)], 0.0).allowed == {"a": 8}


def test_stabilisation_delays_a_fall() -> None:
    guard = Guard(GuardSettings(stabilisation_s=60, flaps=None))
    assert applied(guard, 4, 8, now_s=0) == 8
    assert applied(guard, 8, 3, now_s=30) == 8
    assert applied(guard, 8, 5, now_s=59) == 8
    assert applied(guard, 8, 3, now_s=61) == 5  # 30 s ago 3 was proposed, 2 s ago still 5
    assert applied(guard, 5, 3, now_s=120) == 3
    assert applied(guard, 3, 9, now_s=121) == 9  # a rise is not delayed


def test_a_quantity_that_flaps_is_held() -> None:
    guard = Guard(GuardSettings(flaps=2, flap_window_s=100))
    assert applied(guard, 1, 2, now_s=0) == 2
    assert applied(guard, 2, 1, now_s=1) == 1  # the first turn
    assert applied(guard, 1, 2, now_s=2) == 2  # the second
    result = guard.apply([Quantity("web", 2, 1)], 3.0)
    assert result.allowed == {"web": 2}
    assert result.kinds == (guards.FLAP,)
    assert applied(guard, 2, 4, now_s=4) == 4  # the same direction is not a turn
    assert applied(guard, 4, 1, now_s=102) == 1  # the first turns have expired


def test_quantities_flap_independently() -> None:
    guard = Guard(GuardSettings(flaps=0))
    guard.apply([Quantity("a", 1, 2)], 0.0)
    assert guard.apply([Quantity("a", 2, 1)], 1.0).allowed == {"a": 2}
    assert guard.apply([Quantity("b", 2, 1)], 1.0).allowed == {}


def test_the_number_of_histories_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "MAX_QUANTITIES", 3)
    guard = Guard(GuardSettings(flaps=0))
    for name in "abcd":
        guard.apply([Quantity(name, 1, 2)], 0.0)
    assert guard.apply([Quantity("a", 2, 1)], 1.0).allowed == {}  # the history of a was dropped
    assert guard.apply([Quantity("d", 2, 1)], 1.0).allowed == {"d": 2}


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=20), st.floats(0.1, 1e5))
def test_bounds_and_steps_hold_for_any_history(
    moves: list[tuple[float, float]], step: float
) -> None:
    guard = Guard(GuardSettings(minimum=-100, maximum=100, step=step, stabilisation_s=3, flaps=1))
    for now_s, (current, proposed) in enumerate(moves):
        current = min(max(current, -100), 100)
        allowed = applied(guard, current, proposed, float(now_s))
        assert -100 <= allowed <= 100
        assert abs(allowed - current) <= step * (1 + 1e-9)


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"minimum": 3, "maximum": 2}, "minimum 3"),
        ({"step": 0}, "step"),
        ({"stabilisation_s": -1}, "stabilisation_s"),
        ({"flap": 3}, "flaps"),
    ],
)
def test_wrong_settings_are_refused(values: dict[str, float], line: str) -> None:
    with pytest.raises(InputError, match=line):
        build_settings(GuardSettings, values)
