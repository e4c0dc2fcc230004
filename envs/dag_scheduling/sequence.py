"""The exogenous input of an episode: which jobs arrive when, and when the episode is cut off."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.dag_scheduling import state as at
from loadmaster.envs.dag_scheduling.jobs import Workload
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings


def draw_jobs(
    settings: DagSchedulingSettings, workload: Workload, rng: np.random.Generator
) -> NDArray[np.int64]:
    """(jobs, 2): arrival in ms, template. Templates are uniform; gaps exponential, whole ms."""
    templates = rng.integers(len(workload.job_names), size=settings.total_jobs)
    gaps = rng.exponential(mean_gap_s(settings, workload) * 1000, size=settings.streamed_jobs)
    arrivals = np.zeros(settings.total_jobs, np.int64)
    arrivals[settings.jobs_at_start :] = np.cumsum(gaps.astype(np.int64))
    return np.stack([arrivals, templates], axis=1)


def mean_gap_s(settings: DagSchedulingSettings, workload: Workload) -> float:
    """The mean interarrival time, from `load` (work offered per executor) where that is set."""
    if settings.load is None:
        return settings.interarrival_s
    work_s = float(workload.bank.work_ms.mean()) / 1000
    return work_s / (settings.load * settings.total_executors)


def draw_horizon_ms(settings: DagSchedulingSettings, rng: np.random.Generator) -> int:
    """A geometric number of seconds: memoryless, so no policy can foresee the end."""
    if settings.horizon_s is None:
        return int(at.NEVER) - 1
    return 1000 * int(rng.geometric(min(1.0, 1 / settings.horizon_s)))
