"""Speed of policies in the loop: episodes under a network, and single decisions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import torch

from loadmaster.envs.dag_scheduling import observation as seen
from loadmaster.envs.dag_scheduling.env import DagSchedulingEnv
from loadmaster.envs.dag_scheduling.observation import Observation
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.workloads import load_workload
from loadmaster.models.decima.kernel import decide, scratch_for, weights_of
from loadmaster.models.decima.network import DecimaNetwork
from loadmaster.platform.bench.results import Figure
from loadmaster.platform.rollouts.decima import run_episode

PEER = "spark-sched-sim, its Decima"
EPISODES = 20
DECISIONS = 5000


def measure(say: Callable[[str], None]) -> Iterator[Figure]:
    """One thread; an untrained network costs what a trained one does."""
    torch.manual_seed(0)
    network = DecimaNetwork()
    say("decima: episodes with the policy in the loop")
    yield _episodes(network)
    say("decima: one decision at a time, 100 stages")
    yield from _single_decisions(network)


def _episodes(network: DecimaNetwork) -> Figure:
    """Sampled decisions, batches of 20 jobs on 50 executors, everything included."""
    settings = DagSchedulingSettings()
    workload = load_workload(settings)
    run_episode(network, settings, 0, workload, luck=0)
    began = time.thread_time()
    decisions = sum(
        run_episode(network, settings, seed, workload, luck=seed).decisions
        for seed in range(EPISODES)
    )
    speed = decisions / (time.thread_time() - began)
    return Figure("decima/rollout/decisions_per_s", speed, "decisions/s", 97.0, PEER)


def _single_decisions(network: DecimaNetwork) -> Iterator[Figure]:
    """From tables to decision, as a caller in Python sees it."""
    env = DagSchedulingEnv(jobs=20)
    observation, _ = env.reset(seed=3)
    while observation["cluster"][seen.STAGES] > 100:
        stage = int(np.argmax(observation["schedulable"]))
        observation = env.step(np.array([stage, 10]))[0]
    view = Observation(**observation)
    weights = weights_of(network)
    room = scratch_for(network, len(view.stage_job), len(view.jobs), executors=50)
    decide(view, weights, room, 0.5, 0.5)
    spent = []
    for _ in range(DECISIONS):
        began = time.perf_counter()
        decide(view, weights, room, 0.5, 0.5)
        spent.append(1000 * (time.perf_counter() - began))
    for percentile, peer in ((50, 7.75), (99, 14.8)):
        yield Figure(
            f"decima/decision/100-stages/p{percentile}_ms",
            float(np.percentile(spent, percentile)),
            "ms",
            peer,
            f"{PEER} ({'mean' if percentile == 50 else 'p99'})",
            higher_is_better=False,
        )
