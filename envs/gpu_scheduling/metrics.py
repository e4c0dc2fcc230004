"""Metrics of a GPU scheduling episode."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.gpu_scheduling.episode import EpisodeResult
from loadmaster.envs.gpu_scheduling.jobs import WHOLE, Workload
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.metrics import Metric, mean_of_finished, p95_of_finished

SHORT_JOB_S = 10.0  # lower bound of durations in the slowdown


def slowdown(result: EpisodeResult) -> NDArray[np.float64]:
    """(N,) Bounded slowdown: time in the system over the duration at speed 1.

    It is below 1 for jobs on GPUs faster than the reference.
    """
    ideal_s: NDArray[np.float64] = np.maximum(result.jobs.duration_s, SHORT_JOB_S)
    return np.maximum(result.jct_s, SHORT_JOB_S) / ideal_s


def utilisation(result: EpisodeResult) -> float:
    """Share of the GPU time between first arrival and last completion that jobs used."""
    offered = result.gpus * result.makespan_s
    return result.gpu_s / offered if offered > 0 else float("nan")


def fairness(result: EpisodeResult) -> float:
    """Jain's index of the mean slowdowns of users with finished jobs, in [1 / users, 1]."""
    done = ~np.isnan(result.finish_s)
    user, slowdowns = result.jobs.user[done], slowdown(result)[done]
    if not len(user):
        return float("nan")
    jobs = np.bincount(user)
    mean = np.bincount(user, slowdowns)[jobs > 0] / jobs[jobs > 0]
    return float(mean.sum() ** 2 / (len(mean) * (mean**2).sum()))


def episode_metrics(settings: GpuSchedulingSettings, workload: Workload) -> tuple[Metric, ...]:
    """Metrics of an evaluation with these settings, the primary one first."""
    metrics = [
        Metric("jct", "mean JCT", "s", lambda result: mean_of_finished(result.jct_s)),
        Metric("fee", "mean fee", "$", lambda result: mean_of_finished(_fee(result))),
        Metric("queueing", "queueing", "s", lambda result: mean_of_finished(result.queueing_s)),
        Metric("slowdown", "slowdown", "", lambda result: mean_of_finished(slowdown(result))),
        Metric("utilisation", "utilisation", "", utilisation, better="higher"),
        Metric("fairness", "fairness", "", fairness, better="higher"),
        Metric("makespan", "makespan", "s", lambda result: result.makespan_s),
        Metric("jct_p95", "p95 JCT", "s", lambda result: p95_of_finished(result.jct_s)),
        Metric("preemptions", "preemptions", "", lambda result: result.preemptions, better=None),
    ]
    if settings.oversized == "queue":
        metrics.append(Metric("unfinished", "unfinished", "jobs", _unfinished))
    return tuple(metrics)


def job_columns(result: EpisodeResult) -> dict[str, NDArray[Any]]:
    """One row per job, in order of arrival; nan if it did not start or end."""
    jobs = result.jobs
    return {
        "job": jobs.job_id,
        "user": jobs.user,
        "instances": jobs.instances,
        "gpu": jobs.gpu / WHOLE,
        "arrival_s": jobs.arrival_s,
        "start_s": result.start_s,
        "completion_s": result.finish_s,
        "jct_s": result.jct_s,
        "queueing_s": result.queueing_s,
        "duration_s": jobs.duration_s,
        "slowdown": slowdown(result),
        "fee": result.fee,
    }


def _unfinished(result: EpisodeResult) -> float:
    return float(np.isnan(result.finish_s).sum())


def _fee(result: EpisodeResult) -> NDArray[np.float64]:
    """(N,) Fees of finished jobs, nan for the others."""
    return np.where(np.isnan(result.finish_s), np.nan, result.fee)
