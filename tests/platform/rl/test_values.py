"""A critic's targets and advantages: by hand, and where they must agree with what is known."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.platform.rl.advantages import Rollout, returns_to_go
from loadmaster.platform.rl.values import Decay, Yardstick, errors_ahead, explained, legs_of

ROLLOUT = Rollout(np.array([0.0, 2.0, 3.0, 7.0]), np.array([1.0, 2.0, 4.0, 8.0]), 10.0)
ALL = np.arange(4)


def test_generalised_advantages_by_hand() -> None:
    legs = legs_of(ROLLOUT, ALL, Decay(gamma=0.5, gae_lambda=0.5))
    value = np.array([4.0, 2.0, 0.0, 6.0, 0.0])
    # Errors: 1 + 1 - 4 = -2; 2 + 0 - 2 = 0; 4 + 3 - 0 = 7; 8 - 6 = 2. Each passes on a quarter.
    assert errors_ahead(legs, value[:-1], value) == pytest.approx([-1.53125, 1.875, 7.5, 2])


def test_the_last_value_counts_where_an_episode_was_cut_off() -> None:
    legs = legs_of(ROLLOUT, ALL, Decay(gamma=0.5, gae_lambda=0.0))
    value = np.array([0.0, 0.0, 0.0, 0.0, 6.0])
    assert errors_ahead(legs, value[:-1], value) == pytest.approx([1, 2, 4, 11])


def test_with_all_errors_passed_back_it_is_the_return_less_the_value() -> None:
    value = np.array([3.0, -1.0, 2.0, 5.0, 0.0])
    for decay, per_s in ((Decay(), 0.0), (Decay(per_s=0.3), 0.3)):
        found = errors_ahead(legs_of(ROLLOUT, ALL, decay), value[:-1], value)
        assert found == pytest.approx(returns_to_go(ROLLOUT, per_s) - value[:-1])


def test_time_may_take_the_place_of_steps() -> None:
    legs = legs_of(ROLLOUT, ALL, Decay(per_s=0.1, memory_s=2.0))
    assert legs.fade == pytest.approx(np.exp(-0.1 * np.array([2, 1, 4, 3])))
    assert legs.trace == pytest.approx(np.exp(-np.array([2, 1, 4, 3]) / 2))


def test_decisions_that_were_not_kept_join_the_one_before_them() -> None:
    legs = legs_of(ROLLOUT, np.array([1, 2]), Decay(gamma=0.5, gae_lambda=0.8))
    assert legs.reward == pytest.approx([2, 4 + 0.5 * 8])
    assert legs.fade == pytest.approx([0.5, 0.25])
    assert legs.trace == pytest.approx([0.8, 0.64])
    # With exact values no decision is a surprise, whichever of them are kept.
    value = returns_to_go(Rollout(np.arange(4.0), ROLLOUT.reward, 4.0), -np.log(0.5))
    for kept in (ALL, np.array([0, 3]), np.array([2]), np.array([], np.int64)):
        known = value[kept]
        legs = legs_of(ROLLOUT, kept, Decay(gamma=0.5, gae_lambda=0.9))
        assert errors_ahead(legs, known, np.append(known, 0.0)) == pytest.approx(0.0 * known)


def test_a_critic_of_actions_learns_from_what_the_policy_would_do_next() -> None:
    judged, promised = np.array([1.0, 1.0, 1.0, 1.0]), np.array([9.0, 2.0, 4.0, 6.0, 0.0])
    legs = legs_of(ROLLOUT, ALL, Decay(gamma=0.5, gae_lambda=0.0))
    # The plain target: r + gamma * the next moment's mean; what this moment promised is no part.
    target = judged + errors_ahead(legs, judged, promised)
    assert target == pytest.approx([1 + 1, 2 + 2, 4 + 3, 8])


def test_the_yardstick_follows_what_is_learnt() -> None:
    stick, rng = Yardstick(), np.random.default_rng(0)
    assert stick.real(np.array([0.5], np.float32)) == pytest.approx([0.5])  # none yet: as it is
    for _ in range(60):
        stick.take_in(500 + 20 * rng.standard_normal(2000))
    assert stick.centre == pytest.approx(500, rel=1e-2)
    assert stick.spread == pytest.approx(20, rel=5e-2)
    values = np.array([460.0, 500.0, 555.0])
    assert stick.real(stick.standard(values)) == pytest.approx(values, rel=1e-5)


def test_what_a_critic_explains() -> None:
    target = [np.array([1.0, 2.0]), np.array([6.0])]
    assert explained(target, target) == pytest.approx(1)
    assert explained([np.zeros(2), np.zeros(1)], target) == pytest.approx(0)
