"""Learning from groups that share an input, by gradient and by evolution, in a toy environment."""

import pickle
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule

from loadmaster.envs.errors import InputError
from loadmaster.platform.rl.algorithm import InputDrivenConfig
from loadmaster.platform.rl.base import ROLLOUTS
from loadmaster.platform.rl.evolution import WeightSearch, relative_costs
from loadmaster.platform.rl.rollout import RolloutSpec
from loadmaster.platform.rl.vector_rollout import VectorEngine
from loadmaster.platform.training.config import Evolution, Learning, Rollouts, Schedule

LANES, STEPS, HIGHEST_TOLL = 3, 8, 30.0
SEEDS = range(100, 120)  # of evaluation episodes


class Tolls(gymnasium.Env[Any, Any]):
    """Which lane is open, and a toll, are an outside input.

    The toll is paid for any action and is far larger than the cost of a wrong lane, so returns
    depend little on the policy unless rollouts with the same tolls are compared.
    """

    observation_space = spaces.Box(0, 1, (LANES,), np.float32)
    action_space = spaces.Discrete(LANES)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.open = self.np_random.integers(LANES, size=STEPS + 1)
        self.tolls = self.np_random.uniform(0, HIGHEST_TOLL, STEPS)
        self.step_now = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        wrong = float(action != self.open[self.step_now])
        reward = -self.tolls[self.step_now] - wrong
        self.step_now += 1
        return self._observe(), reward, self.step_now == STEPS, False, {}

    def _observe(self) -> Any:
        return np.eye(LANES, dtype=np.float32)[self.open[self.step_now]]


class LaneModule(TorchRLModule):
    """Linear scores of the observation; the distribution is RLlib's own."""

    def setup(self) -> None:
        self.score = torch.nn.Linear(LANES, LANES)

    def _forward(self, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        return {Columns.ACTION_DIST_INPUTS: self.score(batch[Columns.OBS])}


def make_envs(count: int, horizon_s: float | None) -> SyncVectorEnv:
    return SyncVectorEnv([Tolls] * count)


def tolls_config(learning: Learning) -> InputDrivenConfig:
    config = InputDrivenConfig()
    config.environment(observation_space=Tolls.observation_space, action_space=Tolls.action_space)
    config.env_runners(num_env_runners=0)
    config.learners(num_learners=0)
    config.training(lr=0.05)
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=LaneModule))
    config.debugging(seed=3, log_level="ERROR")
    groups = Rollouts(workers=0, sequences=4, per_sequence=4)
    return config.rollout_engine(
        engine=partial(VectorEngine, make_envs), sampling=groups, learning=learning
    )


def toll_of(seed: int) -> float:
    env = Tolls()
    env.reset(seed=seed)
    return float(env.tolls.sum())


def excess(returns: list[float]) -> float:
    """Cost per step without the tolls: 0 is perfect, 2/3 a random policy."""
    return float(-np.mean(returns) - np.mean([toll_of(seed) for seed in SEEDS])) / STEPS


def test_schedule_is_linear_then_constant() -> None:
    falling = Schedule(first=1.0, last=0.2, iterations=4)
    found = [falling.at(i) for i in range(7)]
    assert found == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2])
    assert Schedule(first=5, last=2).at(0) == 2


def test_vector_engine_records_whole_episodes() -> None:
    spaces = {"observation_space": Tolls.observation_space, "action_space": Tolls.action_space}
    module = LaneModule(**spaces, model_config={})
    specs = [RolloutSpec(7, 1), RolloutSpec(7, 3), RolloutSpec(8, 2, keep=0.5)]
    first, second, third = VectorEngine(make_envs).roll_out(module, specs)
    assert first.decisions == second.decisions == first.rollout.end_s == STEPS
    assert np.array_equal(first.observations, second.observations)  # the same input
    assert len(third.kept) < STEPS
    wrong = (first.actions != first.observations.argmax(1)).sum()
    assert -first.rollout.reward.sum() == pytest.approx(toll_of(7) + wrong)


