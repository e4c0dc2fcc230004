"""The vaults game in RLlib's own multi-agent environment runner, to compare speed with."""

from __future__ import annotations

from typing import Any

import numpy as np
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from ray.rllib.env.multi_agent_env import MultiAgentEnv
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from ray.tune.registry import register_env
from torch import nn

from loadmaster.platform.training.trainer import quiet_rllib
from tests.learning.vaults import ACTIONS, AGENTS, OBSERVATIONS, SEEN, SYMBOLS, Vaults


class StockVault(MultiAgentEnv):
    def __init__(self, config: Any = None) -> None:
        super().__init__()
        self.possible_agents = self.agents = list(AGENTS)
        self.observation_spaces = dict(OBSERVATIONS.spaces)
        self.action_spaces = dict(ACTIONS.spaces)
        self.game, self.games = Vaults(1), 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.games += 1
        seen, _ = self.game.reset(seed=[self.games if seed is None else seed])
        return {agent: own[0] for agent, own in seen.items()}, {}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        keys = {agent: np.array([key]) for agent, key in actions.items()}
        seen, rewards, terminated, truncated, _ = self.game.step(keys)
        all_agents = (*AGENTS, "__all__")
        return (
            {agent: own[0] for agent, own in seen.items()},
            dict.fromkeys(AGENTS, float(rewards[0])),
            dict.fromkeys(all_agents, bool(terminated[0])),
            dict.fromkeys(all_agents, bool(truncated[0])),
            {},
        )


class Keyholder(TorchRLModule):
    """One agent with the same scores; the distribution is RLlib's own."""

    def setup(self) -> None:
        self.scores = nn.Linear(SEEN, SYMBOLS)

    def _forward(self, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        return {Columns.ACTION_DIST_INPUTS: self.scores(batch[Columns.OBS])}


def stock_runner(environments: int) -> MultiAgentEnvRunner:
    register_env("vault", StockVault)
    config = PPOConfig()  # any will do: they all sample with this runner
    config.environment("vault")
    config.env_runners(num_env_runners=0, num_envs_per_env_runner=environments)
    config.multi_agent(policies=set(AGENTS), policy_mapping_fn=lambda agent, *_, **__: agent)
    specs = {agent: RLModuleSpec(module_class=Keyholder) for agent in AGENTS}
    config.rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs=specs))
    config.debugging(seed=0, log_level="ERROR")
    with quiet_rllib():
        return MultiAgentEnvRunner(config=config, worker_index=0)
