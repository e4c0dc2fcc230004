"""Figures of states and outcomes: what is watched for drift, and what a retraining starts from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled
from loadmaster.envs.dag_scheduling import state as at
from loadmaster.serving.systems.decima.quantities import held
from loadmaster.serving.systems.decima.schema import DecimaOutcome, DecimaState

SHORTEST_S = 0.001
GAPS_S = (0.1, 3600.0)  # mean interarrival times that somebody would train for


def features(state: DecimaState) -> dict[str, float]:
    """How loaded the cluster is, and what its jobs are like."""
    moment, jobs = state.moment, len(state.jobs)
    total, free = sum(moment.amount.tolist()), sum(moment.left.tolist())
    work_ms = sum(moment.bank.work_ms.tolist())
    tasks, stages, waiting_ms = _sums(moment.stages, moment.bank.mean_ms)
    return {
        "executors": float(total),
        "jobs": float(jobs),
        "stages": float(stages),
        "free_share": free / total,
        "executors_per_job": sum(held(moment).tolist()) / jobs,
        "waiting_s": waiting_ms / 1000 / total,  # work not started, per executor
        "task_s": work_ms / tasks / 1000,
        "job_work_s": work_ms / jobs / 1000,
        "youngest_job_s": min(moment.age_ms.tolist()) / 1000,
    }


@compiled
def _sums(stages: NDArray[np.int64], mean_ms: NDArray[np.float64]) -> tuple[int, int, float]:
    """Tasks, stages that are not finished, and the work of tasks that are not started."""
    tasks, unfinished, waiting_ms = 0, 0, 0.0
    for stage in range(len(stages)):
        tasks += stages[stage, at.TASKS]
        unfinished += stages[stage, at.FINISHED] < stages[stage, at.TASKS]
        waiting_ms += (stages[stage, at.TASKS] - stages[stage, at.STARTED]) * mean_ms[stage]
    return tasks, unfinished, waiting_ms


def reward(outcome: DecimaOutcome) -> float:
    """Minus the logarithm of the completion time, less half that of the job's work.

    Of jobs that share a cluster, one with four times the work takes about twice as long; with that
    taken off, small and large jobs count alike and the spread is half as wide. Twice as fast is
    0.69 more, whatever the job.
    """
    completion_s = max(outcome.completion_s, SHORTEST_S)
    return 0.5 * math.log(max(outcome.work_s, SHORTEST_S)) - math.log(completion_s)


def retraining(means: Mapping[str, float]) -> dict[str, Any]:
    """A stream of jobs like the one seen; what was not seen stays as it usually is.

    The mean interarrival time is estimated in two ways. Where many jobs share the cluster, the
    youngest of them is the last that came. Where there are few, it often has left again; but
    then the number of jobs tells the load: about 1 / (1 - load) of them whenever somebody works.
    """
    settings: dict[str, Any] = {"arrivals": "poisson"}
    if "executors" in means:
        settings["executors"] = max(1, round(means["executors"]))
    needed = ("executors", "jobs", "job_work_s", "youngest_job_s")
    if all(name in means for name in needed):
        executors, jobs, work_s, youngest_s = (means[name] for name in needed)
        load = float(np.clip(1 - 1 / max(jobs, 1.0), 0.05, 0.95))
        gap_s = load * youngest_s + (1 - load) * work_s / (load * max(executors, 1.0))
        settings["interarrival_s"] = round(float(np.clip(gap_s, *GAPS_S)), 3)
    return settings
