"""AWARE's Algorithm 1: its transitions, thresholds and invariants."""

import math
import random
from statistics import stdev
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from loadmaster.serving.monitoring import lifecycle
from loadmaster.serving.monitoring.lifecycle import (
    Estimate,
    LifecycleSettings,
    LifecycleState,
    first_state,
    next_state,
    trial_state,
)
from loadmaster.serving.monitoring.reward_stats import ConvergedReward
from loadmaster.serving.system import Profile

INITIALIZED, OFFLINE, ONLINE, SERVING = LifecycleState
ACTING = st.sampled_from([ONLINE, SERVING])
WINDOW = 4
REWARDS = st.lists(st.floats(-1e6, 1e6), min_size=WINDOW, max_size=3 * WINDOW)
PAPER = LifecycleSettings(window=WINDOW, z_threshold=0, deviation=2, retrain_offline=False)
RETRAIN = PAPER.model_copy(update={"retrain_offline": True})
TOLERANT = PAPER.model_copy(update={"z_threshold": 2.0, "deviation": 5.0})
LEARNER = PAPER.model_copy(update={"plateau": 4})
HIGH = Profile(stakes="high")
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
CASES = st.tuples(ACTING, REWARDS, REWARDS, SETTINGS)  # arguments of `next_state`
CONVERGED = st.none() | st.floats(-1e6, 1e6)


@pytest.mark.parametrize(
    ("settings", "state", "rewards", "to"),
    [
        (LifecycleSettings(bootstrap=True), INITIALIZED, [], OFFLINE),
        (LifecycleSettings(bootstrap=False), INITIALIZED, [], ONLINE),
        (PAPER, OFFLINE, [900, 900, 900, 900], None),  # rewards are no evidence there
        (PAPER, ONLINE, [100, 100, 100, 100], SERVING),
        (PAPER, ONLINE, [98, 98, 98, 98], None),  # less than the rules
        (PAPER, ONLINE, [90, 120, 90, 120], None),  # deviation 17.3 above 3.266
        (PAPER, SERVING, [100, 100, 100, 100], None),
        (PAPER, SERVING, [98, 98, 98, 98], ONLINE),
        (PAPER, SERVING, [90, 120, 90, 120], ONLINE),
        (PAPER, SERVING, [0] * 50 + [100] * 4, None),  # older rewards are ignored
        (RETRAIN, ONLINE, [98, 98, 98, 98], OFFLINE),
        (RETRAIN, ONLINE, [100, 100, 100, 100], SERVING),
        (RETRAIN, ONLINE, [90, 120, 90, 120], None),
        (RETRAIN, SERVING, [98, 98, 98, 98], OFFLINE),
        (RETRAIN, SERVING, [100, 100, 100, 100], None),
        (RETRAIN, SERVING, [90, 120, 90, 120], ONLINE),
        (TOLERANT, SERVING, [96, 103, 96, 101], None),  # mean 99, with a standard error of 1.8
        (TOLERANT, SERVING, [80, 82, 81, 79], ONLINE),
        (TOLERANT, SERVING, [85, 115, 85, 115], None),  # 17.3 above 8.2, but below 8.2 exp(2/√3)
        (TOLERANT, SERVING, [70, 130, 70, 130], ONLINE),
        (LEARNER, ONLINE, [120, 120, 120, 120], None),  # a plateau is not known
        (LEARNER, ONLINE, [110] * 4 + [120] * 4, None),  # still rising
        (LEARNER, ONLINE, [119] * 4 + [120] * 4, SERVING),
    ],
)
def test_transitions_by_hand(
    settings: LifecycleSettings, state: LifecycleState, rewards: list[float], to: Any
) -> None:
    assert next_state(state, rewards, [900.0] * 50 + RULES, settings).to is to


