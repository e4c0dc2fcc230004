"""Evaluation of policies in GPU scheduling."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from loadmaster.envs.gpu_scheduling.baselines import BASELINES, ORDERINGS
from loadmaster.envs.gpu_scheduling.cluster import build_cluster
from loadmaster.envs.gpu_scheduling.describe import changed, conditions
from loadmaster.envs.gpu_scheduling.episode import EpisodeResult, run_episode
from loadmaster.envs.gpu_scheduling.jobs import gpu_seconds
from loadmaster.envs.gpu_scheduling.metrics import episode_metrics, job_columns
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.workloads import WORKLOADS, load_workload
from loadmaster.envs.settings import build_settings
from loadmaster.envs.traces import find_workload
from loadmaster.platform.evaluation.adapters import (
    EnvironmentAdapter,
    EvaluationSetup,
    JobColumns,
    JobLabels,
    joined_name,
    loop_is_compiled,
)


def subject() -> EnvironmentAdapter:
    return EnvironmentAdapter(
        environment="gpu_scheduling",
        baselines=tuple(BASELINES),
        settings=settings_from,
        folder_name=folder_name,
        prepare=prepare,
        families={
            name: ordering
            for ordering, rule in ORDERINGS.items()
            for name, baseline in BASELINES.items()
            if baseline.ordering is rule
        },
        choice="job",
        is_compiled=partial(loop_is_compiled, "gpu_scheduling"),
    )


def settings_from(values: Mapping[str, Any]) -> GpuSchedulingSettings:
    settings = build_settings(GpuSchedulingSettings, values)
    find_workload(WORKLOADS, settings.workload)
    build_cluster(settings)  # rejects unknown GPU types and those without a price
    return settings


def prepare(settings: GpuSchedulingSettings) -> EvaluationSetup:
    workload = load_workload(settings)

    def run(policy: str, seed: int) -> EpisodeResult:
        return run_episode(policy, settings, seed, workload)

    return EvaluationSetup(
        settings=settings,
        workload=settings.workload,
        conditions=conditions(settings, workload.size),
        metrics=episode_metrics(settings, workload),
        run=run,
        job_columns=columns,
        job_words=JobLabels("job's work, GPU-seconds of a V100", "JCT / run time on V100s, alone"),
        notes=(workload.description,) if workload.description else (),
        oracles=oracles(settings),
        bank=workload,
    )


def oracles(settings: GpuSchedulingSettings) -> frozenset[str]:
    """Baselines that use durations, unless all policies may."""
    if settings.durations == "known":
        return frozenset()
    return frozenset(name for name, baseline in BASELINES.items() if baseline.oracle)


def columns(result: EpisodeResult) -> JobColumns:
    """The environment's columns, the jobs' work, and the time of the last arrival or completion."""
    last_s = np.nanmax(np.concatenate([result.jobs.arrival_s, result.finish_s]))
    return {
        **job_columns(result),
        "work_s": gpu_seconds(result.jobs),
        "end_s": np.full(len(result.finish_s), last_s),
    }


def folder_name(settings: GpuSchedulingSettings) -> str:
    """A folder name that is distinct for distinct settings."""
    own = [f"{name}-{value}" for name, value in changed(settings) if name != "cluster"]
    named = [] if settings.machines else [settings.cluster]
    return joined_name(["gpu_scheduling", settings.workload, *named, *own])
