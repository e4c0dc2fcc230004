"""Speed and memory of the simulators, one thread each.

Speeds are per second of this thread's CPU time: a busy machine then changes them little. What a
user waits for (compiling, loading) is in seconds on the clock.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import numpy as np

from loadmaster.envs.dag_scheduling.episode import EpisodeResult, run_episode
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.vector import DagSchedulingVectorEnv
from loadmaster.envs.dag_scheduling.workloads import load_workload
from loadmaster.platform.bench.fresh_process import cold_starts, in_fresh_process
from loadmaster.platform.bench.gpu_simulator import gpu_scheduling
from loadmaster.platform.bench.results import Figure

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
