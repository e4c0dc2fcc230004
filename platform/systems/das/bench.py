"""DAS's speed: rollouts beside torch's and RLlib's own runner, and single decisions.

How rollouts are timed: turns.py. Weights are as after the first step of training: before it the
layers have no say and would be skipped, from then on they cost what trained ones do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Literal, get_args

import numpy as np
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
from loadmaster.envs.gpu_scheduling.cluster import MachineGroup
from loadmaster.envs.gpu_scheduling.env import GpuSchedulingEnv
from loadmaster.envs.gpu_scheduling.episode_runner import EpisodeRunner
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.workloads import load_workload
from loadmaster.envs.settings import build_settings
from loadmaster.models.das.compiled import decide, weights_of, workspace_for
from loadmaster.models.das.module import DasModule
from loadmaster.models.das.network import DasNetwork
from loadmaster.models.das.ordering import OrderingAgent
from loadmaster.models.das.placement import PlacementAgent
from loadmaster.models.das.settings import DasSettings
from loadmaster.platform.bench.measurements import PER_S, Figure, measured_by_turns, one_thread
from loadmaster.platform.bench.stock_runner import Stock
from loadmaster.platform.rl.rollout import RolloutEngine, RolloutSpec
from loadmaster.platform.systems.das.policy import shown_in
from loadmaster.platform.systems.das.rollout import DasEngine
from loadmaster.platform.systems.das.training import DasTraining
from loadmaster.platform.training.trainer import quiet_rllib

# RLlib's own multi-agent runner on the GPU environment, as a yardstick for our rollouts of DAS.


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


OURS, GREEDY, VECTOR, STOCK = "", "greedy/", "vector_engine/", "stock_runner/"  # names of figures
TIMES = 7  # that a slow decision is made
A_SAY = 1e-3  # spread of the weights of heads that begin with zeros
Cluster = Literal["small", "medium", "large"]


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    training: DasTraining = field(default_factory=DasTraining)
    episodes: int = 32  # of either engine; the vector engine steps them together
    stock: tuple[int, ...] = (1, 16)  # environments of a stock runner; the fastest counts
    steps: int = 200  # of each of those
    rounds: int = 2  # turns of every contender
    decisions: int = 2000  # one at a time
    clusters: tuple[Cluster, ...] = get_args(Cluster)  # that these are made on
    machines: int = 800  # where like machines share cells, and torch decides
    startable: tuple[int, ...] = (1, 8, 16, 64)  # jobs that could start there


EFFORT = Effort()


def measure(say: Callable[[str], None]) -> Iterator[Figure]:
    effort = EFFORT
    torch.manual_seed(0)
    with one_thread():
        yield from rollout_speeds(effort, say)
        for cluster in effort.clusters:
            say(f"das: one decision at a time, {cluster} cluster")
            yield from single_decisions(effort, cluster)
        say(f"das: one decision at a time, {effort.machines} machines")
        for jobs in effort.startable:
            yield many_machines(effort, jobs)


def rollout_speeds(effort: Effort, say: Callable[[str], None]) -> Iterator[Figure]:
    """Sampled decisions of both agents, in the same environment."""
    speeds = measured_by_turns("das", contenders(effort), effort.rounds, say)
    for name, speed in speeds.items():
        yield Figure(f"das/rollout/{name}decisions_per_s", speed, PER_S)
    for what in (VECTOR, STOCK):
        best = max(speed for name, speed in speeds.items() if name.startswith(what))
        name = f"das/rollout/times_{what.strip('/')}"
        yield Figure(name, speeds[OURS] / best, "times")


def contenders(effort: Effort) -> dict[str, Callable[[], int]]:
    """Ways to roll out, each ready to run and to say how many decisions it made."""
    environment, network = effort.training.environment, effort.training.network
    engine = DasEngine(environment)
    module = DasModule(
        observation_space=None, action_space=None, model_config={"network": network.model_dump()}
    )
    give_layers_a_say(module.network)
    seeds = range(effort.episodes)

    def recorded(way: RolloutEngine) -> int:
        made = way.roll_out(module, [RolloutSpec(seed, luck=seed) for seed in seeds])
        return sum(recording.decisions for recording in made)

    def greedy() -> int:
        return sum(verdict.decisions for verdict in engine.loop.judge(module, seeds))

    engine.loop.judge(module, [0])  # compiles, where that was never done
    ways: dict[str, Callable[[], int]] = {
        OURS: partial(recorded, engine.loop),
        GREEDY: greedy,
        f"{VECTOR}envs-{effort.episodes}/": partial(recorded, engine.vector),
    }
    for envs in effort.stock:
        team = StockTeam(environment, network, envs)
        ways[f"{STOCK}envs-{envs}/"] = partial(team.sample, effort.steps)
    return ways


def single_decisions(effort: Effort, cluster: Cluster) -> Iterator[Figure]:
    """Greedy ones of whole episodes, from tables to decision, as a caller in Python sees them."""
    network, preempt = DasNetwork(effort.training.network), effort.training.environment.preempt
    give_layers_a_say(network)
    settings = GpuSchedulingSettings(cluster=cluster, preempt=preempt)
    workload, weights, spent = load_workload(settings), weights_of(network), list[float]()
    for seed in count():
        sitting = EpisodeRunner(settings, seed, workload)
        sizes = settings.max_queue, len(sitting.view.machines), settings.history
        room = workspace_for(network.settings, *sizes)
        decide(sitting.view, weights, room, False, 0)  # nobody waits: it is only loaded
        while len(spent) < effort.decisions and sitting.advance_to_decision():
            began = time.perf_counter()
            decide(sitting.view, weights, room, False, 0)
            spent.append(1000 * (time.perf_counter() - began))
            sitting.decide(room.priority, room.affinity)
        if len(spent) == effort.decisions:
            break
    for percentile in (50, 99):
        name, value = f"das/decision/{cluster}/p{percentile}_ms", np.percentile(spent, percentile)
        yield Figure(name, float(value), "ms", higher_is_better=False)


def many_machines(effort: Effort, jobs: int) -> Figure:
    """A greedy decision about so many jobs that all could start on an empty cluster."""
    network = DasNetwork(effort.training.network)
    give_layers_a_say(network)
    group = MachineGroup(count=effort.machines, gpus=8, gpu="V100", cpus=96, machines_per_rack=8)
    settings = GpuSchedulingSettings(machines=(group,), arrivals="batch", jobs=jobs, max_queue=jobs)
    sitting = EpisodeRunner(settings, 0, load_workload(settings))
    assert sitting.advance_to_decision()
    seen, spent = shown_in(sitting), list[float]()
    for _ in range(TIMES):
        began = time.process_time()
        network.decide(seen)
        spent.append(1000 * (time.process_time() - began))
    name = f"das/decision/{effort.machines}-machines/startable-{jobs}/cpu_ms"
    return Figure(name, float(np.median(spent)), "ms", higher_is_better=False)


@torch.no_grad()
def give_layers_a_say(network: DasNetwork) -> None:
    for head in (network.ordering.rank, network.placement.prior, network.placement.spread):
        head.weight.normal_(std=A_SAY)
