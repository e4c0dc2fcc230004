"""Guard: bounds, steps, totals, stabilisation, flapping."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings
from loadmaster.serving.decisions import guard as guards
from loadmaster.serving.decisions.guard import (
    Guard,
    GuardResult,
    GuardSettings,
    restore_history,
)
from loadmaster.serving.system import Quantity

numbers = st.floats(-1e6, 1e6)


def applied(guard: Guard, current: float, proposed: float, now_s: float = 0.0) -> float:
    return carried_out(guard, [Quantity("web", current, proposed)], now_s).allowed.get(
        "web", proposed
    )


def carried_out(guard: Guard, quantities: list[Quantity], now_s: float) -> GuardResult:
    result = guard.apply(quantities, now_s)
    guard.commit(quantities, result, now_s)
    return result


@pytest.mark.parametrize(
    ("limits", "moves"),  # of current, proposed, time, allowed
    [
        ({}, [(3, 400, 0, 400)]),
        ({"minimum": 2, "maximum": 8}, [(5, 12, 0, 8), (5, 1, 0, 2)]),
        ({"step": 2}, [(5, 9, 0, 7), (5, 1, 0, 3), (5, 6, 0, 6)]),  # from the current value
        # 1 more or less is always allowed, from 0 and 1 too.
        ({"factor": 1.5}, [(10, 40, 0, 15), (12, 2, 0, 8), (1, 4, 0, 2), (0, 3, 0, 1)]),
        # 61 s: 30 s ago 3 was proposed, 2 s ago still 5. The last is a rise, which is not delayed.
        ({"stabilisation_s": 60, "flaps": None}, [(4, 8, 0, 8), (8, 3, 30, 8), (8, 5, 59, 8),
         (8, 3, 61, 5), (5, 3, 120, 3), (3, 9, 121, 9)]),
        # Turns at 1 and 2 s, a third is refused; 4 s: the same direction; then they have expired.
        ({"flaps": 2, "flap_window_s": 100}, [(1, 2, 0, 2), (2, 1, 1, 1), (1, 2, 2, 2),
         (2, 1, 3, 2), (2, 4, 4, 4), (4, 1, 102, 1)]),
    ],
)  # fmt: skip
def test_limits_of_one_quantity(limits: dict[str, Any], moves: list[tuple[float, ...]]) -> None:
    guard = Guard(GuardSettings(**limits))
    for current, proposed, now_s, allowed in moves:
        assert applied(guard, current, proposed, now_s) == allowed


def test_limits_are_by_kind() -> None:
    """The guard's own are of quantities without a kind; only the factor has no unit."""
    kinds = {"cpu": {"minimum": 100, "step": 50, "total": 300, "factor": 3}}
    guard = Guard(GuardSettings.model_validate({"maximum": 8, "total": 10, "kinds": kinds}))
    many = [
        Quantity("a", 2, 9), Quantity("b", 2, 4), Quantity("x", 120, 190, kind="cpu"),
        Quantity("y", 120, 90, kind="cpu"), Quantity("z", 70, 100, kind="cpu"),
        Quantity("m", 500, 9000, kind="memory"),
    ]  # fmt: skip
    result = carried_out(guard, many, 0.0)
    assert result.allowed == {"a": 8, "b": 2, "x": 130 + 0, "y": 100, "z": 70}
    guard = Guard(GuardSettings(factor=2))
    result = carried_out(guard, [Quantity("m", 500, 9000, kind="memory")], 0.0)
    assert result.allowed == {"m": 1000}


def test_unknown_kinds_are_refused() -> None:
    settings = GuardSettings.model_validate({"kinds": {"cpu": {"step": 1}}})
    settings.check_kinds(("cpu", "memory"))
    with pytest.raises(InputError, match="'cpu'"):
        settings.check_kinds(("cpu_m",))
    with pytest.raises(InputError):
        build_settings(GuardSettings, {"kinds": {"cpu": {"minimum": 2, "maximum": 1}}})


