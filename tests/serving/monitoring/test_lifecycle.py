"""The lifecycle of AWARE's Algorithm 1: every transition, and none on thin evidence."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from loadmaster.serving.monitoring.lifecycle import (
    LifecycleSettings,
    LifecycleState,
    judge,
    measure,
    summary,
)

INITIALIZED, OFFLINE, ONLINE, SERVING = LifecycleState
STATES = st.sampled_from([OFFLINE, ONLINE, SERVING])
WINDOW = 4
REWARDS = st.lists(st.floats(-1e6, 1e6), min_size=WINDOW, max_size=3 * WINDOW)
PAPER = LifecycleSettings(window=WINDOW, doubt=0)
SETTINGS = st.builds(
    LifecycleSettings,
    window=st.just(WINDOW),
    degradation=st.floats(0, 0.5),
    deviation=st.floats(0.1, 5),
    doubt=st.sampled_from([0.0, 1.0, 2.0]),
    bootstrap=st.booleans(),
    retrain_offline=st.booleans(),
)
RULES = [98.0, 100.0, 102.0, 100.0]  # mean 100, deviation 1.63


@pytest.mark.parametrize(("bootstrap", "first"), [(True, OFFLINE), (False, ONLINE)])
def test_bootstrapping_decides_the_first_state(bootstrap: bool, first: LifecycleState) -> None:
    settings = LifecycleSettings(bootstrap=bootstrap)
    assert judge(INITIALIZED, [], [], settings).to is first


@pytest.mark.parametrize(
    ("state", "rewards", "to", "said"),
    [
        (OFFLINE, [100, 100, 100, 100], ONLINE, "reaches the 100 of the rules"),
        (OFFLINE, [99, 100, 100, 100], None, "the mean 99.75 of the last 4 rewards is below"),
        (ONLINE, [98, 98, 98, 98], SERVING, "reaches 97.4, the rules' less 2.60%"),
        (ONLINE, [97, 97, 97, 97], None, "below 97.4"),
        (ONLINE, [90, 110, 90, 110], None, "deviation 11.55 is above the 3.266 allowed"),
        (SERVING, [98, 98, 98, 98], None, "holds against 97.4"),
        (SERVING, [97, 97, 97, 97], ONLINE, "the mean 97 of the last 4 rewards is below 97.4"),
        (SERVING, [90, 110, 90, 110], ONLINE, "deviation 11.55 is above"),
    ],
)
def test_the_paper_s_transitions(
    state: LifecycleState, rewards: list[float], to: LifecycleState | None, said: str
) -> None:
    judgement = judge(state, rewards, RULES, PAPER)
    assert judgement.to is to
    assert said in judgement.why


@pytest.mark.parametrize("state", [ONLINE, SERVING])
def test_high_stakes_fall_back_to_the_rules(state: LifecycleState) -> None:
    careful = PAPER.model_copy(update={"retrain_offline": True})
    assert judge(state, [97.0] * 4, RULES, careful).to is OFFLINE
    assert judge(state, [98.0] * 4, RULES, careful).to is not OFFLINE
    assert judge(state, [90.0, 110.0] * 2, RULES, careful).to in (None, ONLINE)  # it only varies


def test_bad_luck_is_no_decay() -> None:
    unlucky = [94.0, 101.0, 94.0, 99.0]  # mean 97, but with a standard error of 1.8
    doubting = PAPER.model_copy(update={"doubt": 2.0, "deviation": 5.0})
    assert judge(SERVING, unlucky, RULES, doubting).to is None
    assert "by luck alone" in judge(SERVING, unlucky, RULES, doubting).why
    assert judge(SERVING, [80.0, 82.0, 81.0, 79.0], RULES, doubting).to is ONLINE


@pytest.mark.parametrize("mean", [-1000.0, -100.0, 100.0])
def test_degradation_is_worse_whatever_the_sign(mean: float) -> None:
    thresholds = measure([mean - 1, mean + 1] * 2, PAPER)
    assert thresholds is not None
    assert thresholds.online == mean
    assert thresholds.serving == pytest.approx(mean - 0.026 * abs(mean))


def test_where_the_mean_is_naught_the_deviation_is_the_scale() -> None:
    thresholds = measure([-2.0, 2.0, -2.0, 2.0], PAPER)
    assert thresholds is not None
    assert thresholds.serving == pytest.approx(-0.026 * summary([-2.0, 2.0, -2.0, 2.0]).std)


def test_rules_that_never_vary_let_a_policy_vary_a_little() -> None:
    thresholds = measure([-50.0] * 4, PAPER)
    assert thresholds is not None
    assert thresholds.deviation == pytest.approx(0.026 * 50)
    assert judge(ONLINE, [-50.0, -50.5, -50.5, -50.0], [-50.0] * 4, PAPER).to is SERVING


@given(STATES, SETTINGS, st.integers(0, WINDOW - 1), st.booleans(), REWARDS)
def test_nothing_happens_until_enough_is_measured(
    state: LifecycleState,
    settings: LifecycleSettings,
    few: int,
    of_rules: bool,
    rewards: list[float],
) -> None:
    policy, rules = (rewards, rewards[:few]) if of_rules else (rewards[:few], rewards)
    judgement = judge(state, policy, rules, settings)
    assert judgement.to is None
    whose = "rules" if of_rules else "policy"
    assert judgement.why == f"not judged yet: {few} of {WINDOW} rewards of the {whose} measured"


@given(STATES, SETTINGS, REWARDS, REWARDS)
def test_every_transition_is_one_of_the_algorithm(
    state: LifecycleState, settings: LifecycleSettings, rewards: list[float], rules: list[float]
) -> None:
    judgement = judge(state, rewards, rules, settings)
    down = {OFFLINE} if settings.retrain_offline else set()
    allowed = {OFFLINE: {ONLINE}, ONLINE: {SERVING, *down}, SERVING: {ONLINE, *down}}
    assert judgement.to in {None, *allowed[state]}
    assert judgement.fallen or judgement.to is not OFFLINE
    assert judgement.to is not state
    assert "of the last 4 rewards" in judgement.why
    assert "nan" not in judgement.why


@given(STATES, SETTINGS, REWARDS, REWARDS)
def test_the_same_rewards_never_send_it_in_circles(
    state: LifecycleState, settings: LifecycleSettings, rewards: list[float], rules: list[float]
) -> None:
    been = [state]
    while (to := judge(been[-1], rewards, rules, settings).to) is not None:
        assert to not in been
        been.append(to)


@given(STATES, SETTINGS, REWARDS, REWARDS, st.floats(0, 1e6))
def test_earning_more_never_sends_it_down(
    state: LifecycleState,
    settings: LifecycleSettings,
    rewards: list[float],
    rules: list[float],
    more: float,
) -> None:
    order = list(LifecycleState)
    lower = judge(state, rewards, rules, settings).to or state
    better = [reward + more for reward in rewards]
    # Rounding may lift the deviation over its bound by a hair.
    earned, thresholds = summary(better[-WINDOW:]), measure(rules, settings)
    assert thresholds is not None
    assume(not math.isclose(earned.std, thresholds.deviation, rel_tol=1e-6, abs_tol=1e-6))
    assert order.index(judge(state, better, rules, settings).to or state) >= order.index(lower)


@given(REWARDS, REWARDS, st.floats(1e-3, 1e3))
def test_units_do_not_matter(rewards: list[float], rules: list[float], scale: float) -> None:
    thresholds = measure(rules, PAPER)
    scaled = measure([reward * scale for reward in rules], PAPER)
    assert thresholds is not None
    assert scaled is not None
    for one, other in zip(thresholds, scaled, strict=True):
        assert other == pytest.approx(one * scale, rel=1e-6, abs=1e-6 * scale)


def test_only_the_latest_window_counts() -> None:
    assert judge(SERVING, [0.0] * 50 + [100.0] * 4, RULES, PAPER).to is None
    assert judge(SERVING, [100.0] * 4, [900.0] * 50 + RULES, PAPER).to is None
