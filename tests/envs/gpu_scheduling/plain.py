"""For tests: the public PAI simulator's rules on lists, with gangs; slow, and plain to read."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.jobs import ANY_TYPE, Jobs


def plain_finish_s(
    cluster: Cluster, jobs: Jobs, ordering: str, placement: str, *, backfill: bool = True
) -> NDArray[np.float64]:
    """(N,) when each job ends if nothing disturbs it: at each event finish, admit, walk once."""
    free = [list(size) for size in zip(cluster.gpu_capacity, cluster.cpu_capacity, strict=True)]
    first = jobs.duration_s if ordering == "sjf" else jobs.arrival_s
    finish_s = np.full(len(first), np.nan)
    running: dict[int, list[tuple[int, int]]] = {}
    queue: list[int] = []
    arrived = 0
    while arrived < len(first) or running:
        coming = [jobs.arrival_s[arrived]] if arrived < len(first) else []
        now = min([*coming, *(finish_s[job] for job in running)])
        for job in [job for job in running if finish_s[job] <= now]:
            for machine, count in running.pop(job):
                free[machine][0] += count * jobs.gpu[job]
                free[machine][1] += count * jobs.cpu[job]
        while arrived < len(first) and jobs.arrival_s[arrived] <= now:
            queue.append(arrived)
            arrived += 1
        for job in sorted(queue, key=lambda job: (first[job], jobs.job_id[job])):
            places = _place(cluster, jobs, free, job, placement)
            if places is None:
                if not backfill:
                    break
                continue
            queue.remove(job)
            running[job] = places
            finish_s[job] = now + jobs.duration_s[job]
            for machine, count in places:
                free[machine][0] -= count * jobs.gpu[job]
                free[machine][1] -= count * jobs.cpu[job]
    return finish_s


def _place(
    cluster: Cluster, jobs: Jobs, free: list[list[int]], job: int, placement: str
) -> list[tuple[int, int]] | None:
    def wanted(machine: int) -> float:
        gpu, cpu = free[machine]
        if placement == "best-fit":
            return gpu
        if placement == "worst-fit":
            return -gpu
        if placement == "load-balance":
            gpu_use = 1 - gpu / cluster.gpu_capacity[machine]
            cpu_use = 1 - cpu / cluster.cpu_capacity[machine]
            return round(100 * (gpu_use + cpu_use) / 2)
        return machine

    needed, places = int(jobs.instances[job]), []
    for machine in sorted(range(len(free)), key=wanted):
        if jobs.gpu_type[job] not in (ANY_TYPE, cluster.gpu_type[machine]):
            continue
        gpu, cpu = free[machine]
        fit = min(gpu // jobs.gpu[job], cpu // jobs.cpu[job] if jobs.cpu[job] else needed, needed)
        if fit > 0:
            places.append((machine, int(fit)))
            needed -= fit
    return places if needed == 0 else None
