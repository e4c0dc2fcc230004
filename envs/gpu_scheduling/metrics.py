"""How a GPU scheduling episode is judged."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.gpu_scheduling.episode import EpisodeResult
from loadmaster.envs.gpu_scheduling.jobs import Workload
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.metrics import Metric

SHORT_JOB_S = 10.0  # jobs below count as that long: a second's wait is no hundredfold slow-down


def slowdown(result: EpisodeResult) -> NDArray[np.float64]:
    """(N,) bounded slow-down: time in the system over the time it takes undisturbed at speed 1.

    A job that runs on GPUs faster than the reference may stay below 1.
    """
    ideal_s: NDArray[np.float64] = np.maximum(result.jobs.duration_s, SHORT_JOB_S)
    return np.maximum(result.jct_s, SHORT_JOB_S) / ideal_s


def utilisation(result: EpisodeResult) -> float:
    """Share of the GPU time between first arrival and last completion that was given to jobs."""
    offered = result.gpus * result.makespan_s
    return result.gpu_s / offered if offered > 0 else float("nan")


def fairness(result: EpisodeResult) -> float:
    """Jain's index of the users' mean slow-downs: 1 where all users fare alike, 1/users at worst.

    Users without a finished job have no slow-down to compare.
    """
    done = ~np.isnan(result.finish_s)
    user, suffered = result.jobs.user[done], slowdown(result)[done]
    if not len(user):
        return float("nan")
    jobs = np.bincount(user)
    mean = np.bincount(user, suffered)[jobs > 0] / jobs[jobs > 0]
    return float(mean.sum() ** 2 / (len(mean) * (mean**2).sum()))


def unfinished(result: EpisodeResult) -> float:
    """Jobs that never fitted."""
    return float(np.isnan(result.finish_s).sum())


def episode_metrics(settings: GpuSchedulingSettings, workload: Workload) -> tuple[Metric, ...]:
    """The metrics of an evaluation with these settings; the first decides who is best."""
    metrics = (
        Metric("jct", "mean JCT", "s", lambda result: _mean(result.jct_s)),
        Metric(
            "fee",
            "mean fee",
            "$",
            lambda result: _mean(np.where(_done(result), result.fee, np.nan)),
        ),
        Metric("queueing", "queueing", "s", lambda result: _mean(result.queueing_s)),
        Metric("slowdown", "slowdown", "", lambda result: _mean(slowdown(result))),
        Metric("utilisation", "utilisation", "", utilisation, better="higher"),
        Metric("fairness", "fairness", "", fairness, better="higher"),
        Metric("makespan", "makespan", "s", lambda result: result.makespan_s),
        Metric("jct_p95", "p95 JCT", "s", lambda result: _p95(result.jct_s)),
        Metric("preemptions", "preemptions", "", lambda result: result.preemptions, better=None),
    )
    if settings.oversized == "queue":
        return (*metrics, Metric("unfinished", "unfinished", "jobs", unfinished))
    return metrics


def job_columns(result: EpisodeResult) -> dict[str, NDArray[Any]]:
    """One row per job, in order of arrival; nan where it never ran or never ended."""
    jobs = result.jobs
    return {
        "job": jobs.job_id,
        "user": jobs.user,
        "instances": jobs.instances,
        "gpu": jobs.gpu / 100,
        "arrival_s": jobs.arrival_s,
        "start_s": result.start_s,
        "completion_s": result.finish_s,
        "jct_s": result.jct_s,
        "queueing_s": result.queueing_s,
        "duration_s": jobs.duration_s,
        "slowdown": slowdown(result),
        "fee": result.fee,
    }


def _done(result: EpisodeResult) -> NDArray[np.bool_]:
    return ~np.isnan(result.finish_s)


def _mean(per_job: NDArray[np.float64]) -> float:
    finished = per_job[~np.isnan(per_job)]
    return float(finished.mean()) if len(finished) else float("nan")


def _p95(per_job: NDArray[np.float64]) -> float:
    finished = per_job[~np.isnan(per_job)]
    return float(np.percentile(finished, 95)) if len(finished) else float("nan")
