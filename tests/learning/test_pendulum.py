"""DDPG swings up Gymnasium's Pendulum."""

import numpy as np
import pytest

from loadmaster.envs.settings import build_settings
from loadmaster.platform.bench.pendulum import EPISODE, RECIPE, PendulumTraining
from loadmaster.platform.training.trainer import Trainer

pytestmark = [pytest.mark.slow, pytest.mark.long]

Settings = dict[str, object]
UNTRAINED, ENOUGH = -1000.0, -250.0  # mean returns; -150 is about the best of any policy


@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize(
    ("steps", "network", "training"),
    [
        (10_000, {}, {}),
        # TD3, whose actor is updated half as often.
        (
            14_000,
            {"critics": 2},
            {"actor_delay": 2, "smoothing": 0.2, "actor_learning_rate": 1e-3},
        ),
    ],
)
def test_pendulum_is_learnt(steps: int, network: Settings, training: Settings) -> None:
    config = build_settings(PendulumTraining, {"network": network, "training": training})
    trainer = Trainer(RECIPE, config)
    seeds = range(10)
    try:
        assert np.mean(trainer.algorithm.episode_values(seeds)) < UNTRAINED
        for _ in range(steps // (2 * EPISODE)):
            trainer.step()
        assert trainer.decisions == steps
        assert np.mean(trainer.algorithm.episode_values(seeds)) > ENOUGH
    finally:
        trainer.stop()
