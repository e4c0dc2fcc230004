"""AWARE's Algorithm 1: its transitions, thresholds and invariants."""

import math
from statistics import stdev
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from loadmaster.serving.monitoring import lifecycle
from loadmaster.serving.monitoring.lifecycle import LifecycleSettings, LifecycleState, next_state

INITIALIZED, OFFLINE, ONLINE, SERVING = LifecycleState
STATES = st.sampled_from([OFFLINE, ONLINE, SERVING])
WINDOW = 4
REWARDS = st.lists(st.floats(-1e6, 1e6), min_size=WINDOW, max_size=3 * WINDOW)
PAPER = LifecycleSettings(window=WINDOW, z_threshold=0, deviation=2, retrain_offline=False)
RETRAIN = PAPER.model_copy(update={"retrain_offline": True})
TOLERANT = PAPER.model_copy(update={"z_threshold": 2.0, "deviation": 5.0})
SETTINGS = st.builds(
    LifecycleSettings,
    window=st.just(WINDOW),
    degradation=st.floats(0, 0.5),
    deviation=st.floats(0.1, 5),
    z_threshold=st.sampled_from([0.0, 1.0, 2.0]),
    bootstrap=st.booleans(),
    retrain_offline=st.booleans(),
)
RULES = [98.0, 100.0, 102.0, 100.0]  # mean 100, deviation 1.63
Case = tuple[LifecycleState, list[float], list[float], LifecycleSettings]
CASES = st.tuples(STATES, REWARDS, REWARDS, SETTINGS)  # arguments of `next_state`


@pytest.mark.parametrize(
    ("settings", "state", "rewards", "to"),
    [
        (LifecycleSettings(bootstrap=True), INITIALIZED, [], OFFLINE),
        (LifecycleSettings(bootstrap=False), INITIALIZED, [], ONLINE),
        (PAPER, OFFLINE, [100, 100, 100, 100], ONLINE),
        (PAPER, OFFLINE, [99, 100, 100, 100], None),
        (PAPER, ONLINE, [98, 98, 98, 98], SERVING),
        (PAPER, ONLINE, [97, 97, 97, 97], None),  # below 97.4
        (PAPER, ONLINE, [90, 110, 90, 110], None),  # deviation 11.55 above 3.266
        (PAPER, SERVING, [98, 98, 98, 98], None),
        (PAPER, SERVING, [97, 97, 97, 97], ONLINE),
        (PAPER, SERVING, [90, 110, 90, 110], ONLINE),
        (PAPER, SERVING, [0] * 50 + [100] * 4, None),  # older rewards are ignored
        (RETRAIN, ONLINE, [97, 97, 97, 97], OFFLINE),
        (RETRAIN, ONLINE, [98, 98, 98, 98], SERVING),
        (RETRAIN, ONLINE, [90, 110, 90, 110], None),
        (RETRAIN, SERVING, [97, 97, 97, 97], OFFLINE),
        (RETRAIN, SERVING, [98, 98, 98, 98], None),
        (RETRAIN, SERVING, [90, 110, 90, 110], ONLINE),
        (TOLERANT, SERVING, [94, 101, 94, 99], None),  # mean 97, with a standard error of 1.8
        (TOLERANT, SERVING, [80, 82, 81, 79], ONLINE),
    ],
)
def test_transitions_by_hand(
    settings: LifecycleSettings, state: LifecycleState, rewards: list[float], to: Any
) -> None:
    assert next_state(state, rewards, [900.0] * 50 + RULES, settings).to is to


@pytest.mark.parametrize(
    ("rules", "expected"),  # of online, serving and deviation
    [
        ([-1001.0, -999.0] * 2, (-1000, -1026, 26)),
        ([-101.0, -99.0] * 2, (-100, -102.6, 2.6)),
        ([99.0, 101.0] * 2, (100, 97.4, 2.6)),  # the degradation lowers it for either sign
        ([-2.0, 2.0] * 2, (0, -0.026 * 2.3094, 4.6188)),  # the scale of a zero mean: the deviation
        ([-50.0] * 4, (-50, -51.3, 1.3)),  # constant rules tolerate a small deviation
    ],
)
def test_thresholds_by_hand(rules: list[float], expected: tuple[float, ...]) -> None:
    assert lifecycle.measure_thresholds(rules, PAPER) == pytest.approx(expected, rel=1e-4)


@given(CASES, st.integers(0, WINDOW - 1), st.sampled_from(["policy", "rules"]))
def test_incomplete_window_gives_no_transition(case: Case, few: int, whose: str) -> None:
    state, rewards, rules, settings = case
    del (rewards if whose == "policy" else rules)[few:]
    transition = next_state(state, rewards, rules, settings)
    assert transition.to is None
    assert f"{few} of {WINDOW} rewards of the {whose}" in transition.why


@given(CASES)
def test_transitions_are_those_of_the_algorithm(case: Case) -> None:
    state, *_, settings = case
    transition = next_state(*case)
    down = {OFFLINE} if settings.retrain_offline else set()
    allowed = {OFFLINE: {ONLINE}, ONLINE: {SERVING, *down}, SERVING: {ONLINE, *down}}
    assert transition.to in {None, *allowed[state]}
    assert transition.degraded or transition.to is not OFFLINE
    assert "nan" not in transition.why


@given(CASES)
def test_constant_rewards_cause_no_cycle(case: Case) -> None:
    state, *measured = case
    been = [state]
    while (to := next_state(been[-1], *measured).to) is not None:
        assert to not in been
        been.append(to)


@given(CASES, st.floats(0, 1e6))
def test_higher_rewards_never_lower_the_state(case: Case, more: float) -> None:
    state, rewards, rules, settings = case
    order = list(LifecycleState)
    lower = next_state(*case).to or state
    better = [reward + more for reward in rewards]
    # Rounding may lift the deviation over its bound.
    std, thresholds = stdev(better[-WINDOW:]), lifecycle.measure_thresholds(rules, settings)
    assert thresholds is not None
    assume(not math.isclose(std, thresholds.deviation, rel_tol=1e-6, abs_tol=1e-6))
    assert order.index(next_state(state, better, rules, settings).to or state) >= order.index(lower)


@given(REWARDS, st.floats(1e-3, 1e3))
def test_thresholds_scale_with_units(rules: list[float], scale: float) -> None:
    thresholds = lifecycle.measure_thresholds(rules, PAPER)
    scaled = lifecycle.measure_thresholds([reward * scale for reward in rules], PAPER)
    assert thresholds is not None
    assert scaled is not None
    for one, other in zip(thresholds, scaled, strict=True):
        assert other == pytest.approx(one * scale, rel=1e-6, abs=1e-6 * scale)
