"""Speed of the GPU cluster's simulator beside the one published with Alibaba's PAI trace.

That one ticks every second, knows neither interference nor fees, and skips jobs that do not fit.
Ours keeps the same rules here, and then reaches the same mean completion times (its tests hold them
to the printed digit). CPU times are those of a run alone, its jobs ready in memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from loadmaster.envs.gpu_scheduling.baselines import BASELINES
from loadmaster.envs.gpu_scheduling.episode import Episode, build_episode
from loadmaster.envs.gpu_scheduling.jobs import Jobs, take
from loadmaster.envs.gpu_scheduling.rollout import run_baseline
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.vector import GpuSchedulingVectorEnv
from loadmaster.platform.bench.fresh_process import cold_starts
from loadmaster.platform.bench.results import Figure

PEER = "the public PAI simulator"  # one thread of the same kind of machine
PEER_CPU_S = 11.5  # its fastest run on three nodes
PEER_MANY_CPU_S = 52.0  # its fastest run of 20,000 jobs; the slowest took 111
THREE_NODES = {"count": 3, "gpus": 8, "gpu": "V100", "cpus": 96}
ONE_NODE = {"count": 1, "gpus": 6500, "gpu": "V100", "cpus": 150_930}
RECORDED, RECORDED_GAP_S = 3046, 217.3  # GPU jobs of the trace's public sample
MANY = 20_000
RUNS, PATIENCE_S = 10, 2.0


def gpu_scheduling(say: Callable[[str], None]) -> Iterator[Figure]:
    yield from cold_starts("gpu_scheduling", "GpuSchedulingSettings", "fifo-first-fit", say)
    # Where the trace is missing generated jobs stand in for it, under another name.
    traced = bool(os.environ.get("LOADMASTER_DATA"))
    yield from three_nodes(traced, say)
    yield from many_jobs(traced, say)
    for count in (16, 64):
        say(f"{count} environments at once")
        yield vector_speed(count)


def three_nodes(traced: bool, say: Callable[[str], None]) -> Iterator[Figure]:
    """The sample's jobs as they came, on 3 x 8 GPUs; first the slowest of the four policies."""
    source: dict[str, Any] = {"workload": "pai", "arrivals": "trace"}
    if not traced:
        source |= {"workload": "pai-like", "jobs": RECORDED, "interarrival_s": RECORDED_GAP_S}
    settings = same_rules(THREE_NODES, **source)
    episode = build_episode(settings, 0)
    name = f"gpu_scheduling/{source['workload']}-3x8"
    spent = {}
    for policy in ("fifo-first-fit", "sjf-first-fit", "fifo-load-balance", "sjf-load-balance"):
        say(f"{policy} on 3 x 8 GPUs, {source['workload']}")
        spent[f"{name}/{policy}/cpu_s"] = cpu_s(settings, episode, policy)
    for figure, seconds in {f"{name}/cpu_s": max(spent.values()), **spent}.items():
        yield beside_peer(figure, seconds, PEER_CPU_S if traced else None)


def many_jobs(traced: bool, say: Callable[[str], None]) -> Iterator[Figure]:
    """20,000 jobs, 1,000 of them a minute, on a pool of 6,500 GPUs."""
    source: dict[str, Any] = {"workload": "pai"} if traced else {"jobs": MANY}
    settings = same_rules(ONE_NODE, arrivals="per-minute", **source)
    episode = build_episode(settings, 0)
    if traced:
        episode = episode._replace(jobs=repeated(episode.jobs, MANY, settings.jobs_per_minute))
    name = f"gpu_scheduling/{'' if traced else 'pai-like-'}{MANY}-jobs"
    for ordering in ("fifo", "sjf"):
        say(f"{ordering}, {MANY:,} jobs on 6,500 GPUs")
        seconds = cpu_s(settings, episode, f"{ordering}-first-fit")
        yield beside_peer(f"{name}/{ordering}/cpu_s", seconds, PEER_MANY_CPU_S if traced else None)


def vector_speed(count: int) -> Figure:
    """Steps a second on the small cluster with observations built, any priorities and places."""
    envs = GpuSchedulingVectorEnv(count, copy=False)
    envs.reset(seed=0)
    envs.action_space.seed(0)
    # Drawn before: a policy's cost is not the environment's.
    actions = [envs.action_space.sample() for _ in range(8)]
    envs.step(actions[0])
    began, steps = time.thread_time(), 0
    while time.thread_time() - began < 1.0:
        for action in actions:
            envs.step(action)
        steps += len(actions) * count
    speed = steps / (time.thread_time() - began)
    return Figure(f"gpu_scheduling/vector-{count}/steps_per_s", speed, "steps/s")


def same_rules(machines: dict[str, Any], **others: Any) -> GpuSchedulingSettings:
    """Settings under which ours is the PAI simulator's twin."""
    return GpuSchedulingSettings.model_validate(
        {"machines": [machines], "interference": False, "stragglers": 0, **others}
    )


def repeated(jobs: Jobs, count: int, per_minute: int) -> Jobs:
    """`count` of these jobs, drawn with replacement, so many at each full minute."""
    drawn = take(jobs, np.random.default_rng(0).integers(len(jobs.job_id), size=count))
    number = np.arange(count)
    arrival_s = (60 * (number // per_minute)).astype(np.float64)
    return drawn._replace(job_id=number, arrival_s=arrival_s)


def cpu_s(settings: GpuSchedulingSettings, episode: Episode, policy: str) -> float:
    """The quickest of several runs: what a busy machine adds is not the simulator's.

    The first may have to compile.
    """
    spent: list[float] = []
    while len(spent) < RUNS and (len(spent) < 2 or sum(spent[1:]) < PATIENCE_S):
        began = time.thread_time()
        run_baseline(settings, episode.cluster, episode.jobs, BASELINES[policy], episode.luck)
        spent.append(time.thread_time() - began)
    return min(spent)


def beside_peer(name: str, seconds: float, peer: float | None) -> Figure:
    return Figure(name, seconds, "s", peer, PEER if peer else "", higher_is_better=False)
