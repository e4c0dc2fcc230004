"""Gymnasium's Pendulum, to train on: DDPG's own training, and RLlib's SAC of the same size."""

from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import RescaleAction
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from loadmaster.envs.metrics import Measure
from loadmaster.envs.settings import Settings
from loadmaster.models.ddpg.module import DdpgModule
from loadmaster.platform.rl.off_policy import OffPolicyConfig
from loadmaster.platform.rl.vector_rollout import VectorEngine
from loadmaster.platform.training.config import (
    Episodes,
    OffPolicyLearning,
    OffPolicyTraining,
    Recipe,
)

GYM_ID = "Pendulum-v1"
EPISODE = 200  # steps


class Layers(Settings):
    actor: tuple[int, ...] = (64, 64)
    critic: tuple[int, ...] = (64, 64)
    critics: int = 1


class PendulumTraining(OffPolicyTraining):
    rollouts: Episodes = Episodes(workers=0, episodes=2)
    training: OffPolicyLearning = OffPolicyLearning()
    network: Layers = Layers()


def make_env() -> gymnasium.Env[Any, Any]:
    """Pendulum with torques between -1 and 1."""
    return RescaleAction(gymnasium.make(GYM_ID), np.float32(-1), np.float32(1))


def make_envs(count: int, horizon_s: float | None) -> SyncVectorEnv:
    return SyncVectorEnv([make_env] * count)


def algorithm(config: PendulumTraining) -> OffPolicyConfig:
    env = make_env()
    sizes = {"network": config.network.model_dump()}
    return OffPolicyConfig().for_training(
        config,
        spaces=(env.observation_space, env.action_space),
        module=RLModuleSpec(module_class=DdpgModule, model_config=sizes),
        engine=partial(VectorEngine, make_envs),
    )


RECIPE = Recipe(
    system="pendulum",  # has no bundles
    config_class=PendulumTraining,
    metric=lambda config: Measure("return", "return", "", better="higher", relative=False),
    algorithm=algorithm,
    baselines=lambda config, seeds: {},
)


def sac(layers: tuple[int, ...], learning: OffPolicyLearning, warm_up: int) -> SACConfig:
    """RLlib's SAC with one critic of the same layers, and an update for each step."""
    config = SACConfig().environment(GYM_ID)
    config.env_runners(num_env_runners=0, rollout_fragment_length=1)
    config.training(
        lr=None,
        actor_lr=learning.actor_learning_rate,
        critic_lr=learning.critic_learning_rate,
        alpha_lr=learning.actor_learning_rate,
        tau=learning.soft_update,
        gamma=learning.gamma,
        n_step=1,
        twin_q=False,
        train_batch_size_per_learner=learning.minibatch,
        num_steps_sampled_before_learning_starts=warm_up,
        replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": learning.replay},
    )
    config.rl_module(model_config={"fcnet_hiddens": list(layers), "head_fcnet_hiddens": []})
    config.reporting(min_sample_timesteps_per_iteration=warm_up, min_time_s_per_iteration=0)
    config.debugging(seed=0, log_level="ERROR")
    return config
