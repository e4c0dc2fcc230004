"""Speed of DAS: rollouts beside torch and RLlib's own runner, and single decisions.

Rollouts are timed by turns (platform/bench/measurements.py). The heads' weights are those after a
first training step: zero weights would let compiled code skip the layers.
"""

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

from loadmaster.envs.gpu_scheduling.actions import AGENTS, PLACEMENT
from loadmaster.envs.gpu_scheduling.decision_state import SHOWN
from loadmaster.envs.gpu_scheduling.env import GpuSchedulingEnv
from loadmaster.envs.gpu_scheduling.episode_runner import EpisodeRunner
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings, MachineGroup
from loadmaster.envs.gpu_scheduling.workloads import load_workload
from loadmaster.envs.settings import build_settings
from loadmaster.models.das.compiled import decide, weights_of, workspace_for
from loadmaster.models.das.module import DasModule
from loadmaster.models.das.network import DasNetwork, batch_of_one
from loadmaster.models.das.ordering import OrderingAgent
from loadmaster.models.das.placement import PlacementAgent
from loadmaster.models.das.settings import DasSettings
from loadmaster.models.layers import one_thread
from loadmaster.platform.bench.measurements import (
    PER_S,
    Figure,
    latency,
    measure_interleaved,
)
from loadmaster.platform.bench.stock_runner import Stock
from loadmaster.platform.rl.rollout import RolloutEngine, RolloutSpec
from loadmaster.platform.systems.das.rollout import DasEngine
from loadmaster.platform.systems.das.training import DasTraining
from loadmaster.platform.training.trainer import quiet_rllib

OURS, GREEDY, VECTOR, STOCK = "", "greedy/", "vector_engine/", "stock_runner/"  # names of figures
REPEATS = 7  # of a slow decision
HEAD_STD = 1e-3  # of the weights of heads that are initialised to zero
ENV_NAME = "loadmaster-rllib-gpu-scheduling"
Cluster = Literal["small", "medium", "large"]


class RllibEnv(MultiAgentEnv):  # type: ignore[misc]
    """The environment with RLlib's interface."""

    def __init__(self, config: Any = None) -> None:
        super().__init__()
        self._env = GpuSchedulingEnv(**config)
        self.possible_agents = self.agents = list(AGENTS)
        self.observation_spaces = {each: self._env.observation_space(each) for each in AGENTS}
        self.action_spaces = self._env.action_spaces

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        return self._env.reset(seed=seed)

    def step(self, actions: Any) -> tuple[Any, ...]:
        observation, rewards, over, cut_off, info = self._env.step(actions)
        over["__all__"], cut_off["__all__"] = all(over.values()), all(cut_off.values())
        return observation, rewards, over, cut_off, info


class RllibAgent(TorchRLModule):  # type: ignore[misc]
    """One of DAS's agents, which samples its own actions."""

    def setup(self) -> None:
        settings = build_settings(DasSettings, self.model_config["network"])
        places = self.model_config["agent"] == PLACEMENT
        self.agent = (PlacementAgent if places else OrderingAgent)(settings)

    @torch.no_grad()
    def _forward(self, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        observation = batch[Columns.OBS]
        observation = observation | {
            name: observation[name].bool() for name in ("job_mask", "heeded", "history_mask")
        }
        of_jobs = self.agent(observation)
        shape = observation["held"].shape if self.model_config["agent"] == PLACEMENT else None
        drawn = of_jobs.sample(torch.randn(shape or observation["job_mask"].shape))
        return {Columns.ACTIONS: drawn, Columns.ACTION_LOGP: of_jobs.log_prob(drawn)}


def rllib_runner(settings: GpuSchedulingSettings, network: DasSettings, environments: int) -> Stock:
    """RLlib's multi-agent runner in this process."""
    register_env(ENV_NAME, RllibEnv)
    config = PPOConfig()  # all algorithms sample with this runner
    config.environment(ENV_NAME, env_config=settings.model_dump(exclude_unset=True))
    config.env_runners(num_env_runners=0, num_envs_per_env_runner=environments)
    config.multi_agent(policies=set(AGENTS), policy_mapping_fn=lambda agent, *_, **__: agent)
    own = {agent: {"network": network.model_dump(), "agent": agent} for agent in AGENTS}
    specs = {
        agent: RLModuleSpec(module_class=RllibAgent, model_config=own[agent]) for agent in AGENTS
    }
    config.rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs=specs))
    config.debugging(seed=0, log_level="ERROR")
    with quiet_rllib():
        return Stock(MultiAgentEnvRunner(config=config, worker_index=0), environments)


@dataclass(frozen=True)
class BenchSize:
    """Amount of measurements."""

    training: DasTraining = field(default_factory=DasTraining)
    episodes: int = 32  # of each engine; the vector engine steps them together
    # Environments of RLlib's runner, whose best speed counts; it peaks at 64 to 128.
    stock: tuple[int, ...] = (16, 64, 128)
    stock_decisions: int = 6400  # of each of these
    rounds: int = 2
    decisions: int = 2000  # one at a time
    clusters: tuple[Cluster, ...] = get_args(Cluster)
    machines: int = 800  # grouped into cells, so decided in torch
    startable: tuple[int, ...] = (1, 8, 16, 64)  # jobs


