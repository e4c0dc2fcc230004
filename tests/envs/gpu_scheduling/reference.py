"""Independent implementations for tests: an audit of schedules, and a plain simulator.

`check_schedule` recomputes a schedule from its trace. `plain_finish_s` has the rules of the public
PAI simulator, with gangs, and the rule "consolidate".
"""

import math
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.episode import Episode, EpisodeResult, PlacementTrace
from loadmaster.envs.gpu_scheduling.jobs import ANY_TYPE, Jobs
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings

_BITS = (1 << 64) - 1


def check_schedule(
    result: EpisodeResult, episode: Episode, settings: GpuSchedulingSettings
) -> None:
    """Check capacity, gangs, work, fees and idleness between every two events."""
    trace = result.trace
    assert trace is not None
    cluster, jobs, _ = episode
    finish_s = np.full(len(jobs.arrival_s), -np.inf)
    np.maximum.at(finish_s, trace.job, trace.end_s)
    assert np.array_equal(finish_s, result.finish_s), "a job ends with its last run"
    assert (trace.start_s >= jobs.arrival_s[trace.job]).all(), "no job runs before its arrival"
    assert (trace.end_s >= trace.start_s).all()

    demand = np.stack([jobs.gpu, jobs.cpu], axis=1)
    done, unsaved, fee, run_s = np.zeros((4, len(jobs.arrival_s)))  # unsaved: since it was placed
    events = np.unique(np.concatenate([trace.start_s, trace.end_s, jobs.arrival_s]))
    for now, later in pairwise(events):
        here = (trace.start_s <= now) & (trace.end_s > now)
        places = PlacementTrace(*(column[here] for column in vars(trace).values()))
        free = np.stack([cluster.gpu_capacity, cluster.cpu_capacity], axis=1)
        np.subtract.at(free, places.machine, demand[places.job] * places.instances[:, None])
        assert (free >= 0).all(), "capacity exceeded"
        running, held = np.unique(places.job), np.bincount(places.job, places.instances)
        assert (held[running] == jobs.instances[running]).all(), "incomplete gang"
        wanted = jobs.gpu_type[places.job]
        assert ((wanted == ANY_TYPE) | (wanted == cluster.gpu_type[places.machine])).all()
        speeds = _speeds(places, running, episode, settings)
        done[running] += speeds * (later - now)
        unsaved[running] += speeds * (later - now)
        left = np.unique(places.job[places.end_s == later])
        preempted = left[result.finish_s[left] > later]
        done[preempted] -= np.minimum(settings.restart_s, unsaved[preempted])
        unsaved[left] = 0
        run_s[running] += later - now
        price = cluster.price_per_s[places.machine] * places.instances * jobs.gpu[places.job] / 100
        np.add.at(fee, places.job, price * (later - now))
        pending = (jobs.arrival_s <= now) & (result.finish_s > now)
        pending[running] = False
        for job in np.flatnonzero(pending & settings.backfill).tolist():
            assert not place(cluster, jobs, free, job), "a job waits although it fits"
    assert np.allclose(done, jobs.duration_s, rtol=1e-9, atol=1e-6), "work is conserved"
    assert np.allclose(fee, result.fee, rtol=1e-9, atol=1e-12), "the integral of the price"
    assert np.allclose(run_s, result.run_s, rtol=1e-9, atol=1e-6)
    assert np.isclose(result.gpu_s, (run_s * jobs.instances * jobs.gpu / 100).sum())