@pytest.mark.parametrize(
    ("settings", "profile", "rewards", "from_serving", "from_online"),
    [
        (PAPER, Profile(), 147.0, None, SERVING),  # 2.6% below 150 are 146.1
        (PAPER, Profile(), 145.0, ONLINE, None),
        (RETRAIN, Profile(), 145.0, ONLINE, None),  # the rules would earn less: it goes on
        (RETRAIN, Profile(), 99.0, OFFLINE, OFFLINE),
        (RETRAIN, HIGH, 145.0, OFFLINE, OFFLINE),
        (PAPER, HIGH, 99.0, OFFLINE, OFFLINE),
    ],
)
def test_serving_is_held_to_the_converged_reward(
    settings: LifecycleSettings, profile: Profile, rewards: float, from_serving: Any,
    from_online: Any,
) -> None:  # fmt: skip
    for state, to in ((SERVING, from_serving), (ONLINE, from_online)):
        found = next_state(state, [rewards] * 4, RULES, settings, profile=profile, converged=150.0)
        assert (found.to, found.degraded) == (to, rewards < 146)


@pytest.mark.parametrize(
    ("lower", "required", "to"),
    [
        (None, None, None),
        (99.0, None, None),
        (100.0, None, ONLINE),
        (100.0, 90.0, ONLINE),  # the rules earn more than the profile requires
        (100.0, 130.0, None),
        (130.0, 130.0, ONLINE),
    ],
)
def test_offline_ends_by_the_lower_bound_of_an_estimate(
    lower: float | None, required: float | None, to: Any
) -> None:
    estimate = None if lower is None else Estimate(lower + 50, lower, "fqe", 20)
    profile = Profile(reward=required)
    assert next_state(OFFLINE, [], RULES, PAPER, profile=profile, estimate=estimate).to is to
    assert next_state(OFFLINE, [], RULES[1:], PAPER, profile=profile, estimate=estimate).to is None


@pytest.mark.parametrize(
    ("profile", "first", "trial"),  # of the settings' OFFLINE, ONLINE and SERVING
    [
        (Profile(), [OFFLINE, ONLINE, SERVING], ONLINE),
        (Profile(bootstrap=True), [OFFLINE] * 3, ONLINE),
        (Profile(bootstrap=False), [ONLINE, ONLINE, SERVING], ONLINE),
        (HIGH, [OFFLINE] * 3, OFFLINE),
        (Profile(stakes="high", bootstrap=False), [ONLINE, ONLINE, SERVING], OFFLINE),
    ],
)
def test_first_states_by_profile(
    profile: Profile, first: list[LifecycleState], trial: LifecycleState
) -> None:
    assert [first_state(profile, start) for start in (OFFLINE, ONLINE, SERVING)] == first
    assert trial_state(profile) is trial


def test_converged_reward_ignores_noise_and_follows_no_decay() -> None:
    noise = random.Random(0)
    converged = ConvergedReward.measure([noise.gauss(100, 3) for _ in range(10)])
    for _ in range(3000):
        converged.add(noise.gauss(100, 3), 10)
    assert converged.value == pytest.approx(100, abs=1.0)  # a maximum of windows would be 103
    settled = converged.value
    for step in range(500):
        converged.add(noise.gauss(100 - step / 10, 3), 10)
    assert converged.value == pytest.approx(settled, abs=0.3)
    for _ in range(1000):
        converged.add(noise.gauss(120, 3), 10)
    assert converged.value == pytest.approx(120, abs=1.0)


def test_training_loop_by_episode_rewards() -> None:
    """A learner goes through all states, and back when its rewards fall."""
    settings = LifecycleSettings(window=10, z_threshold=0, deviation=4, plateau=20)
    noise, rewards, been = random.Random(1), list[float](), [INITIALIZED]
    rules = [noise.gauss(100, 2) for _ in range(10)]
    converged: ConvergedReward | None = None
    for episode in range(400):
        if episode == 60:
            estimate: Estimate | None = Estimate(110, 104, "fqe", 60)
        elif episode < 60:
            estimate = None
        if been[-1] in (ONLINE, SERVING):
            mean = min(105 + len(rewards) / 2, 150) - (40 if episode >= 300 else 0)
            rewards.append(noise.gauss(mean, 2))
        own = None if converged is None else converged.value
        found = next_state(been[-1], rewards, rules, settings, estimate=estimate, converged=own)
        if found.to is not None:
            been.append(found.to)
            if found.to is SERVING:
                converged = ConvergedReward.measure(rewards[-10:])
        elif been[-1] is SERVING and converged is not None:
            converged.add(rewards[-1], 10)
        if episode == 299:
            assert been[-1] is SERVING
            assert converged is not None
            assert converged.value == pytest.approx(150, abs=3)
    assert been == [INITIALIZED, OFFLINE, ONLINE, SERVING, ONLINE]


