"""Metrics of a DAG scheduling episode."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.dag_scheduling.episode import EpisodeResult
from loadmaster.envs.dag_scheduling.jobs import Workload
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.errors import InputError
from loadmaster.envs.metrics import Metric, mean_of_finished, p95_of_finished

CLOCK_TICK_S = 0.001


def ideal_s(workload: Workload, executors: int) -> NDArray[np.float64]:
    """(templates,) Estimate the least completion time of each job alone on the cluster.

    It is the larger of the critical path (one mean task a stage) and the work spread over all
    executors. Both use mean durations, so an episode may undercut them.
    """
    bank = workload.bank
    critical_ms = np.maximum.reduceat(bank.critical_ms, bank.first_stage[:-1])
    bound_s = np.maximum(critical_ms, bank.work_ms / executors) / 1000
    return np.maximum(bound_s, CLOCK_TICK_S)


def jobs_in_system(result: EpisodeResult) -> float:
    """Return the time-average number of jobs waiting or running.

    By Little's law it is the arrival rate times the mean JCT, but it also counts jobs cut off by
    the horizon; a mean over finished jobs would reward a policy for starving long ones.
    """
    if result.end_s <= 0:
        return float("nan")
    leave_s = np.where(np.isnan(result.completion_s), result.end_s, result.completion_s)
    stay_s = np.clip(leave_s - result.arrival_s, 0, None)  # 0: arrives after the end
    return float(stay_s.sum() / result.end_s)


def unfinished(result: EpisodeResult) -> float:
    """Count jobs that had arrived but not finished when the episode ended."""
    return float(np.sum(np.isnan(result.completion_s) & (result.arrival_s <= result.end_s)))


def episode_metrics(settings: DagSchedulingSettings, workload: Workload) -> tuple[Metric, ...]:
    """List the metrics of an evaluation with these settings, the primary one first."""
    ideal = ideal_s(workload, settings.total_executors)

    def mean_slowdown(result: EpisodeResult) -> float:
        return mean_of_finished(result.jct_s / ideal[result.template])

    jct = Metric("jct", "mean JCT", "s", lambda result: result.mean_jct_s)
    jct_p95 = Metric("jct_p95", "p95 JCT", "s", lambda result: p95_of_finished(result.jct_s))
    makespan = Metric("makespan", "makespan", "s", lambda result: result.makespan_s)
    slowdown = Metric("slowdown", "slowdown", "", mean_slowdown)
    decisions = Metric("decisions", "decisions", "", lambda result: result.decisions, better=None)
    if settings.horizon_s is None:
        if settings.objective == "makespan":
            return (makespan, jct, jct_p95, slowdown, decisions)
        return (jct, jct_p95, makespan, slowdown, decisions)
    if settings.objective == "makespan":
        raise InputError(
            "objective=makespan cannot be measured with horizon_s set: every episode ends at "
            "its horizon; expected only one of the two"
        )
    return (
        Metric("jobs_in_system", "jobs in system", "", jobs_in_system),
        Metric("unfinished", "unfinished", "jobs", unfinished),
        replace(jct, label="finished JCT"),
        replace(jct_p95, label="finished p95"),
        slowdown,
        decisions,
    )


def job_columns(
    result: EpisodeResult, workload: Workload, executors: int
) -> dict[str, NDArray[Any]]:
    """Tabulate the jobs that arrived, in order of arrival; nan where unfinished."""
    came = result.arrival_s <= result.end_s
    template = result.template[came]
    names = np.asarray(workload.job_names, dtype=object)
    return {
        "job": np.flatnonzero(came),
        "template": names[template],
        "arrival_s": result.arrival_s[came],
        "completion_s": result.completion_s[came],
        "jct_s": result.jct_s[came],
        "work_s": result.work_s[came],
        "slowdown": result.jct_s[came] / ideal_s(workload, executors)[template],
        "end_s": np.full(len(template), result.end_s),  # of the episode
    }
