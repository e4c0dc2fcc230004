"""Learning from groups that share an input, in an environment that knows nothing of Decima."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loadmaster.platform.rl.batches import normalised
from loadmaster.platform.rl.rollout import RolloutSpec
from loadmaster.platform.training.config import Learning, Schedule
from tests.platform.rl.tolls import (
    SEEDS,
    STEPS,
    LaneModule,
    Tolls,
    excess,
    make_engine,
    tolls_config,
)

RATE = Schedule(first=0.05, last=0.05)


def train(learning: Learning, iterations: int) -> float:
    algorithm: Any = tolls_config(learning).build_algo()
    try:
        for _ in range(iterations):
            algorithm.train()
        return excess(algorithm.judge(SEEDS))
    finally:
        algorithm.stop()


@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("method", ["ppo", "reinforce"])
def test_both_methods_learn(method: str) -> None:
    learning = Learning(
        method=method, learning_rate=RATE, entropy=Schedule(first=0, last=0), gradient_clip=10
    )
    assert train(learning, 25) < 0.05


@pytest.mark.usefixtures("ray_session")
def test_without_the_shared_input_the_tolls_drown_the_lesson() -> None:
    learning = Learning(
        method="reinforce", learning_rate=RATE, entropy=Schedule(first=0, last=0), gradient_clip=10
    )
    blind = learning.model_copy(update={"baseline": "time"})
    assert train(learning, 16) < 0.5 * train(blind, 16)


def test_the_engine_cuts_whole_episodes() -> None:
    module = LaneModule(
        observation_space=Tolls.observation_space,
        action_space=Tolls.action_space,
        model_config={},
    )
    engine = make_engine()
    same, other = RolloutSpec(7, luck=1), RolloutSpec(8, luck=2, keep=0.5)
    first, second, third = engine.roll_out(module, [same, RolloutSpec(7, luck=3), other])
    assert first.decisions == second.decisions == STEPS
    assert first.rollout.end_s == STEPS
    observations = first.observations
    assert isinstance(observations, np.ndarray)
    assert isinstance(second.observations, np.ndarray)
    assert np.array_equal(observations, second.observations)  # the same input
    assert len(third.kept) < STEPS
    env = Tolls()
    env.reset(seed=7)
    chosen = first.actions
    rewards = -env.tolls - (chosen != env.open[:STEPS])
    assert first.rollout.reward == pytest.approx(rewards)


def test_a_heavy_sequence_may_count_no_more_than_a_light_one() -> None:
    light, heavy = [np.array([1.0, -1.0]), np.array([2.0])], [np.array([30.0, -10.0, 10.0])]
    for alike, ratio in ((False, 16.3299 / 1.2472), (True, 1.0)):
        found = normalised([light, heavy], alike)
        assert found.mean() == pytest.approx(0, abs=1e-6)
        assert found.std() == pytest.approx(1, abs=1e-6)
        assert found[3:].std() / found[:3].std() == pytest.approx(ratio, rel=1e-3)
