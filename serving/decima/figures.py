"""Figures of states and outcomes: what is watched for drift, and what a retraining starts from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from loadmaster.envs.dag_scheduling import state as at
from loadmaster.serving.decima.quantities import held
from loadmaster.serving.decima.schema import DecimaOutcome, DecimaState

SHORTEST_S = 0.001
GAPS_S = (0.1, 3600.0)  # mean interarrival times that somebody would train for


def features(state: DecimaState) -> dict[str, float]:
    """How loaded the cluster is, and what its jobs are like."""
    moment = state.moment
    facts, bank = moment.stages, moment.bank
    total, free = float(moment.amount.sum()), float(moment.left.sum())
    waiting = facts[:, at.TASKS] - facts[:, at.STARTED]
    waiting_s = float((waiting * bank.mean_ms).sum()) / 1000
    return {
        "executors": total,
        "jobs": float(len(state.jobs)),
        "stages": float((facts[:, at.FINISHED] < facts[:, at.TASKS]).sum()),
        "free_share": free / total,
        "executors_per_job": float(held(moment).mean()),
        "waiting_s": waiting_s / total,  # work not started, per executor
        "task_s": float(bank.work_ms.sum() / bank.tasks.sum()) / 1000,
        "job_work_s": float(bank.work_ms.mean()) / 1000,
        "youngest_job_s": float(moment.age_ms.min()) / 1000,
    }


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
