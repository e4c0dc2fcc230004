"""A toy environment with an outside input: which lane is open, and a toll.

The toll is paid for any action and is far larger than the cost of a wrong lane, so returns depend
little on the policy unless rollouts with the same tolls are compared.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule

from loadmaster.platform.rl.algorithm import InputDrivenConfig
from loadmaster.platform.rl.vector_rollout import VectorEngine
from loadmaster.platform.training.config import Learning, Rollouts

LANES, STEPS, HIGHEST_TOLL = 3, 8, 30.0
SEEDS = range(100, 120)  # of evaluation episodes


class Tolls(gymnasium.Env[Any, Any]):
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


def make_engine() -> VectorEngine:
    return VectorEngine(make_envs)


def tolls_config(learning: Learning) -> InputDrivenConfig:
    config = InputDrivenConfig()
    config.environment(observation_space=Tolls.observation_space, action_space=Tolls.action_space)
    config.env_runners(num_env_runners=0)
    config.learners(num_learners=0)
    config.training(lr=0.05)
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=LaneModule))
    config.debugging(seed=3, log_level="ERROR")
    groups = Rollouts(workers=0, sequences=4, per_sequence=4)
    return config.input_driven(engine=make_engine, groups=groups, learning=learning)


def excess(costs: list[float]) -> float:
    """Cost per step without the tolls: 0 is perfect, 2/3 a random policy."""
    paid = []
    for seed, cost in zip(SEEDS, costs, strict=True):
        env = Tolls()
        env.reset(seed=seed)
        paid.append(cost - env.tolls.sum())
    return float(np.mean(paid)) / STEPS
