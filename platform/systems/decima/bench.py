"""Decima's speed: rollouts beside RLlib's own runner, training, and single decisions.

Untrained weights take the same time as trained ones.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import psutil
import torch
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from loadmaster.envs.dag_scheduling import observation as obs_cols
from loadmaster.envs.dag_scheduling.env import DagSchedulingEnv
from loadmaster.envs.dag_scheduling.jobs import Workload
from loadmaster.envs.dag_scheduling.observation import Observation
from loadmaster.envs.dag_scheduling.rollout import buffers_for, initial_state
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.vector_env import DagSchedulingVectorEnv
from loadmaster.models.decima.compiled import decide, scratch_for
from loadmaster.models.decima.module import DecimaModule
from loadmaster.models.decima.network import DecimaNetwork
from loadmaster.models.decima.policy import DecimaPolicy
from loadmaster.models.decima.weights import weights_of
from loadmaster.models.layers import one_thread
from loadmaster.platform.bench.measurements import (
    PER_S,
    Figure,
    latency,
    measure_interleaved,
)
from loadmaster.platform.bench.stock_runner import StockRunner
from loadmaster.platform.ray.session import ray_session
from loadmaster.platform.rl.rollout import RolloutEngine, RolloutSpec
from loadmaster.platform.rl.vector_rollout import VectorEngine
from loadmaster.platform.systems.decima.rollout import DecimaEngine, run_episode
from loadmaster.platform.systems.decima.training import RECIPE, DecimaTraining
from loadmaster.platform.training.trainer import Trainer

GYM_ID = "loadmaster/DagScheduling-v0"
# Measured beside Loadmaster on one x86-64 machine, in CPU time: docs/benchmarks.md.
PEER = "spark-sched-sim, its Decima"
PEER_DECISIONS_PER_S, PEER_DECISION_MS, PEER_TRAINING_S = 154.0, 2.9, 7.9
OURS, UNRECORDED, STOCK = "", "unrecorded/", "stock_runner/"  # in names of figures


@dataclass(frozen=True)
class Effort:
    """Sizes of the measurements."""

    training: DecimaTraining = field(default_factory=DecimaTraining)
    episodes: int = 20  # in our own engine
    # Environments of a stock runner, whose best speed counts; it peaks at 256.
    stock: tuple[int, ...] = (16, 64, 256)
    vector: int = 16  # environments of a vector engine
    rounds: int = 2  # measurements of every contender
    decisions: int = 5000  # one at a time
    iterations: int = 4  # of training, after one to warm up


EFFORT = Effort()


def measure(report_step: Callable[[str], None]) -> Iterator[Figure]:
    effort = EFFORT
    torch.manual_seed(0)
    with one_thread():
        yield from rollout_speeds(effort, report_step)
        report_step("decima: one decision at a time, 100 stages")
        yield from single_decisions(DecimaNetwork(effort.training.network), effort.decisions)
    report_step("decima: training, rollouts and updates")
    yield from training_speed(effort.training, effort.iterations)


def training_speed(config: DecimaTraining, iterations: int) -> Iterator[Figure]:
    """Seconds for 1,000 decisions made and learnt from, after a first iteration.

    Every decision is learnt from in every pass, so that all iterations do the same work.
    """
    rollouts = config.rollouts.model_copy(update={"keep": 1.0})
    learning = config.training.model_copy(update={"stop_at_kl": float("inf")})
    config = config.model_copy(update={"rollouts": rollouts, "training": learning})
    with ray_session(cpus=config.rollouts.workers + 1):
        trainer = Trainer(RECIPE, config)
        try:
            trainer.step()
            before_s = cpu_seconds()
            steps = [trainer.step() for _ in range(iterations)]
            spent = {"cpu_seconds": cpu_seconds() - before_s}
        finally:
            trainer.stop()
    decisions = sum(step["decisions"] for step in steps)
    for name in ("seconds", "rollout_seconds", "update_seconds"):
        spent[name] = sum(step[name] for step in steps)
    for name, seconds in spent.items():
        peer, peer_name = (PEER_TRAINING_S, PEER) if name == "cpu_seconds" else (None, "")
        per_1000 = 1000 * seconds / decisions
        figure = f"decima/training/{name}_per_1000_decisions"
        yield Figure(figure, per_1000, "s", peer, peer_name, higher_is_better=False)


def cpu_seconds() -> float:
    """CPU time of this process and of those it started, Ray's included."""
    here, total = psutil.Process(), 0.0
    for process in (here, *here.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            total += sum(process.cpu_times()[:2])
    return total


def rollout_speeds(effort: Effort, report_step: Callable[[str], None]) -> Iterator[Figure]:
    """Sampled decisions, the same environment and module for all."""
    speeds = measure_interleaved("decima", contenders(effort), effort.rounds, report_step)
    for name, speed in speeds.items():
        peer = (PEER_DECISIONS_PER_S, PEER) if name in (OURS, UNRECORDED) else (None, "")
        yield Figure(f"decima/rollout/{name}decisions_per_s", speed, PER_S, *peer)
    best = max(speed for name, speed in speeds.items() if name.startswith(STOCK))
    yield Figure("decima/rollout/stock_runner_decisions_per_s", best, PER_S)
    yield Figure("decima/rollout/times_stock_runner", speeds[OURS] / best, "times")


def contenders(effort: Effort) -> dict[str, Callable[[], int]]:
    """Functions that roll out and return the number of decisions, by name."""
    environment, network = effort.training.environment, effort.training.network
    engine = DecimaEngine(environment)
    _, workload = engine.mixture.member(0)
    padded = padded_settings(environment, workload)
    single = DagSchedulingEnv(workload, **padded)
    spec = RLModuleSpec(
        module_class=DecimaModule,
        observation_space=single.observation_space,
        action_space=single.action_space,
        model_config={"network": network.model_dump(), "limits": environment.total_executors},
    )
    module = spec.build()
    seeds = range(effort.episodes)

    def recorded(way: RolloutEngine, count: int) -> int:
        made = way.roll_out(module, [RolloutSpec(seed, action_seed=seed) for seed in range(count)])
        return sum(recording.decisions for recording in made)

    def unrecorded() -> int:
        policy = DecimaPolicy(module.network)
        episodes = (run_episode(policy, environment, s, workload, action_seed=s) for s in seeds)
        return sum(episode.decisions for episode in episodes)

    unrecorded()  # compiles
    by_vector = VectorEngine(
        lambda count, _: DagSchedulingVectorEnv(count, workload, copy=False, **padded)
    )
    ways: dict[str, Callable[[], int]] = {
        OURS: partial(recorded, engine, effort.episodes),
        UNRECORDED: unrecorded,
        f"vector_engine/envs-{effort.vector}/": partial(recorded, by_vector, effort.vector),
    }
    # About an episode an environment, since early decisions have more stages than late ones.
    steps = recorded(engine, effort.episodes) // effort.episodes
    for count in effort.stock:
        runner = StockRunner(GYM_ID, padded, spec, module, count)
        ways[f"{STOCK}envs-{count}/"] = partial(runner.sample, steps)
    return ways


def padded_settings(environment: DagSchedulingSettings, workload: Workload) -> dict[str, Any]:
    """Settings with the smallest padded observations that hold any episode; RLlib needs padding."""
    start = initial_state(environment, workload, seed=0, slots=environment.total_jobs)
    view, _ = buffers_for(start, workload.bank)
    return {
        **environment.model_dump(exclude_unset=True),
        "max_stages": len(view.stages),
        "max_jobs": len(view.jobs),
        "max_edges": len(view.edges),
    }


def single_decisions(network: DecimaNetwork, decisions: int) -> Iterator[Figure]:
    """Time from an observation to a decision, called from Python."""
    env = DagSchedulingEnv(jobs=20)
    observation, _ = env.reset(seed=3)
    while observation["cluster"][obs_cols.STAGES] > 100:
        stage = int(np.argmax(observation["schedulable"]))
        observation = env.step(np.array([stage, 10]))[0]
    view = Observation(**observation)
    weights = weights_of(network)
    scratch = scratch_for(network, len(view.stage_job), len(view.jobs), executors=50)
    decide(view, weights, scratch, 0.5, 0.5)
    spent = []
    for _ in range(decisions):
        began = time.perf_counter()
        decide(view, weights, scratch, 0.5, 0.5)
        spent.append(1000 * (time.perf_counter() - began))
    yield from latency("decima/decision/100-stages", spent, PEER_DECISION_MS, PEER)
