"""Fitted Q evaluation: exact cases, and the share of bounds that hold where the value is known."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings
from loadmaster.platform.rl.fitted_q import FittedQSettings, evaluate_fitted_q
from loadmaster.platform.rl.transitions import Description, Episode, PolicyActions, Transitions

STATE, ACTION, STEPS = 3, 1, 100
FAST = {"features": 32, "ensemble": 16}
Array = NDArray[Any]


class Linear:
    """x' = A x + B a + noise with the reward c x - a^2 / 2; its values follow by matrices."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        rotation = rng.standard_normal((STATE, STATE))
        self.a = 0.8 * rotation / np.abs(np.linalg.eigvals(rotation)).max()
        self.b = rng.uniform(-0.5, 0.5, (ACTION, STATE))
        self.c = rng.uniform(-1, 1, STATE)

    def log(self, episodes: int, action: float, noise: float, seed: int) -> Transitions:
        """Episodes of actions around a constant."""
        rng = np.random.default_rng([seed, 1])
        found = []
        for number in range(episodes):
            x = rng.standard_normal((STEPS + 1, STATE))
            actions = np.clip(action + noise * rng.standard_normal((STEPS, ACTION)), -1, 1)
            for step in range(STEPS):
                x[step + 1] = x[step] @ self.a.T + actions[step] @ self.b + 0.3 * x[step + 1]
            rewards = x[:-1] @ self.c - 0.5 * actions[:, 0] ** 2
            columns = x.astype(np.float32), actions.astype(np.float32)
            found.append(Episode(*columns, rewards, number=number))
        return Transitions.of_episodes(found, Description.unnamed("linear", STATE, ACTION))

    def value(self, action: float) -> float:
        """Mean reward per step of the constant action; the mean state starts at 0."""
        x, total = np.zeros(STATE), 0.0
        for _ in range(STEPS):
            total += x @ self.c - 0.5 * action**2
            x = self.a @ x + action * self.b[0]
        return total / STEPS


def constant(action: float) -> PolicyActions:
    return lambda observations, contexts: np.full((len(observations), ACTION), action, np.float32)


def settings(**given: Any) -> FittedQSettings:
    return build_settings(FittedQSettings, FAST | given)


def test_logged_behaviour_has_its_mean_reward() -> None:
    log = Linear(0).log(4, 0.2, 0.0, seed=0)
    found = evaluate_fitted_q(log, constant(0.2), settings())
    assert found.mean == pytest.approx(log.mean_reward)
    means = log.rewards.reshape(4, -1).mean(1)
    # Student's t of four episodes at 95% is 2.353.
    assert log.mean_reward - found.lower == pytest.approx(2.353 * means.std(ddof=1) / 2, rel=0.5)


def test_other_policy_is_valued_with_much_data() -> None:
    system = Linear(3)
    log = system.log(20, 0.0, 0.5, seed=3)
    for action in (-0.4, 0.4):
        found = evaluate_fitted_q(log, constant(action), settings(gamma=1.0, features=64))
        assert found.mean == pytest.approx(system.value(action), abs=0.12)
        assert found.lower < system.value(action) < found.upper
        assert abs(log.mean_reward - system.value(action)) > 0.05  # it is not the logged one's


@pytest.mark.slow
@pytest.mark.parametrize(("episodes", "repetitions"), [(1, 20), (5, 20)])
def test_lower_bound_holds_as_often_as_it_claims(episodes: int, repetitions: int) -> None:
    above, useful = 0, 0
    for seed in range(repetitions):
        system = Linear(seed)
        action = float(np.random.default_rng(seed).uniform(-0.5, 0.5))
        log = system.log(episodes, 0.0, 0.2, seed)
        found = evaluate_fitted_q(log, constant(action), settings(seed=seed))
        truth = system.value(action)
        above += found.lower > truth
        useful += found.lower > truth - 2 * log.rewards.std()
    assert above <= 1 + 0.05 * repetitions  # the nominal share, and one by chance
    assert useful >= repetitions // 2  # bounds that say nothing hold as well