def _speeds(
    places: PlacementTrace,
    running: NDArray[np.int64],
    episode: Episode,
    settings: GpuSchedulingSettings,
) -> NDArray[np.float64]:
    """(running,) Speeds, from the allocations."""
    cluster, jobs, seed = episode
    types = list(settings.known_gpu_types.values())
    kept = np.ones(len(cluster.speed))
    for machine in range(len(kept)):
        there = places.machine == machine
        counts, gpu = places.instances[there], jobs.gpu[places.job[there]]
        gpus_left = cluster.gpu_capacity[machine] // 100 - (counts * (gpu // 100)).sum()
        if counts[gpu % 100 > 0].sum() > gpus_left:
            use = (counts * (gpu % 100)).sum() / (100 * gpus_left)
            curve = np.interp(use, [0.4, 0.7, 0.85, 0.975], [0.997, 0.96, 0.91, 0.79])
            shared_speed = types[cluster.gpu_type[machine]].shared_speed
            kept[machine] = 1 - (1 - shared_speed) / (1 - 0.66) * (1 - curve)
    speeds = []
    for job in running.tolist():
        machines = places.machine[places.job == job]
        noise = [_noise(settings.stragglers, seed, job, m) for m in machines.tolist()]
        speed, network = cluster.speed[machines] * noise, 1.0
        if settings.interference and jobs.gpu[job] % 100:
            speed = speed * kept[machines]
        if settings.interference and len(machines) > 1:
            stretch = 2 if len(set(cluster.rack[machines])) == 1 else 4
            network = 1 - jobs.comm[job] + jobs.comm[job] * stretch
        speeds.append(speed.min() / network)
    return np.array(speeds)


def _noise(sigma: float, seed: int, job: int, machine: int) -> float:
    bits = _splitmix64(_splitmix64(seed, job), machine)
    radius = ((_splitmix64(bits, 0) >> 11) + 1) / (1 << 53)
    angle = (_splitmix64(bits, 1) >> 11) / (1 << 53)
    normal = math.sqrt(-2 * math.log(radius)) * math.cos(2 * math.pi * angle)
    return math.exp(sigma * normal)


def _splitmix64(key: int, count: int) -> int:
    x = (key + (count + 1) * 0x9E3779B97F4A7C15) & _BITS
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _BITS
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _BITS
    return x ^ (x >> 31)


def plain_finish_s(
    cluster: Cluster, jobs: Jobs, ordering: str, placement: str, *, backfill: bool = True
) -> NDArray[np.float64]:
    """(N,) Ends of the jobs without interference: at each event finish, admit, start."""
    free = np.stack([cluster.gpu_capacity, cluster.cpu_capacity], axis=1)
    demand = np.stack([jobs.gpu, jobs.cpu], axis=1)
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
                free[machine] += count * demand[job]
        while arrived < len(first) and jobs.arrival_s[arrived] <= now:
            queue.append(arrived)
            arrived += 1
        for job in sorted(queue, key=lambda job: (first[job], jobs.job_id[job])):
            places = place(cluster, jobs, free, job, placement)
            if not places and not backfill:
                break
            if places:
                queue.remove(job)
                running[job] = places
                finish_s[job] = now + jobs.duration_s[job]
                for machine, count in places:
                    free[machine] -= count * demand[job]
    return finish_s


def place(
    cluster: Cluster, jobs: Jobs, free: NDArray[np.int64], job: int, rule: str = "first-fit"
) -> list[tuple[int, int]]:
    """Machines of a gang and instances on each, by a placement rule; empty if it does not fit."""
    needed, kind = int(jobs.instances[job]), jobs.gpu_type[job]
    by_cpu = free[:, 1] // jobs.cpu[job] if jobs.cpu[job] else needed
    fit = np.minimum(free[:, 0] // jobs.gpu[job], by_cpu).clip(0, needed)
    fit[(kind != ANY_TYPE) & (cluster.gpu_type != kind)] = 0
    if fit.sum() < needed:
        return []
    if rule == "consolidate" and fit.max() < needed:
        of_rack = np.bincount(cluster.rack, fit)
        racks = np.flatnonzero(of_rack >= needed)
        if len(racks):
            fit[cluster.rack != min(racks, key=lambda rack: of_rack[rack])] = 0

    def score(machine: int) -> Any:
        gpu, cpu = free[machine]
        gpu_use = 1 - gpu / cluster.gpu_capacity[machine]
        cpu_use = 1 - cpu / cluster.cpu_capacity[machine]
        return {
            "first-fit": machine,
            "best-fit": gpu,
            "worst-fit": -gpu,
            "load-balance": round(100 * (gpu_use + cpu_use) / 2),
            "consolidate": (-min(fit[machine], needed), gpu),
        }[rule]

    places = []
    while needed:
        machine = min(np.flatnonzero(fit).tolist(), key=score)
        places.append((machine, min(int(fit[machine]), needed)))
        needed -= places[-1][1]
        fit[machine] = 0
    return places
