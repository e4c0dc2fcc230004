"""DAG scheduling as a subject of evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from loadmaster.envs.dag_scheduling.baselines import BASELINES, TROUBLESOME
from loadmaster.envs.dag_scheduling.calibration import tuned
from loadmaster.envs.dag_scheduling.describe import changed, conditions
from loadmaster.envs.dag_scheduling.episode import OPTIMAL, EpisodeResult, run_episode
from loadmaster.envs.dag_scheduling.jobs import Workload
from loadmaster.envs.dag_scheduling.metrics import episode_metrics, job_columns
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.workloads import WORKLOADS, load_workload
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
        environment="dag_scheduling",
        baselines=tuple(BASELINES),
        settings=settings_from,
        folder_name=folder_name,
        prepare=prepare,
        references=(OPTIMAL,),
        choice="stage",
        is_compiled=partial(loop_is_compiled, "dag_scheduling"),
    )


def settings_from(values: Mapping[str, Any]) -> DagSchedulingSettings:
    settings = build_settings(DagSchedulingSettings, values)
    find_workload(WORKLOADS, settings.workload)
    return settings


def prepare(settings: DagSchedulingSettings) -> EvaluationSetup:
    workload = load_workload(settings)

    def run(policy: str, seed: int) -> EpisodeResult:
        return run_episode(policy, settings, seed, workload)

    def columns(result: EpisodeResult) -> JobColumns:
        return job_columns(result, workload, settings.total_executors)

    return EvaluationSetup(
        settings=settings,
        workload=settings.workload,
        conditions=conditions(settings),
        metrics=episode_metrics(settings, workload),
        run=run,
        job_columns=columns,
        job_words=JobLabels("job's work, executor-seconds", "JCT / least possible"),
        notes=(workload.description,) if workload.description else (),
        parameters=tuned_parameters(settings, workload),
        bank=workload,
    )


def tuned_parameters(settings: DagSchedulingSettings, workload: Workload) -> dict[str, str]:
    """In words, the parameters of the baselines that `loadmaster calibrate` has tuned."""
    words = {}
    for name, baseline in BASELINES.items():
        if baseline.calibrated:
            found = tuned(name, settings, workload)
            words[name] = f"alpha {found.alpha:g}"
            if found.rule == TROUBLESOME:
                words[name] += f", threshold {found.threshold:g}"
            if found.release:
                words[name] += ", executors beyond a share released"
    return words


def folder_name(settings: DagSchedulingSettings) -> str:
    """Settings that differ get folders that differ."""
    parts = ["dag_scheduling", settings.workload, settings.arrivals]
    parts += [f"{name}-{value}" for name, value in changed(settings) if name != "arrivals"]
    return joined_name(parts)
