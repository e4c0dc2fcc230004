"""Draw the jobs of an episode and their arrival times."""

import warnings

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling.cluster import Cluster, capacity
from loadmaster.envs.gpu_scheduling.jobs import ANY_TYPE, WHOLE, Jobs, Workload, select_jobs
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings


def draw_jobs(
    settings: GpuSchedulingSettings, workload: Workload, cluster: Cluster, rng: np.random.Generator
) -> Jobs:
    """Draw jobs in the order of (arrival, id); time 0 is the first arrival."""
    consecutive = settings.arrivals in ("trace", "per-minute")
    jobs = workload.draw(_count(settings, workload, consecutive), consecutive, rng)
    if not settings.require_types:
        jobs = jobs._replace(gpu_type=np.full_like(jobs.gpu_type, ANY_TYPE))
    jobs = _handle_oversized(settings, jobs, cluster)
    arrival_s = _arrivals(settings, workload, cluster, jobs, rng)
    jobs = jobs._replace(arrival_s=arrival_s - arrival_s.min())
    return select_jobs(jobs, np.lexsort((jobs.job_id, jobs.arrival_s)))


def mean_gap_s(settings: GpuSchedulingSettings, workload: Workload, cluster: Cluster) -> float:
    """Mean interarrival time: `interarrival_s`, or the one that results in `load`."""
    if settings.interarrival_s is not None:
        return settings.interarrival_s
    whole_gpus = float((cluster.gpu_capacity * cluster.speed).sum()) / WHOLE
    return workload.mean_gpu_s / (settings.offered_load * whole_gpus)


def _count(settings: GpuSchedulingSettings, workload: Workload, consecutive: bool) -> int:
    if workload.size is None:
        return settings.drawn_jobs
    if settings.jobs is None:
        return workload.size if consecutive else min(workload.size, settings.drawn_jobs)
    if settings.jobs > workload.size:
        expected = f"at most the {workload.size} of workload {workload.name!r}"
        raise InputError(f"setting jobs: {settings.jobs}; expected {expected}")
    return settings.jobs


def _arrivals(
    settings: GpuSchedulingSettings,
    workload: Workload,
    cluster: Cluster,
    jobs: Jobs,
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    count = len(jobs.job_id)
    if settings.arrivals == "batch":
        return np.zeros(count)
    if settings.arrivals == "per-minute":
        rank = np.empty(count, np.int64)
        rank[np.lexsort((jobs.job_id, jobs.arrival_s))] = np.arange(count)
        return (60 * (rank // settings.jobs_per_minute)).astype(np.float64)
    if settings.arrivals == "poisson":
        return np.cumsum(rng.exponential(mean_gap_s(settings, workload, cluster), count))
    own = jobs.arrival_s - jobs.arrival_s.min()
    as_recorded = settings.load is None and settings.interarrival_s is None
    if (workload.keeps_time and as_recorded) or count < 2 or not own.max():
        return own
    return own * (mean_gap_s(settings, workload, cluster) * (count - 1) / own.max())


def _handle_oversized(settings: GpuSchedulingSettings, jobs: Jobs, cluster: Cluster) -> Jobs:
    """Apply `settings.oversized` to jobs that the empty cluster cannot hold."""
    fit = capacity(jobs, cluster)
    large = fit < jobs.instances
    if not large.any():
        return jobs
    first = int(large.argmax())
    fault = (
        f"job {jobs.job_id[first]} requests {jobs.instances[first]} x {jobs.gpu[first] / WHOLE:g} "
        f"GPU and {jobs.cpu[first] / WHOLE:g} cores; the empty cluster holds {fit[first]} of these"
    )
    if settings.oversized == "refuse":
        raise InputError(f"{fault}; expected a larger cluster, or oversized=skip or queue")
    if settings.oversized == "skip" and large.all():
        raise InputError(f"{fault}, and no other job is left; expected a larger cluster")
    others = f", and {large.sum() - 1} more jobs are too large" if large.sum() > 1 else ""
    handled = "in the queue" if settings.oversized == "queue" else "out"
    warnings.warn(f"{fault}{others}: left {handled}", stacklevel=3)
    return jobs if settings.oversized == "queue" else select_jobs(jobs, ~large)