def train(config: InputDrivenConfig, iterations: int) -> tuple[list[dict[str, float]], list[float]]:
    """Metrics of the iterations, and the returns of SEEDS after the last."""
    algorithm = config.build_algo()
    rows = [algorithm.train()[ROLLOUTS] for _ in range(iterations)]
    returns = algorithm.episode_values(SEEDS)
    algorithm.stop()
    return rows, returns


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_gradient_methods_learn_and_worse_without_shared_input() -> None:
    steady, none = Schedule(first=0.05, last=0.05), Schedule(first=0, last=0)
    learning = Learning(learning_rate=steady, entropy=none, gradient_clip=10)

    def learnt(iterations: int, **changed: str) -> float:
        config = tolls_config(learning.model_copy(update=changed))
        return excess(train(config, iterations)[1])

    assert learnt(25, method="ppo") < 0.05
    reinforce = learnt(16, method="reinforce")
    assert reinforce < 0.1
    assert reinforce < 0.5 * learnt(16, method="reinforce", baseline="time")


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_evolution_minimises_the_loss_and_reports_the_return() -> None:
    learning = Learning(method="evolution", evolution=Evolution(population=24, spread=3.0))
    rows, returns = train(tolls_config(learning), 30)
    assert rows[0]["cost_mean"] < rows[0]["cost_best"] < 0
    assert excess(returns) < 0.1


def search_ellipsoid(
    generations: int, noise: float = 0.0, pickle_every: int = 1000
) -> tuple[float, WeightSearch]:
    """Distance from the optimum of an ellipsoid with a condition number of 1000."""
    search, steep = WeightSearch({"x": np.full(10, 3.0)}, ["*"], 1 / 3, 12), np.logspace(0, 3, 10)
    for generation in range(generations):
        if generation % pickle_every == pickle_every - 1:
            search = pickle.loads(pickle.dumps(search))
        rng = np.random.default_rng(generation)
        points = search.ask(rng)
        costs = [(steep * search.weights_at(point)["x"] ** 2).sum() for point in points]
        search.tell(points, np.array(costs) + noise * rng.standard_normal(len(points)))
    return float(np.sqrt((steep * search.mean_weights()["x"] ** 2).sum())), search


def test_search_adapts_to_an_ellipsoid() -> None:
    assert search_ellipsoid(300)[0] < 1e-4
    assert search_ellipsoid(300, noise=1.0)[0] < 3.0  # from 127


def test_pickled_search_continues_exactly() -> None:
    (_, plain), (_, restored) = search_ellipsoid(40), search_ellipsoid(40, pickle_every=7)
    assert plain.spread == restored.spread
    assert np.array_equal(plain.mean_weights()["x"], restored.mean_weights()["x"])


def test_search_changes_named_weights_in_units_of_their_size() -> None:
    weights = {
        "body.weight": np.ones((2, 2), np.float32),
        "head.weight": np.full((1, 3), 10, np.float32),
        "head.bias": np.zeros(1, np.float32),
    }
    search = WeightSearch(weights, ["head.*"], spread=0.1, population=6)
    points = search.ask(np.random.default_rng(1))
    assert [point.shape for point in points] == [(4,)] * 6
    for point in points:
        candidate = search.weights_at(point)
        assert np.array_equal(candidate["body.weight"], weights["body.weight"])
        assert candidate["head.weight"] == pytest.approx(10 + 10 * point[None, :3], rel=1e-5)
        assert candidate["head.bias"] == pytest.approx(point[3:], rel=1e-5)
        assert candidate["head.bias"].dtype == np.float32
    assert np.array_equal(search.mean_weights()["head.weight"], weights["head.weight"])
    single = WeightSearch(weights, ["head.bias"], spread=0.1, population=4)
    assert len(single.ask(np.random.default_rng(1))) == 4
    with pytest.raises(InputError, match=r"tail\.\*.* head\.bias"):
        WeightSearch(weights, ["tail.*"], spread=0.1, population=6)


def test_search_over_one_row_of_a_table() -> None:
    weights = {"job": np.full((3, 2), 2, np.float32), "key": np.zeros(2, np.float32)}
    search = WeightSearch(weights, ["job/1", "ke*"], spread=0.1, population=4)
    for point in search.ask(np.random.default_rng(1)):
        assert point.shape == (4,)
        candidate = search.weights_at(point)
        assert candidate["job"][[0, 2]].tolist() == [[2, 2], [2, 2]]
        assert candidate["job"][1] == pytest.approx(2 + 2 * point[:2], rel=1e-5)
        assert candidate["key"] == pytest.approx(point[2:], rel=1e-5)
    whole = WeightSearch(weights, ["job", "job/1"], spread=0.1, population=4)
    assert len(whole.ask(np.random.default_rng(1))[0]) == 6
    with pytest.raises(InputError, match=r"job/3.* job, key"):
        WeightSearch(weights, ["job/3"], spread=0.1, population=4)


def test_relative_costs_weigh_sequences_equally() -> None:
    costs = np.array([[1.0, 1.0, 900.0], [2.0, 2.0, 500.0]])
    assert relative_costs(costs).tolist() == pytest.approx([-1 / 3, 1 / 3])