def test_changes_are_reported() -> None:
    guard = Guard(GuardSettings(minimum=2, maximum=8, flaps=0))
    result = carried_out(guard, [Quantity("web", 5, 12), Quantity("db", 5, 1)], 0.0)
    assert result[:3] == (
        {"web": 8, "db": 2},
        ("bounds: web from 12 to 8", "bounds: db from 1 to 2"),
        (guards.BOUNDS, guards.BOUNDS),
    )
    assert guard.apply([Quantity("web", 8, 7)], 1.0).kinds == (guards.FLAP,)


@pytest.mark.parametrize(
    ("limits", "backlog", "held"),  # seconds of a backlog, and its growth
    [
        ({}, (300.0, 5.0), False),
        ({}, (301.0, -0.5), True),  # it drains, and is not yet gone
        ({"backlog_s": None}, (1e6, 5.0), False),
        ({"backlog_s": 10}, (11.0, 0.0), True),
        ({"backlog_growth": 0.1}, (1.0, 0.05), False),
        ({"backlog_growth": 0.1}, (1.0, 0.2), True),
    ],
)
def test_nothing_falls_while_a_backlog_lasts(
    limits: dict[str, Any], backlog: tuple[float, float], held: bool
) -> None:
    guard = Guard(GuardSettings(**limits))
    falls, rises = Quantity("a", 5, 2, *backlog), Quantity("b", 5, 9, *backlog)
    result = guard.apply([falls, rises], 0.0)
    assert result.allowed == ({"a": 5} if held else {})
    assert result.kinds == ((guards.BACKLOG,) if held else ())


@pytest.mark.parametrize(
    ("total", "quantities", "allowed"),
    [
        (10, [("a", 2, 5), ("b", 2, 5), ("c", 4, 3)], {"b": 2}),  # the last that rise
        (5, [("a", 8, 9), ("b", 1, 1)], {"a": 8}),  # an exceeded total prevents rises only
    ],
)
def test_a_total_reduces_rises(
    total: float, quantities: list[tuple[str, float, float]], allowed: dict[str, float]
) -> None:
    guard = Guard(GuardSettings(total=total))
    assert guard.apply([Quantity(*one) for one in quantities], 0.0).allowed == allowed


def test_the_number_of_histories_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "MAX_QUANTITIES", 3)
    guard = Guard(GuardSettings(flaps=0))
    for name in "abcd":
        carried_out(guard, [Quantity(name, 1, 2)], 0.0)
    assert guard.apply([Quantity("a", 2, 1)], 1.0).allowed == {}  # the history of a was dropped
    assert guard.apply([Quantity("d", 2, 1)], 1.0).allowed == {"d": 2}


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=20), st.floats(0.1, 1e5))
@settings(max_examples=50)
def test_bounds_and_steps_hold_for_any_moves(moves: list[tuple[float, float]], step: float) -> None:
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
        ({"factor": 1}, "factor"),
        ({"stabilisation_s": -1}, "stabilisation_s"),
        ({"flap": 3}, "flaps"),
    ],
)
def test_wrong_settings_are_refused(values: dict[str, float], line: str) -> None:
    with pytest.raises(InputError, match=line):
        build_settings(GuardSettings, values)


def test_results_that_are_not_carried_out_do_not_count() -> None:
    guard = Guard(GuardSettings(flaps=1, stabilisation_s=60))
    for now_s in range(20):
        guard.apply([Quantity("web", 2, 1 + 2 * (now_s % 2))], float(now_s))
    assert guard.histories == {}


def test_histories_are_restored_on_another_clock() -> None:
    changed: dict[str, Any] = {}
    guard = Guard(GuardSettings(flaps=2, stabilisation_s=30), changed.__setitem__)
    for now_s, proposed in ((100.0, 3), (131.0, 1), (140.0, 3)):
        applied(guard, 2, proposed, now_s)
    assert list(changed) == ["web"]
    record = changed["web"].record(1000.0)
    again = Guard(guard.settings)
    again.histories["web"] = restore_history(record, 1100.0, 41.0)
    assert again.histories["web"].turns == [31.0, 40.0]
    assert applied(again, 2, 1, 41.0) == applied(guard, 2, 1, 141.0) == 2
    assert restore_history(record, 0.0, 5.0).turns == [5.0, 5.0]  # a clock was set back