SIZE = BenchSize()


def measure(log: Callable[[str], None]) -> Iterator[Figure]:
    size = SIZE
    torch.manual_seed(0)
    with one_thread():
        yield from rollout_speeds(size, log)
        for cluster in size.clusters:
            log(f"das: one decision at a time, {cluster} cluster")
            yield from single_decisions(size, cluster)
        log(f"das: one decision at a time, {size.machines} machines")
        for jobs in size.startable:
            yield many_machines(size, jobs)


def rollout_speeds(size: BenchSize, log: Callable[[str], None]) -> Iterator[Figure]:
    """Decisions of both agents per second, and the speedup over the best of each alternative."""
    speeds = measure_interleaved("das", rollout_functions(size), size.rounds, log)
    for name, speed in speeds.items():
        yield Figure(f"das/rollout/{name}decisions_per_s", speed, PER_S)
    for what in (VECTOR, STOCK):
        best = max(speed for name, speed in speeds.items() if name.startswith(what))
        name = f"das/rollout/times_{what.strip('/')}"
        yield Figure(name, speeds[OURS] / best, "times")


def rollout_functions(size: BenchSize) -> dict[str, Callable[[], int]]:
    """Functions by name that make rollouts and return the number of decisions."""
    environment, network = size.training.environment, size.training.network
    engine = DasEngine(environment)
    module = DasModule(
        observation_space=None, action_space=None, model_config={"network": network.model_dump()}
    )
    randomise_heads(module.network)
    seeds = range(size.episodes)

    def recorded(engine: RolloutEngine) -> int:
        made = engine.roll_out(module, [RolloutSpec(seed, action_seed=seed) for seed in seeds])
        return sum(recording.decisions for recording in made)

    def greedy() -> int:
        return sum(score.decisions for score in engine.loop.judge(module, seeds))

    engine.loop.roll_out(module, [RolloutSpec(0, action_seed=0)])  # compiles, as does the next
    engine.loop.judge(module, [0])
    functions: dict[str, Callable[[], int]] = {
        OURS: partial(recorded, engine.loop),
        GREEDY: greedy,
        f"{VECTOR}envs-{size.episodes}/": partial(recorded, engine.vector),
    }
    for envs in size.stock:
        stock = rllib_runner(environment, network, envs)
        steps = -(-size.stock_decisions // envs)
        functions[f"{STOCK}envs-{envs}/"] = partial(stock.sample, steps)
    return functions


def single_decisions(size: BenchSize, cluster: Cluster) -> Iterator[Figure]:
    """Latency of greedy decisions in whole episodes, called from Python."""
    network, preempt = DasNetwork(size.training.network), size.training.environment.preempt
    randomise_heads(network)
    settings = GpuSchedulingSettings(cluster=cluster, preempt=preempt)
    workload, weights, spent = load_workload(settings), weights_of(network), list[float]()
    for seed in count():
        runner = EpisodeRunner(settings, seed, workload)
        sizes = settings.max_queue, len(runner.view.machines), settings.history
        work = workspace_for(network.settings, *sizes)
        decide(runner.view, weights, work, False, 0)  # loads the function
        while len(spent) < size.decisions and runner.advance_to_decision():
            began = time.perf_counter()
            decide(runner.view, weights, work, False, 0)
            spent.append(1000 * (time.perf_counter() - began))
            runner.decide(work.priority, work.affinity)
        if len(spent) == size.decisions:
            break
    yield from latency(f"das/decision/{cluster}", spent)


def many_machines(size: BenchSize, jobs: int) -> Figure:
    """CPU time of a greedy decision about jobs that could all start on an empty cluster."""
    network = DasNetwork(size.training.network)
    randomise_heads(network)
    group = MachineGroup(count=size.machines, gpus=8, gpu="V100", cpus=96, machines_per_rack=8)
    settings = GpuSchedulingSettings(machines=(group,), arrivals="batch", jobs=jobs, max_queue=jobs)
    runner = EpisodeRunner(settings, 0, load_workload(settings))
    assert runner.advance_to_decision()
    observation = batch_of_one(runner.view, int(runner.decision_state.counts[SHOWN]))
    spent = list[float]()
    for _ in range(REPEATS):
        began = time.process_time()
        network.mean_actions(observation)
        spent.append(1000 * (time.process_time() - began))
    name = f"das/decision/{size.machines}-machines/startable-{jobs}/cpu_ms"
    return Figure(name, float(np.median(spent)), "ms", higher_is_better=False)


@torch.no_grad()
def randomise_heads(network: DasNetwork) -> None:
    for head in (network.ordering.rank, network.placement.prior, network.placement.spread):
        head.weight.normal_(std=HEAD_STD)
