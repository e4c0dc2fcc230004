"""Speed of SURE: rollouts beside RLlib's own runner, decisions beside the full graph, training.

Rollouts are timed by turns (platform/bench/measurements.py). Untrained weights take the same time
as trained ones: compiled code skips inputs of 0 in the graph layers, of which both have as many,
and not in the heads, which begin as zeros.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule

from loadmaster.envs.settings import build_settings
from loadmaster.envs.stream_scaling.env import StreamScalingEnv
from loadmaster.envs.stream_scaling.settings import WARM_UP_MIN, StreamScalingSettings
from loadmaster.models.layers import one_thread
from loadmaster.models.policy import LOSS_TERMS
from loadmaster.models.sure.compiled_decision import JobDecision
from loadmaster.models.sure.graph import pack
from loadmaster.models.sure.module import SureModule
from loadmaster.models.sure.network import SureNetwork
from loadmaster.models.sure.prior import recommend
from loadmaster.models.sure.settings import SureSettings
from loadmaster.platform.bench.measurements import (
    PER_S,
    Figure,
    latency,
    measure_interleaved,
)
from loadmaster.platform.bench.stock_runner import StockRunner
from loadmaster.platform.rl.rollout import RolloutSpec, columns_of
from loadmaster.platform.systems.sure.rollout import SureEngine
from loadmaster.platform.systems.sure.training import SureTraining

GYM_ID = "loadmaster/StreamScaling-v0"
OURS, STOCK = "", "stock_runner/"  # in names of figures
FULL_GRAPH = "the full graph, compiled"


@dataclass(frozen=True)
class BenchSize:
    """Amount of measurements."""

    training: SureTraining = field(default_factory=SureTraining)
    jobs: tuple[str, ...] = ("small-1", "large-2")
    minutes: int = 240  # of an episode
    episodes: int = 16
    # Environments of RLlib's runner, whose best speed counts.
    stock: tuple[int, ...] = (1, 16)
    rounds: int = 2
    windows: tuple[int, ...] = (60, 240, 1440)  # snapshots that a decision depends on
    decisions: int = 50  # one at a time
    minibatch: int = 64  # decisions of a training step
    steps: int = 5  # of training


SIZE = BenchSize()


def measure(log: Callable[[str], None]) -> Iterator[Figure]:
    size = SIZE
    torch.manual_seed(0)
    with one_thread():
        for job in size.jobs:
            yield from rollout_speeds(size, job, log)
        for window in size.windows:
            log(f"sure: one decision at a time, {size.jobs[-1]}, {window} snapshots")
            yield from single_decisions(size, window)
        log(f"sure: training steps, {size.jobs[0]}")
        yield from training_steps(size)


class RllibSure(TorchRLModule):  # type: ignore[misc]
    """SURE's network on RLlib's batches of observations, which samples its own actions."""

    def setup(self) -> None:
        self.network = SureNetwork(build_settings(SureSettings, self.model_config["network"]))
        self.environment = StreamScalingSettings(**self.model_config["environment"])
        self.keys = count()

    @torch.no_grad()
    def _forward(self, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        tables = {name: table.numpy() for name, table in batch[Columns.OBS].items()}
        prior = recommend(tables, self.network.settings.prior, self.environment)
        rows = range(len(prior.gate))
        observations = [{name: table[row] for name, table in tables.items()} for row in rows]
        packed = pack(
            observations, self.network.settings.hops, list(prior.change), prior.gate.tolist()
        )
        found = self.network.act(packed, torch.tensor([next(self.keys) for _ in rows]))
        assert found.log_prob is not None
        gate, task, sampler = (part.view(len(rows), -1).sum(1) for part in found.log_prob)
        sign = torch.where(found.gate, 1.0, -1.0).unsqueeze(1)
        actions = torch.cat([sign, found.change.view(len(rows), -1)], dim=1)
        return {Columns.ACTIONS: actions, Columns.ACTION_LOGP: gate + task + sampler}


def rollout_speeds(size: BenchSize, job: str, log: Callable[[str], None]) -> Iterator[Figure]:
    """Sampled and recorded decisions of a job, on one core."""
    speeds = measure_interleaved(f"sure: {job}", contenders(size, job), size.rounds, log)
    for name, speed in speeds.items():
        yield Figure(f"sure/rollout/{job}/{name}decisions_per_s", speed, PER_S)
    best = max(speed for name, speed in speeds.items() if name.startswith(STOCK))
    yield Figure(f"sure/rollout/{job}/times_stock_runner", speeds[OURS] / best, "times")


def contenders(size: BenchSize, job: str) -> dict[str, Callable[[], int]]:
    """Functions by name that roll out and return the number of decisions."""
    environment = _environment(size, job)
    module = _module(size.training.network)
    engine = SureEngine(environment, (job,))

    def ours(episodes: int) -> int:
        specs = [RolloutSpec(seed, action_seed=seed) for seed in range(episodes)]
        return sum(recording.decisions for recording in engine.roll_out(module, specs))

    steps = ours(1)  # compiles
    ways: dict[str, Callable[[], int]] = {OURS: partial(ours, size.episodes)}
    settings = environment.model_dump(exclude_unset=True)
    single = StreamScalingEnv(**settings)
    spec = RLModuleSpec(
        module_class=RllibSure,
        observation_space=single.observation_space,
        action_space=single.action_space,
        model_config={
            "network": size.training.network.model_dump(),
            "environment": settings,
        },
    )
    for envs in size.stock:
        runner = StockRunner(GYM_ID, settings, spec, spec.build(), envs)
        ways[f"{STOCK}envs-{envs}/"] = partial(runner.sample, steps)
    return ways


def _environment(size: BenchSize, job: str) -> StreamScalingSettings:
    return size.training.environment.model_copy(update={"job": job, "minutes": size.minutes})


def _module(network: SureSettings) -> Any:
    settings = {"network": network.model_dump()}
    return SureModule(observation_space=None, action_space=None, model_config=settings)


def single_decisions(size: BenchSize, window: int) -> Iterator[Figure]:
    """Greedy decisions on the largest job, features kept: the new snapshots, then the decision.

    The full graph has the same layers in the same compiled code, encoded once for all tasks.
    """
    job, every = size.jobs[-1], size.training.environment.decide_every_min
    minutes = max(window - WARM_UP_MIN, 0) + every * size.decisions
    changed = {"job": job, "minutes": minutes, "history": window}
    environment = size.training.environment.model_copy(update=changed)
    env = StreamScalingEnv(**environment.model_dump(exclude_unset=True))
    observation, _ = env.reset(seed=0)
    hold = np.full(env.action_space.shape or (), -1, np.float32)
    while not observation["times"][0].any():  # until the window is full
        observation = env.step(hold)[0]
    network = size.training.network
    ways = {
        name: JobDecision(SureNetwork(own), observation["tasks"], observation["edges"], window)
        for name, own in (
            ("", network),
            (FULL_GRAPH, network.model_copy(update={"sampler": "full"})),
        )
    }
    prior, spent = np.zeros(len(observation["tasks"]), np.float32), dict[str, list[float]]()
    nodes = dict[str, float]()
    for name, way in ways.items():
        way.add(observation["snapshots"], observation["times"])
        nodes[name] = way.decide(observation["restart"], prior, 0.0).nodes
    newest = observation["snapshots"][-every:], observation["times"][-every:]
    for _ in range(size.decisions):
        for name, way in ways.items():
            began = time.perf_counter()
            way.add(*newest)
            way.decide(observation["restart"], prior, 0.0)
            spent.setdefault(name, []).append(1000 * (time.perf_counter() - began))
    figure = f"sure/decision/{job}/window-{window}"
    yield from latency(figure, spent[""], float(np.median(spent[FULL_GRAPH])), FULL_GRAPH)
    values = nodes[""], "nodes", nodes[FULL_GRAPH], FULL_GRAPH
    yield Figure(f"{figure}/nodes", *values, higher_is_better=False)


def training_steps(size: BenchSize) -> Iterator[Figure]:
    """Gradients of a minibatch on the smallest job, with and without mutual information."""
    job = size.jobs[0]
    engine = SureEngine(_environment(size, job), (job,))
    without = size.training.network.model_copy(update={"mutual_information_weight": 0.0})
    for name, network in (("", size.training.network), ("without_mutual_information/", without)):
        module = _module(network)
        specs = [RolloutSpec(seed, action_seed=seed) for seed in range(size.episodes)]
        columns = columns_of(engine.roll_out(module, specs), [{}] * len(specs))
        batches = module.minibatches(columns, "cpu")
        rows = torch.arange(min(size.minibatch, len(columns[Columns.ACTION_LOGP])))
        spent = list[float]()
        for _ in range(size.steps):
            began = time.perf_counter()
            batch = batches.select(rows)
            found = module.forward_train(batch)
            loss = sum(found[LOSS_TERMS].values(), -found[Columns.ACTION_LOGP].mean())
            loss.backward()
            spent.append(1000 * (time.perf_counter() - began))
        figure = f"sure/training/{job}/{name}step_of_{len(rows)}_decisions_ms"
        yield Figure(figure, float(np.median(spent)), "ms", higher_is_better=False)
