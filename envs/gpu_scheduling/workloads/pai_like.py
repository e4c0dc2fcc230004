"""Generates jobs like those of Alibaba's PAI, no data needed.

Run time, instances, GPU and CPU of a job are correlated, and alike for jobs of one user; yet each
alone follows its published table exactly (a Gaussian copula). Requests that the cluster could not
grant are cut: an instance to its largest machine, a gang to a quarter of the cluster, since one
that holds half of it for a day would decide an episode alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.gpu_scheduling.cluster import Cluster, build_cluster, type_names
from loadmaster.envs.gpu_scheduling.jobs import ANY_TYPE, Jobs, gpu_seconds
from loadmaster.envs.gpu_scheduling.sequence import room
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.workloads import pai_tables as pai
from loadmaster.envs.gpu_scheduling.workloads.communication import draw_shares

Floats = NDArray[np.float64]
_SEED = 2020  # fixes the users' habits, and the sample that tells a job's mean work
_SAMPLE = 100_000
_PARTS = 4  # a gang fits into the cluster at least so many times, or has one instance


@dataclass(frozen=True)
class PaiLike:
    """The generator for one cluster."""

    cluster: Cluster
    types: tuple[str, ...]
    require_types: bool
    mean_gpu_s: float = 0.0
    name: str = "pai-like"
    description: str = "generated, calibrated to the published statistics of PAI"
    size: int | None = None
    keeps_time: bool = False

    def draw(self, count: int, consecutive: bool, rng: np.random.Generator) -> Jobs:
        jobs = generate(count, self.types, rng)
        if not self.require_types:
            jobs = jobs._replace(gpu_type=np.full_like(jobs.gpu_type, ANY_TYPE))
        return _cut(jobs, self.cluster)


def load(settings: GpuSchedulingSettings) -> PaiLike:
    # Of all settings only these matter, so that a changed load does not start it afresh.
    return _load(
        GpuSchedulingSettings(
            machines=settings.machine_groups,
            gpu_types=settings.gpu_types,
            require_types=settings.require_types,
        )
    )


@lru_cache(maxsize=8)
def _load(settings: GpuSchedulingSettings) -> PaiLike:
    source = PaiLike(build_cluster(settings), type_names(settings), settings.require_types)
    sample = source.draw(_SAMPLE, False, np.random.default_rng(_SEED))
    return replace(source, mean_gpu_s=float(gpu_seconds(sample).mean()))


def generate(count: int, types: Sequence[str], rng: np.random.Generator) -> Jobs:
    """Jobs as PAI's users would submit them, whatever the cluster is like."""
    user, uniform = _draw_latent(count, rng)
    duration_s = np.exp(np.interp(uniform[:, 0], pai.DURATION_AT, pai.DURATION_LOG_S))
    instances = pai.look_up(pai.INSTANCES, uniform[:, 1])
    alone = pai.look_up(pai.CPU_ALONE, uniform[:, 3])
    in_gang = pai.look_up(pai.CPU_IN_GANG, uniform[:, 3])
    wanted = np.array([*(types.index(name) for name in pai.TYPES), ANY_TYPE])
    up_to = np.cumsum(list(pai.TYPES.values()))
    return Jobs(
        arrival_s=_draw_arrivals(count, rng),
        duration_s=np.maximum(1.0, np.rint(duration_s)),
        instances=instances,
        gpu=pai.look_up(pai.GPU, uniform[:, 2]),
        cpu=np.where(instances > 1, in_gang, alone),
        gpu_type=wanted[np.searchsorted(up_to, rng.random(count))],
        comm=draw_shares(instances, rng),
        user=user,
        job_id=np.arange(count),
    )


def _draw_latent(count: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], Floats]:
    """Each job's user, and (count, 4) its quantiles of run time, instances, GPU and CPU."""
    weights, habits, grid, up_to = _users()
    user = rng.choice(pai.USERS, size=count, p=weights)
    own = rng.standard_normal((count, 4)) @ np.linalg.cholesky(pai.CORRELATION).T
    latent = np.sqrt(pai.HABIT) * habits[user] + np.sqrt(1 - pai.HABIT) * own
    uniform = [np.interp(latent[:, c], grid, up_to[c]) for c in range(4)]
    return user, np.stack(uniform, axis=1)


