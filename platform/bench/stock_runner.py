"""RLlib's own environment runners, for comparison."""

from collections.abc import Mapping
from typing import Any

import gymnasium
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

from loadmaster.envs.registry import register_environments
from loadmaster.platform.training.trainer import quiet_rllib

FRAGMENT = 50  # steps of an environment per request


class Stock:
    """An RLlib runner in this process."""

    def __init__(self, runner: Any, environments: int) -> None:
        self.runner, self.environments = runner, environments
        with quiet_rllib():
            runner.sample(num_timesteps=environments)

    def sample(self, steps: int) -> int:
        """Sample about `steps` decisions in every environment from its start; return the total."""
        made = 0
        with quiet_rllib():
            while made < steps * self.environments:
                wanted = min(FRAGMENT, steps) * self.environments
                episodes = self.runner.sample(num_timesteps=wanted, force_reset=made == 0)
                made += sum(episode.env_steps() for episode in episodes)
        return made


class StockRunner(Stock):
    """SingleAgentEnvRunner with environments that step in one call."""

    def __init__(
        self, gym_id: str, settings: Mapping[str, Any], spec: Any, module: Any, environments: int
    ) -> None:
        register_environments()
        config = PPOConfig()  # every algorithm samples with this runner
        config.environment(gym_id, env_config=dict(settings))
        config.env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=environments,
            gym_env_vectorize_mode=gymnasium.VectorizeMode.VECTOR_ENTRY_POINT,
        )
        config.rl_module(rl_module_spec=spec)
        config.debugging(seed=0, log_level="ERROR")
        with quiet_rllib():
            runner = SingleAgentEnvRunner(config=config, worker_index=0)
            runner.module.set_state(module.get_state())
        super().__init__(runner, environments)
