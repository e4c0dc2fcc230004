"""An off-policy training whose actions must follow the context: observations tell nothing."""

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from loadmaster.models.ddpg.module import DdpgModule
from loadmaster.platform.rl.off_policy import OffPolicy, OffPolicyConfig
from loadmaster.platform.rl.rollout import RolloutSpec
from loadmaster.platform.rl.vector_rollout import VectorEngine
from loadmaster.platform.training.config import Episodes, OffPolicyLearning

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_session")]

WANTED = (-0.6, 0.1, 0.7)  # action by kind of environment
STEPS = 20


class Guess(gymnasium.Env[Any, Any]):
    """The wanted action depends on the seed alone."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.wanted = WANTED[kind_of(seed)]
        self.steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        reward = -10 * (float(action[0]) - self.wanted) ** 2
        return self._observe(), reward, False, self.steps == STEPS, {}

    def _observe(self) -> Any:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)


def kind_of(seed: int) -> int:
    return seed % len(WANTED)


class ByKind(OffPolicy):
    """Gives every episode the context of its environment."""

    def draw_specs(self) -> list[RolloutSpec]:
        return [
            RolloutSpec(spec.sequence, spec.action_seed, context=kind_of(spec.sequence))
            for spec in super().draw_specs()
        ]


def make_envs(count: int, horizon_s: float | None) -> SyncVectorEnv:
    return SyncVectorEnv([Guess] * count)


def test_actions_follow_the_context() -> None:
    config = OffPolicyConfig(algo_class=ByKind).rollout_engine(
        engine=partial(VectorEngine, make_envs, context_of=kind_of),
        sampling=Episodes(workers=0, episodes=6),
        learning=OffPolicyLearning(
            warm_up=240, gamma=0.1, soft_update=0.05, actor_learning_rate=3e-3
        ),
    )
    config.environment(observation_space=Guess.observation_space, action_space=Guess.action_space)
    config.env_runners(num_env_runners=0)
    sizes = {"network": {"context": 4, "actor": [32], "critic": [32]}, "contexts": len(WANTED)}
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=DdpgModule, model_config=sizes))
    config.debugging(seed=1, log_level="ERROR")
    algorithm = config.build_algo()
    try:
        table = np.random.default_rng(1).standard_normal((len(WANTED), 4)).astype(np.float32)
        algorithm.set_contexts(table)
        for _ in range(12):
            algorithm.train()
        returns = algorithm.episode_values(range(6))
        assert np.mean(returns) > -0.3 * STEPS  # the best action for all kinds: -2.9 a step
        assert np.array_equal(algorithm.module_weights()["contexts"], table)
        drawn = algorithm.replay.draw((100,), seed=1)
        wanted = np.array(WANTED)[drawn.integers["context_id"]]
        assert drawn.rewards == pytest.approx(-10 * (drawn.actions[:, 0] - wanted) ** 2, abs=1e-4)
    finally:
        algorithm.stop()
