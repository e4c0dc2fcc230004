"""Evaluation in GPU scheduling: the environment's adapter, and DAS's bundles in episodes."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from loadmaster.envs.compiled import cache_folder
from loadmaster.envs.gpu_scheduling.baselines import (
    BASELINES,
    ORDERINGS,
    TRUE,
    TUNED_ORDERINGS,
)
from loadmaster.envs.gpu_scheduling.calibration import tuned_baseline
from loadmaster.envs.gpu_scheduling.cluster import build_cluster
from loadmaster.envs.gpu_scheduling.describe import changed_settings, describe_episode
from loadmaster.envs.gpu_scheduling.episode import EpisodeResult, run_episode
from loadmaster.envs.gpu_scheduling.jobs import Workload, gpu_seconds
from loadmaster.envs.gpu_scheduling.metrics import episode_metrics, job_columns
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.workloads import WORKLOADS, load_workload
from loadmaster.models.das.explain import explain
from loadmaster.models.das.policy import DasPolicy
from loadmaster.models.policy import ExplainedDecision
from loadmaster.platform.evaluation import adapters
from loadmaster.platform.systems.policies import spread


class LearnedDas(DasPolicy):
    """The policy with explanations of episodes."""

    def explain(
        self, settings: GpuSchedulingSettings, seed: int, workload: Workload, count: int
    ) -> tuple[ExplainedDecision, ...]:
        contexts = enumerate(self.iterate(settings, seed, workload))
        chosen = spread([number for number, one in contexts if one.has_choice], count)
        contexts = enumerate(self.iterate(settings, seed, workload))
        return tuple(explain(one, number) for number, one in contexts if number in chosen)

    def is_compiled(self) -> bool:
        return any(cache_folder().glob("das_*/compiled_loop.run_greedy-*.nbi"))


load_policy = LearnedDas.from_bundle


def settings_from(values: Mapping[str, Any]) -> GpuSchedulingSettings:
    settings = adapters.read_settings(GpuSchedulingSettings, WORKLOADS, values)
    build_cluster(settings)  # rejects unknown GPU types and those without a price
    return settings


def prepare(settings: GpuSchedulingSettings) -> adapters.EvaluationSetup:
    workload = load_workload(settings)
    return adapters.EvaluationSetup(
        settings=settings,
        workload=settings.workload,
        conditions=describe_episode(settings, workload.size),
        metrics=episode_metrics(settings, workload),
        run=lambda policy, seed: run_episode(policy, settings, seed, workload),
        job_columns=columns,
        job_labels=adapters.JobLabels(
            "job's work, GPU-seconds of a V100", "JCT / run time on V100s, alone"
        ),
        notes=(workload.description,) if workload.description else (),
        oracles=oracles(settings),
        parameters=tuned_parameters(settings, workload),
        bank=workload,
    )


def tuned_parameters(settings: GpuSchedulingSettings, workload: Workload) -> dict[str, str]:
    """The parameters of tuned baselines in words."""
    words = {
        name: adapters.parameters_in_words(tuned_baseline(name, settings, workload), published)
        for name, published in BASELINES.items()
    }
    return {name: text for name, text in words.items() if text}


def oracles(settings: GpuSchedulingSettings) -> frozenset[str]:
    """Baselines that use durations, unless all policies may, and those that use true speeds."""
    unknown = settings.durations == "unknown"
    return frozenset(
        name
        for name, baseline in BASELINES.items()
        if baseline.speeds == TRUE or (unknown and baseline.ordering.oracle)
    )


def columns(result: EpisodeResult) -> adapters.JobColumns:
    """The environment's columns, the jobs' work, and the time of the last arrival or completion."""
    last_s = np.nanmax(np.concatenate([result.jobs.arrival_s, result.finish_s]))
    return {
        **job_columns(result),
        "work_s": gpu_seconds(result.jobs),
        "end_s": np.full(len(result.finish_s), last_s),
    }


def folder_name(settings: GpuSchedulingSettings) -> str:
    own = [f"{name}-{value}" for name, value in changed_settings(settings) if name != "cluster"]
    named = [] if settings.machines else [settings.cluster]
    return adapters.folder_name_of(["gpu_scheduling", settings.workload, *named, *own])


EVALUATION = adapters.EnvironmentAdapter(
    environment="gpu_scheduling",
    baselines=tuple(BASELINES),
    settings=settings_from,
    folder_name=folder_name,
    prepare=prepare,
    families={
        name: ordering
        for ordering, rule in {**ORDERINGS, **TUNED_ORDERINGS}.items()
        for name, baseline in BASELINES.items()
        if baseline.ordering is rule
    },
    choice="job",
    secondary=("fee",),
    is_compiled=partial(adapters.loop_is_compiled, "gpu_scheduling"),
)
