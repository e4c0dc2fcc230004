"""Replay of DAG scheduling: a Gantt chart of executors."""

from dataclasses import replace
from typing import Any

import numpy as np

from loadmaster.envs.dag_scheduling.baselines import BASELINES
from loadmaster.envs.dag_scheduling.episode import EpisodeResult, run_episode
from loadmaster.envs.dag_scheduling.jobs import Workload
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.workloads import load_workload
from loadmaster.platform.replay.adapters import (
    ScheduleAdapter,
    count,
    makespan_s,
    pack_schedule,
    schedule_parts,
)
from loadmaster.platform.systems.policies import LearnedPolicy


def run(
    policy: str,
    learned: LearnedPolicy | None,
    settings: DagSchedulingSettings,
    seed: int,
    workload: Workload,
    recorded: bool,
) -> EpisodeResult:
    if learned is None:
        return run_episode(policy, settings, seed, workload, record=recorded)
    result: EpisodeResult = learned.run(settings, seed, workload, record=recorded)
    return replace(result, policy=policy)


def cost(settings: DagSchedulingSettings, result: EpisodeResult) -> float:
    return makespan_s(result) if settings.objective == "makespan" else result.mean_jct_s


def title(settings: DagSchedulingSettings, seed: int, workload: Workload) -> str:
    jobs = count(settings.total_jobs, "job")
    if settings.arrivals == "batch":
        arrivals = f"{jobs} at once"
    elif settings.load is not None:
        arrivals = f"{jobs} at load {settings.load:g}"
    else:
        arrivals = f"{jobs}, one every {settings.interarrival_s:g} s"
    executors = count(settings.total_executors, "executor")
    return f"dag_scheduling · {settings.workload} · {arrivals} · {executors} · seed {seed}"


def job_names(workload: Workload, result: EpisodeResult) -> tuple[str, ...]:
    """Names of jobs without the workload, which the title has."""
    short = [name.removeprefix(f"{workload.name}-") for name in workload.job_names]
    return tuple(short[template] for template in result.template)


def policy_data(result: EpisodeResult, jobs: int) -> dict[str, Any]:
    trace = result.trace
    assert trace is not None
    # Tasks beyond the horizon count up to it.
    spent_ms = np.minimum(trace.end_ms, result.end_s * 1000) - trace.start_ms
    offered_ms = result.executors * result.end_s * 1000
    return {
        "utilisation": float(spent_ms[trace.moving == 0].sum()) / max(offered_ms, 1.0),
        "schedule": pack_schedule(trace),
    }


REPLAY = ScheduleAdapter(
    environment="dag_scheduling",
    default_policies=("fair", "fifo"),
    **schedule_parts("jobs in the system"),
    rows_are="tasks and moves",
    load=load_workload,
    run=run,
    opponents=lambda settings: tuple(BASELINES),
    cost=cost,
    title=title,
    item_names=job_names,
    rows=lambda result: len(result.trace.start_ms),
    cluster_data=lambda results: {"executors": results[0].executors},
    job_data=lambda result, jobs: {"work_s": result.work_s[:jobs].tolist()},
    policy_data=policy_data,
    figures=lambda result: {"jct": result.mean_jct_s, "makespan": makespan_s(result)},
)
