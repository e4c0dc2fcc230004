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
from typing import Literal, get_args

import numpy as np
import torch

from loadmaster.envs.gpu_scheduling.cluster import MachineGroup
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.sitting import Sitting
from loadmaster.envs.gpu_scheduling.workloads import load_workload
from loadmaster.models.das.kernel import decide, room_for, weights_of
from loadmaster.models.das.module import DasModule
from loadmaster.models.das.network import DasNetwork
from loadmaster.platform.bench.results import Figure
from loadmaster.platform.bench.stock_team import StockTeam
from loadmaster.platform.bench.turns import PER_S, measured_by_turns, one_thread
from loadmaster.platform.policies.das_policy import shown_in
from loadmaster.platform.rllib.recording import Assignment, RolloutEngine
from loadmaster.platform.rollouts.das import DasEngine
from loadmaster.platform.training.das import DasTraining

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
        made = way.roll_out(module, [Assignment(seed, luck=seed) for seed in seeds])
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
        sitting = Sitting(settings, seed, workload)
        sizes = settings.max_queue, len(sitting.view.machines), settings.history
        room = room_for(network.settings, *sizes)
        decide(sitting.view, weights, room, False, 0)  # nobody waits: it is only loaded
        while len(spent) < effort.decisions and sitting.to_next_decision():
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
    sitting = Sitting(settings, 0, load_workload(settings))
    assert sitting.to_next_decision()
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
