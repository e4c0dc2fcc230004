"""The exogenous input of an episode: which jobs arrive, and when."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling.cluster import WHOLE, Cluster
from loadmaster.envs.gpu_scheduling.jobs import ANY_TYPE, Jobs, Workload, select_jobs
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings


def draw_jobs(
    settings: GpuSchedulingSettings,
    workload: Workload,
    cluster: Cluster,
    rng: np.random.Generator,
) -> Jobs:
    """The jobs of an episode in the order of (arrival, id); time 0 is the first arrival."""
    # Where the workload's own order is kept, an episode is a stretch of it; else a random draw.
    in_order = settings.arrivals in ("trace", "per-minute")
    jobs = workload.draw(_count(settings, workload, in_order), in_order, rng)
    if not settings.require_types:
        jobs = jobs._replace(gpu_type=np.full_like(jobs.gpu_type, ANY_TYPE))
    jobs = _heed_oversized(settings, jobs, cluster)
    arrival_s = _arrivals(settings, workload, cluster, jobs, rng)
    jobs = jobs._replace(arrival_s=arrival_s - arrival_s.min())
    return select_jobs(jobs, np.lexsort((jobs.job_id, jobs.arrival_s)))


def mean_gap_s(settings: GpuSchedulingSettings, workload: Workload, cluster: Cluster) -> float:
    """The mean interarrival time, by `load` where no gap is given."""
    if settings.interarrival_s is not None:
        return settings.interarrival_s
    whole_gpus = float((cluster.gpu_capacity * cluster.speed).sum()) / WHOLE
    return workload.mean_gpu_s / (settings.offered_load * whole_gpus)


def room(jobs: Jobs, cluster: Cluster) -> NDArray[np.int64]:
    """(N,) How many instances of each job the cluster could hold, were it empty."""
    # By kinds of machine, K of them: a table of all jobs and all machines could be enormous.
    kinds, machines = np.unique(
        np.stack([cluster.gpu_capacity, cluster.cpu_capacity, cluster.gpu_type]),
        axis=1,
        return_counts=True,
    )
    gpu, cpu, wanted = jobs.gpu[:, None], np.maximum(jobs.cpu, 1)[:, None], jobs.gpu_type[:, None]
    each = np.minimum(kinds[0] // gpu, kinds[1] // cpu)  # (N, K)
    allowed = (wanted == ANY_TYPE) | (wanted == kinds[2])
    held: NDArray[np.int64] = np.where(allowed, each, 0) @ machines
    return held


def _count(settings: GpuSchedulingSettings, workload: Workload, in_order: bool) -> int:
    if workload.size is None:
        return settings.drawn_jobs
    if settings.jobs is None:
        return workload.size if in_order else min(workload.size, settings.drawn_jobs)
    if settings.jobs > workload.size:
        raise InputError(
            f"setting jobs: {settings.jobs} of workload {workload.name!r}, "
            f"which has {workload.size}; expected no more than that"
        )
    return settings.jobs


def _arrivals(
    settings: GpuSchedulingSettings,
    workload: Workload,
    cluster: Cluster,
    jobs: Jobs,
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    count = len(jobs.job_id)
    place = np.empty(count, np.int64)  # in the workload's own order
    place[np.lexsort((jobs.job_id, jobs.arrival_s))] = np.arange(count)
    if settings.arrivals == "batch":
        return np.zeros(count)
    if settings.arrivals == "per-minute":
        return (60 * (place // settings.jobs_per_minute)).astype(np.float64)
    if settings.arrivals == "poisson":
        # As drawn, not by their place: a draw from a trace comes in no order.
        return np.cumsum(rng.exponential(mean_gap_s(settings, workload, cluster), count))
    own = jobs.arrival_s - jobs.arrival_s.min()
    as_recorded = settings.load is None and settings.interarrival_s is None
    if (workload.keeps_time and as_recorded) or count < 2 or not own.max():
        return own
    return own * (mean_gap_s(settings, workload, cluster) * (count - 1) / own.max())


def _heed_oversized(settings: GpuSchedulingSettings, jobs: Jobs, cluster: Cluster) -> Jobs:
    """What `settings.oversized` wants done about jobs that the empty cluster could not hold."""
    fit = room(jobs, cluster)
    large = fit < jobs.instances
    if not large.any():
        return jobs
    first = int(np.flatnonzero(large)[0])
    told = (
        f"job {jobs.job_id[first]} asks for {jobs.instances[first]} x {jobs.gpu[first] / WHOLE:g} "
        f"GPU and {jobs.cpu[first] / WHOLE:g} cores; the empty cluster holds {fit[first]} of these"
    )
    if settings.oversized == "refuse":
        raise InputError(
            f"{told}; expected a cluster that is large enough, or oversized=skip or queue"
        )
    others = f", and {large.sum() - 1} more like it" if large.sum() > 1 else ""
    if settings.oversized == "queue":
        warnings.warn(f"{told}{others}: left in the queue for ever", stacklevel=3)
        return jobs
    warnings.warn(f"{told}{others}: left out", stacklevel=3)
    if large.all():
        raise InputError(f"{told}, and no other job is left; expected a larger cluster")
    return select_jobs(jobs, ~large)
