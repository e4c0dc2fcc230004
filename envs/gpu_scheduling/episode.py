"""Run an episode under a policy given by name."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from loadmaster.envs.errors import unknown_name
from loadmaster.envs.gpu_scheduling.arrivals import draw_jobs
from loadmaster.envs.gpu_scheduling.baselines import BASELINES
from loadmaster.envs.gpu_scheduling.cluster import Cluster, build_cluster
from loadmaster.envs.gpu_scheduling.jobs import Jobs, Workload
from loadmaster.envs.gpu_scheduling.rollout import (
    EpisodeResult,
    PlacementTrace,
    episode_result,
    run_baseline,
)
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.workloads import load_workload

__all__ = ["Episode", "EpisodeResult", "PlacementTrace", "build_episode", "run_episode"]


class Episode(NamedTuple):
    """What every policy meets alike: the machines, the jobs, and the luck of each on each."""

    cluster: Cluster
    jobs: Jobs
    luck: int


def build_episode(
    settings: GpuSchedulingSettings, seed: int, workload: Workload | None = None
) -> Episode:
    """The episode that `seed` names: same seed, same jobs, same luck."""
    rng = np.random.default_rng(seed)
    cluster = build_cluster(settings)
    jobs = draw_jobs(settings, workload or load_workload(settings), cluster, rng)
    return Episode(cluster, jobs, int(rng.integers(1 << 62)))


def run_episode(
    policy: str,
    settings: GpuSchedulingSettings,
    seed: int,
    workload: Workload | None = None,
    *,
    record: bool = False,
) -> EpisodeResult:
    """Run a named policy on the episode of `seed`. Threads may run many of these at once."""
    if policy not in BASELINES:
        raise unknown_name("policy", policy, BASELINES)
    episode = build_episode(settings, seed, workload)
    state = run_baseline(
        settings, episode.cluster, episode.jobs, BASELINES[policy], episode.luck, record=record
    )
    return episode_result(state, episode.cluster, episode.jobs, policy, seed)