@pytest.mark.parametrize(
    ("rules", "converged", "expected"),  # of online, serving, deviation and rules
    [
        ([-1001.0, -999.0] * 2, None, (-1000, -1000, 26, -1000)),
        ([-101.0, -99.0] * 2, -50.0, (-100, -51.3, 2.309, -100)),
        ([99.0, 101.0] * 2, 150.0, (100, 146.1, 3.9, 100)),  # lower for either sign
        ([99.0, 101.0] * 2, 101.0, (100, 100, 2.626, 100)),  # at least the rules'
        ([-2.0, 2.0] * 2, 1.0, (0, 1 - 0.026 * 2.3094, 4.6188, 0)),  # the scale: the deviation
        ([-50.0] * 4, None, (-50, -50, 1.3, -50)),  # constant rules tolerate a small deviation
    ],
)
def test_thresholds_by_hand(
    rules: list[float], converged: float | None, expected: tuple[float, ...]
) -> None:
    found = lifecycle.measure_thresholds(rules, PAPER, converged=converged)
    assert found == pytest.approx(expected, rel=1e-3)


@given(CASES, st.integers(0, WINDOW - 1), st.sampled_from(["policy", "rules"]))
def test_incomplete_window_gives_no_transition(case: Case, few: int, whose: str) -> None:
    state, rewards, rules, settings = case
    del (rewards if whose == "policy" else rules)[few:]
    transition = next_state(state, rewards, rules, settings)
    assert transition.to is None
    assert f"{few} of {WINDOW} rewards of the {whose}" in transition.why


@given(CASES, CONVERGED)
def test_transitions_are_those_of_the_algorithm(case: Case, converged: float | None) -> None:
    state, *_, settings = case
    transition = next_state(*case, converged=converged)
    down = {OFFLINE} if settings.retrain_offline else set()
    allowed = {ONLINE: {SERVING, *down}, SERVING: {ONLINE, *down}}
    assert transition.to in {None, *allowed[state]}
    assert transition.degraded or transition.to is not OFFLINE
    assert "nan" not in transition.why


@given(CASES, CONVERGED)
def test_constant_rewards_cause_no_cycle(case: Case, converged: float | None) -> None:
    state, *measured = case
    been = [state]
    while (to := next_state(been[-1], *measured, converged=converged).to) is not None:
        assert to not in been
        been.append(to)


@given(CASES, CONVERGED, st.floats(0, 1e6))
def test_higher_rewards_never_lower_the_state(
    case: Case, converged: float | None, more: float
) -> None:
    state, rewards, rules, settings = case
    order = list(LifecycleState)
    lower = next_state(*case, converged=converged).to or state
    better = [reward + more for reward in rewards]
    # Rounding may lift the deviation over its bound, or the mean over the other threshold.
    window = better[-WINDOW:]
    thresholds = lifecycle.measure_thresholds(rules, settings, converged=converged)
    assert thresholds is not None
    noise = math.exp(settings.z_threshold / math.sqrt(WINDOW - 1))
    for bound in (thresholds.deviation, noise * thresholds.deviation):
        assume(not math.isclose(stdev(window), bound, rel_tol=1e-6, abs_tol=1e-6))
    found = next_state(state, better, rules, settings, converged=converged)
    assert order.index(found.to or state) >= order.index(lower)


@given(REWARDS, st.floats(1e-3, 1e3))
def test_thresholds_scale_with_units(rules: list[float], scale: float) -> None:
    thresholds = lifecycle.measure_thresholds(rules, PAPER)
    scaled = lifecycle.measure_thresholds([reward * scale for reward in rules], PAPER)
    assert thresholds is not None
    assert scaled is not None
    for one, other in zip(thresholds, scaled, strict=True):
        assert other == pytest.approx(one * scale, rel=1e-6, abs=1e-6 * scale)