@lru_cache(maxsize=1)
def _users() -> tuple[Floats, Floats, Floats, Floats]:
    """Shares (U,) and habits (U, 4) of the users; the latent numbers' distribution on a grid.

    A few users submit most jobs, so what they draw is a mixture of normal distributions. Its own
    distribution function turns that into uniform numbers, and the tables are met exactly.
    """
    rank = np.arange(1.0, pai.USERS + 1, dtype=np.float64)
    weights: Floats = (rank + pai.USER_SHIFT) ** -pai.USER_EXPONENT
    weights /= weights.sum()
    rng = np.random.default_rng(_SEED)
    habits = rng.standard_normal((pai.USERS, 4)) @ np.linalg.cholesky(pai.CORRELATION).T
    grid = np.linspace(-7, 7, 1401)
    spread = np.sqrt(1 - pai.HABIT)
    normal = NormalDist()
    # One fine table of the normal distribution serves every user.
    fine = np.linspace(-25, 25, 20_001)
    below = np.array([normal.cdf(x) for x in fine])
    centres = np.sqrt(pai.HABIT) * habits  # (U, 4)
    up_to = np.stack(
        [
            weights @ np.interp((grid[None, :] - centres[:, c, None]) / spread, fine, below)
            for c in range(4)
        ]
    )
    return weights, habits, grid, up_to


def _draw_arrivals(count: int, rng: np.random.Generator) -> Floats:
    """A Poisson process whose rate changes from hour to hour, as PAI's; the first job at 0."""
    # Operational time: unit-rate arrivals, mapped through the rate's integral.
    unit = np.concatenate([[0.0], np.cumsum(rng.exponential(size=count - 1))])
    hours = int(unit[-1] * pai.MEAN_GAP_S / 3600 * 2) + 48
    phase = rng.uniform(0, 2 * np.pi)
    wave = pai.DAILY_WAVE * np.sin(2 * np.pi * np.arange(hours) / 24 + phase)
    noise = pai.HOUR_SIGMA * rng.standard_normal(hours)
    variance = pai.HOUR_SIGMA**2 + pai.DAILY_WAVE**2 / 2
    rate = np.exp(wave + noise - variance / 2) / pai.MEAN_GAP_S  # arrivals a second
    done = np.concatenate([[0.0], np.cumsum(rate * 3600)])
    return np.interp(unit, done, 3600.0 * np.arange(hours + 1))


def _cut(jobs: Jobs, cluster: Cluster) -> Jobs:
    """Requests cut to what the cluster could grant; a type that it lacks is not asked for."""
    has_type = np.isin(jobs.gpu_type, cluster.gpu_type)
    jobs = jobs._replace(gpu_type=np.where(has_type, jobs.gpu_type, ANY_TYPE))
    gpu, cpu = jobs.gpu.copy(), jobs.cpu.copy()
    for kind in (ANY_TYPE, *np.unique(cluster.gpu_type)):
        machines = np.flatnonzero((kind == ANY_TYPE) | (cluster.gpu_type == kind))
        order = np.lexsort((cluster.cpu_capacity[machines], cluster.gpu_capacity[machines]))
        largest = machines[order[-1]]
        here = jobs.gpu_type == kind
        gpu[here] = np.minimum(gpu[here], cluster.gpu_capacity[largest])
        cpu[here] = np.minimum(cpu[here], cluster.cpu_capacity[largest])
    jobs = jobs._replace(gpu=gpu, cpu=cpu)
    most = np.maximum(1, room(jobs, cluster) // _PARTS)
    instances = np.minimum(jobs.instances, most)
    return jobs._replace(instances=instances, comm=np.where(instances > 1, jobs.comm, 0.0))