def test_bounds_widen_away_from_the_log_and_with_fewer_episodes() -> None:
    def width(episodes: int, action: float) -> float:
        log = Linear(1).log(episodes, 0.0, 0.1, seed=1)
        found = evaluate_fitted_q(log, constant(action), settings())
        return found.upper - found.lower

    assert width(5, 0.9) > 2 * width(5, 0.1)
    assert width(1, 0.1) > width(20, 0.1)


def test_rewards_known_to_vary_widen_the_bounds_of_a_quiet_log() -> None:
    log = Linear(1).log(2, 0.0, 0.1, seed=1)
    narrow = evaluate_fitted_q(log, constant(0.5), settings())
    wide = evaluate_fitted_q(log, constant(0.5), settings(reward_size=5 * log.rewards.std()))
    assert wide.lower < narrow.lower


def test_terminated_episodes_earn_nothing_afterwards() -> None:
    episodes = [
        Episode(
            np.full((10, STATE), number, np.float32),
            np.zeros((10, ACTION), np.float32),
            np.ones(10),
        )
        for number in range(3)
    ]
    log = Transitions.of_episodes(episodes, Description.unnamed("short", STATE, ACTION))
    found = evaluate_fitted_q(log, constant(0.0), settings(horizon=40))
    assert found.mean == pytest.approx(0.25)


def test_only_steps_within_the_horizon_and_enough_rows_are_taken() -> None:
    log = Linear(2).log(6, 0.1, 0.0, seed=2)
    early = log.rewards.reshape(6, -1)[:, :30]
    found = evaluate_fitted_q(log, constant(0.1), settings(horizon=30))
    assert found.mean == pytest.approx(early.mean())
    few = evaluate_fitted_q(log, constant(0.1), settings(rows=250))
    means = log.rewards.reshape(6, -1).mean(1)
    pairs = [(means[i] + means[j]) / 2 for i in range(6) for j in range(i)]
    assert np.abs(np.array(pairs) - few.mean).min() < 1e-6


def test_same_seed_repeats_exactly() -> None:
    log = Linear(0).log(2, 0.0, 0.2, seed=0)
    one, again = (evaluate_fitted_q(log, constant(0.3), settings(seed=4)) for _ in range(2))
    assert one == again


@pytest.mark.parametrize(
    ("policy", "given", "fault"),
    [
        (constant(1.5), {}, "-1 to 1"),
        (constant(float("nan")), {}, "-1 to 1"),
        (lambda observations, contexts: observations, {}, "shape"),
        (constant(0.0), {"confidence": 1.0}, "confidence"),
        (constant(0.0), {"ensemble": 2}, "ensemble"),
    ],
)
def test_bad_input_is_refused(policy: PolicyActions, given: dict[str, Any], fault: str) -> None:
    log = Linear(0).log(1, 0.0, 0.2, seed=0)
    with pytest.raises(InputError, match=fault):
        evaluate_fitted_q(log, policy, settings(**given))


def test_log_beyond_the_horizon_is_refused() -> None:
    whole = Linear(0).log(1, 0.0, 0.2, seed=0)
    late = Episode(whole.observations, whole.actions[:-1], whole.rewards[:-1], first_step=100)
    log = Transitions.of_episodes([late], whole.description)
    with pytest.raises(InputError, match="horizon"):
        evaluate_fitted_q(log, constant(0.0), settings())


def test_log_of_several_applications_is_refused() -> None:
    log = Linear(0).log(2, 0.0, 0.2, seed=0)
    episodes = [
        Episode(log.observations[:6], log.actions[:5], log.rewards[:5], application=name)
        for name in ("a", "b")
    ]
    both = Transitions.of_episodes(episodes, log.description)
    with pytest.raises(InputError, match="2 applications"):
        evaluate_fitted_q(both, constant(0.0), settings())
