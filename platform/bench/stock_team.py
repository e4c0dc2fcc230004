"""RLlib's own multi-agent runner on the GPU environment, as a yardstick for our rollouts of DAS."""

from __future__ import annotations

from typing import Any

import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from ray.rllib.env.multi_agent_env import MultiAgentEnv
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from ray.tune.registry import register_env

from loadmaster.envs.gpu_scheduling.actions import AGENTS, ORDERING, PLACEMENT
from loadmaster.envs.gpu_scheduling.env import GpuSchedulingEnv
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.settings import build_settings
from loadmaster.models.das.ordering import OrderingAgent
from loadmaster.models.das.placement import PlacementAgent
from loadmaster.models.das.settings import DasSettings
from loadmaster.platform.bench.stock_runner import Stock
from loadmaster.platform.training.trainer import quiet_rllib

NAME = "loadmaster-stock-cluster"


class StockCluster(MultiAgentEnv):  # type: ignore[misc]
    """The environment as RLlib wants it."""

    def __init__(self, config: Any = None) -> None:
        super().__init__()
        self._env = GpuSchedulingEnv(**config)
        self.possible_agents = self.agents = list(AGENTS)
        self.observation_spaces = {each: self._env.observation_space(each) for each in AGENTS}
        self.action_spaces = self._env.action_spaces

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        return self._env.reset(seed=seed)

    def step(self, actions: Any) -> tuple[Any, ...]:
        seen, rewards, over, cut_off, info = self._env.step(actions)
        over["__all__"], cut_off["__all__"] = all(over.values()), all(cut_off.values())
        return seen, rewards, over, cut_off, info


class StockAgent(TorchRLModule):  # type: ignore[misc]
    """One of DAS's agents by itself; it draws, since RLlib knows no such distribution."""

    def setup(self) -> None:
        settings = build_settings(DasSettings, self.model_config["network"])
        places = self.model_config["agent"] == PLACEMENT
        self.agent = (PlacementAgent if places else OrderingAgent)(settings)

    @torch.no_grad()
    def _forward(self, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        seen = batch[Columns.OBS]
        seen = seen | {name: seen[name].bool() for name in ("job_mask", "heeded", "history_mask")}
        of_jobs = self.agent(seen)
        shape = seen["held"].shape if self.model_config["agent"] == PLACEMENT else None
        drawn = of_jobs.sample(torch.randn(shape or seen["job_mask"].shape))
        return {Columns.ACTIONS: drawn, Columns.ACTION_LOGP: of_jobs.log_prob(drawn)}


class StockTeam(Stock):
    """A runner in this process with a number of environments."""

    def __init__(
        self, settings: GpuSchedulingSettings, network: DasSettings, environments: int
    ) -> None:
        register_env(NAME, StockCluster)
        config = PPOConfig()  # any will do: they all sample with this runner
        config.environment(NAME, env_config=settings.model_dump(exclude_unset=True))
        config.env_runners(num_env_runners=0, num_envs_per_env_runner=environments)
        config.multi_agent(policies=set(AGENTS), policy_mapping_fn=lambda agent, *_, **__: agent)
        specs = {
            agent: RLModuleSpec(
                module_class=StockAgent,
                model_config={"network": network.model_dump(), "agent": agent},
            )
            for agent in (ORDERING, PLACEMENT)
        }
        config.rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs=specs))
        config.debugging(seed=0, log_level="ERROR")
        with quiet_rllib():
            runner = MultiAgentEnvRunner(config=config, worker_index=0)
        super().__init__(runner, environments)
