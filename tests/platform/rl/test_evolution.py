"""Searching weights: how well the search finds, what it leaves alone, and that it teaches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.platform.rl.algorithm import ROLLOUTS
from loadmaster.platform.rl.evolution import CovarianceSearch, WeightSearch, relative_costs
from loadmaster.platform.rl.rollout import EpisodeScore
from loadmaster.platform.rl.vector_rollout import VectorEngine
from loadmaster.platform.training.config import Evolution, Learning
from tests.platform.rl.tolls import SEEDS, excess, make_envs, tolls_config

EVOLUTION = Learning(method="evolution", evolution=Evolution(population=12, spread=1.0))


class ShowsTheOpposite(VectorEngine):
    """What is shown rises where what is lowered falls."""

    def judge(self, module: Any, seeds: Sequence[int]) -> list[EpisodeScore]:
        return [each._replace(cost=-each.loss) for each in super().judge(module, seeds)]


def searched(generations: int, noise: float) -> float:
    """Distance from the optimum, of a bowl a thousand times steeper one way than the other."""
    rng = np.random.default_rng(0)
    steep = np.logspace(0, 3, 10)
    search = CovarianceSearch(np.full(10, 3.0), 1.0, 12)
    for _ in range(generations):
        points = search.ask(rng)
        search.tell(points, (steep * points**2).sum(1) + noise * rng.standard_normal(12))
    return float(np.sqrt((steep * search.mean**2).sum()))


def test_it_learns_the_shape_of_a_narrow_valley() -> None:
    assert searched(300, noise=0.0) < 1e-4
    assert searched(300, noise=1.0) < 3.0  # from 127, though it cannot tell the last steps apart


def test_only_the_named_weights_change_in_units_of_their_size() -> None:
    weights = {
        "body.weight": np.ones((2, 2), np.float32),
        "head.weight": np.full((1, 3), 10, np.float32),
        "head.bias": np.zeros(1, np.float32),
    }
    search = WeightSearch(weights, ["head.*"], spread=0.1, population=6)
    points, candidates = search.candidates(np.random.default_rng(1))
    assert points.shape == (6, 4)
    for point, candidate in zip(points, candidates, strict=True):
        assert np.array_equal(candidate["body.weight"], weights["body.weight"])
        assert candidate["head.weight"] == pytest.approx(10 + 10 * point[None, :3], rel=1e-5)
        assert candidate["head.bias"] == pytest.approx(point[3:], rel=1e-5)
        assert candidate["head.bias"].dtype == np.float32
    assert np.array_equal(search.mean()["head.weight"], weights["head.weight"])


def test_unknown_weights_are_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"no weights are called tail\.\*; expected some of head"):
        WeightSearch({"head.bias": np.zeros(1)}, ["tail.*"], 0.1, 6)


def test_a_heavy_sequence_is_one_voice() -> None:
    """Best on two light sequences, worst on a heavy one: better than the other way round."""
    costs = np.array([[1.0, 1.0, 900.0], [2.0, 2.0, 500.0]])
    assert relative_costs(costs).tolist() == pytest.approx([-1 / 3, 1 / 3])


@pytest.mark.usefixtures("ray_session")
def test_a_policy_learns_by_evolution() -> None:
    algorithm = tolls_config(EVOLUTION).build_algo()
    try:
        before = excess(algorithm.judge(SEEDS))
        for _ in range(30):
            algorithm.train()
        assert excess(algorithm.judge(SEEDS)) < 0.2 * before
    finally:
        algorithm.stop()


@pytest.mark.usefixtures("ray_session")
def test_it_lowers_the_loss_and_tells_the_cost() -> None:
    config = tolls_config(EVOLUTION).input_driven(engine=lambda: ShowsTheOpposite(make_envs))
    algorithm = config.build_algo()
    try:
        before = excess([-cost for cost in algorithm.judge(SEEDS)])
        for _ in range(30):
            found = algorithm.train()[ROLLOUTS]
        assert excess([-cost for cost in algorithm.judge(SEEDS)]) < 0.2 * before
        assert found["cost_best"] < found["cost_mean"] < 0  # minus the tolls and wrong lanes
    finally:
        algorithm.stop()
