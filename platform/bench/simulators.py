"""Speed and memory of the simulators, one thread each.

Speeds are per second of this thread's CPU time: a busy machine then changes them little. What a
user waits for (compiling, loading) is in seconds on the clock.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from loadmaster.envs.dag_scheduling.episode import EpisodeResult, run_episode
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.vector_env import DagSchedulingVectorEnv
from loadmaster.envs.dag_scheduling.workloads import load_workload
from loadmaster.envs.gpu_scheduling.baselines import BASELINES
from loadmaster.envs.gpu_scheduling.episode import Episode, build_episode
from loadmaster.envs.gpu_scheduling.jobs import Jobs, select_jobs
from loadmaster.envs.gpu_scheduling.rollout import run_baseline
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.vector_env import GpuSchedulingVectorEnv
from loadmaster.platform.bench.measurements import Figure, cold_starts, in_fresh_process

# Speed of the GPU cluster's simulator beside the one published with Alibaba's PAI trace.
#
# That one ticks every second, knows neither interference nor fees, and skips jobs that do not fit.
# Ours keeps the same rules here, and then reaches the same mean completion times (its tests hold
# them
# to the printed digit). CPU times are those of a run alone, its jobs ready in memory.


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
    drawn = select_jobs(jobs, np.random.default_rng(0).integers(len(jobs.job_id), size=count))
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


# Measured on one thread of one machine, fair policy, 50 executors, 200 TPC-H jobs at 25 s.
ORIGINAL = "Decima's simulator (2019)"
SPARK_SCHED_SIM = "spark-sched-sim"
PEER_DECISIONS = {"fair": 1076.0, "fifo": 1097.0}
PEER_TASKS = {"fair": 68_000.0}
EPISODES = 20

_LONG_EPISODE = """
from pathlib import Path
from loadmaster.envs.dag_scheduling.episode import run_episode
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
def peak_mb(jobs):
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of loading and compiling
    result = run_episode("fair", DagSchedulingSettings(arrivals="poisson", jobs=jobs), 0)
    assert len(result.jct_s) == jobs + 1
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024
peak_mb(1_000)  # whatever the first run allocates once
print(peak_mb(10_000) - peak_mb(1_000))
"""


def measure(say: Callable[[str], None]) -> Iterator[Figure]:
    """All figures of this group; `say` is told what is being measured."""
    yield from dag_scheduling(say)
    yield from gpu_scheduling(say)


def dag_scheduling(say: Callable[[str], None]) -> Iterator[Figure]:
    yield from cold_starts("dag_scheduling", "DagSchedulingSettings", "fair", say)
    workloads = ["tpch-like"]
    if os.environ.get("LOADMASTER_DATA"):
        workloads.append("tpch")
    for workload in workloads:
        prefix = "dag_scheduling" if workload == "tpch-like" else f"dag_scheduling/{workload}"
        for policy in ("fair", "fifo"):
            say(f"{policy} on {workload}")
            yield from _episode_speed(prefix, workload, policy)
    for count in (16, 64):
        say(f"{count} environments at once")
        yield _vector_speed(count)
    say("10,000 jobs in one episode")
    yield Figure("dag_scheduling/10000-jobs/extra_memory_mb", in_fresh_process(_LONG_EPISODE), "MB")


def _episode_speed(prefix: str, workload: str, policy: str) -> Iterator[Figure]:
    settings = DagSchedulingSettings(
        workload=workload, arrivals="poisson", jobs=200, interarrival_s=25, executors=50
    )
    bank = load_workload(settings)
    run_episode(policy, settings, 0, bank)
    began = time.thread_time()
    results: list[EpisodeResult] = [
        run_episode(policy, settings, seed, bank) for seed in range(EPISODES)
    ]
    spent = time.thread_time() - began
    for unit, total, peers in (
        ("decisions", sum(r.decisions for r in results), PEER_DECISIONS),
        ("tasks", sum(r.tasks for r in results), PEER_TASKS),
    ):
        peer = peers.get(policy)
        yield Figure(
            f"{prefix}/{policy}/{unit}_per_s",
            total / spent,
            f"{unit}/s",
            peer,
            ORIGINAL if peer else "",
        )


def _vector_speed(count: int) -> Figure:
    """Steps a second with observations built, first legal stage at full parallelism."""
    envs = DagSchedulingVectorEnv(count, copy=False, max_jobs=20, max_stages=400, max_edges=800)
    observation, _ = envs.reset(seed=0)
    actions = np.full((count, 2), envs.settings.total_executors, np.int64)
    began, steps = time.thread_time(), 0
    while time.thread_time() - began < 1.0:
        actions[:, 0] = np.argmax(observation["schedulable"], axis=1)
        observation = envs.step(actions)[0]
        steps += count
    speed = steps / (time.thread_time() - began)
    name = f"dag_scheduling/vector-{count}/steps_per_s"
    return Figure(name, speed, "steps/s", 350.0, f"{SPARK_SCHED_SIM}, one environment")
