"""Generator of jobs like those of Alibaba's PAI, from published statistics.

Duration, instances, GPU and CPU of a job are correlated, and similar for jobs of one user, but the
marginal distributions are exactly the published ones (a Gaussian copula). Requests are cut to the
cluster: an instance to the largest machine, a gang to a quarter of the cluster, since a gang that
holds half of it for a day would dominate an episode.
"""

import hashlib
from collections.abc import Sequence
from functools import lru_cache, partial
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.gpu_scheduling.cluster import Cluster, build_cluster, capacity
from loadmaster.envs.gpu_scheduling.jobs import ANY_TYPE, Jobs, Workload, gpu_seconds
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings

# Share of its time that a gang communicates: not in any trace. Gavel measured training jobs on 2 to
# 8 GPUs both consolidated on one machine and spread. Spread, the median kept 0.43 of its speed on
# V100s and 0.68 on P100s; the upper decile kept 0.99, the lower ones 0.20 and 0.50. Beta(2, 3),
# with a median of 0.39 and deciles of 0.14 and 0.68, lies between the two.
_BETA = (2.0, 3.0)


def typical_share(name: str) -> float:
    """Share of communication of a gang with this name, from a hash."""
    digest = hashlib.sha256(name.encode()).digest()
    rng = np.random.default_rng(int.from_bytes(digest[:8], "big"))
    return float(rng.beta(*_BETA, 1)[0])


# Published for the 82,184 GPU jobs of a week in 2020: durations of 5,223 s on average, 594 s at the
# median, 24,110 s and 67,432 s at 95 and 99%; 5.0 instances per job, at most 512; 0.68 GPUs per
# instance, exactly one for 45.1% of them, less for 52.5%; 31.0% on T4, 6.1% on P100, 2.9% on V100,
# the others on older types; 318, 421 and 545 arrivals per hour at the quartiles, 1,350 at the peak.
# The rest follows two public samples, 3,046 jobs of one instance and 16,842 of 2 to 16. The share
# of jobs with one instance was not published: 60% here, which results in 5.0 instances per job.

# Durations at quantiles, interpolated linearly in the logarithm.
DURATION_AT = np.array([0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1])
DURATION_LOG_S = np.log([6, 18, 30, 42, 138, 594, 3950, 11500, 24110, 67432, 148000, 290000])

Floats = NDArray[np.float64]
Table = tuple[NDArray[np.int64], Floats]  # ascending values, cumulative shares


def _table(shares: dict[int, float]) -> Table:
    values = sorted(shares)
    weights = np.cumsum([shares[value] for value in values])
    return np.array(values, np.int64), weights / weights[-1]


def look_up(table: Table, uniform: Floats) -> NDArray[np.int64]:
    """The values at these quantiles in [0, 1]."""
    values, up_to = table
    return values[np.minimum(np.searchsorted(up_to, uniform, side="right"), len(values) - 1)]


# GPU per instance, in percent.
GPU = _table(
    {1: 0.4, 5: 1.0, 10: 7.1, 15: 0.2, 20: 1.05, 25: 25.3, 50: 17.45, 100: 45.1, 200: 1.6}
    | {300: 0.1, 400: 0.3, 500: 0.15, 800: 0.25}
)
# Instances of a job.
INSTANCES = _table(
    {1: 60.0, 2: 6.0, 3: 1.0, 4: 4.5, 5: 4.0, 6: 1.0, 8: 9.0, 10: 5.5, 12: 0.5, 15: 1.0, 16: 3.4}
    | {20: 1.5, 32: 1.3, 50: 0.8, 64: 0.5, 100: 0.2, 200: 0.05, 512: 0.01}
)
# Cores per instance, in percent: of a job of one instance, and of a gang.
CPU_ALONE = _table(
    {10: 0.3, 20: 1.9, 50: 1.1, 100: 2.2, 200: 1.3, 300: 0.7, 400: 2.1, 500: 0.4, 600: 74.2}
    | {800: 1.1, 1000: 5.3, 1200: 0.8, 1600: 0.8, 1800: 7.0, 2000: 0.2, 4000: 0.1}
)
CPU_IN_GANG = _table(
    {100: 0.8, 120: 0.9, 200: 10.1, 300: 0.7, 400: 4.0, 500: 5.8, 600: 34.0, 800: 4.3, 1000: 5.5}
    | {1600: 6.4, 1800: 25.4, 9000: 2.1}
)
# Share of jobs that require a GPU type; the others run on any.
TYPES = {"T4": 0.310, "P100": 0.061, "V100": 0.029}

# The k-th user submits a share of the jobs in proportion to (k + 3)^-1.6: the first, second, tenth
# and hundredth 15.3, 10.7, 2.3 and 0.08%. In the sample these are 15.5, 10.3, 1.7 and 0.08%.
USERS = 235
USER_SHIFT = 3
USER_EXPONENT = 1.6
# Users explain 43% of the variance of durations (in ranks) in the sample; taken for the other
# requests as well.
HABIT = 0.43
# Rank correlations of duration, instances, GPU and CPU in the samples. Instances and cores are not
# correlated here: gangs have their own table of cores.
CORRELATION = np.array(
    [[1.0, 0.2, -0.25, 0.0], [0.2, 1.0, 0.0, 0.0], [-0.25, 0.0, 1.0, 0.3], [0.0, 0.0, 0.3, 1.0]]
)

# Arrivals per hour are lognormal; the quartiles give a sigma of 0.4. The daily wave is a small part
# of it, an amplitude of a sixth in the sample.
MEAN_GAP_S = 3600 / 446.9
DAILY_WAVE = 0.15  # amplitude, in the logarithm
HOUR_SIGMA = 0.385  # sqrt(0.385^2 + 0.15^2 / 2) = 0.4

_SEED = 2020  # of the users' means, and of the sample that estimates the mean work of a job
_SAMPLE = 100_000
_PARTS = 4  # a gang fits into the cluster at least this often, or has one instance


def load(settings: GpuSchedulingSettings) -> Workload:
    # The cache key has only the settings that matter.
    machines, types, required = settings.machine_groups, settings.gpu_types, settings.require_types
    return _load(GpuSchedulingSettings(machines=machines, gpu_types=types, require_types=required))


@lru_cache(maxsize=8)
def _load(settings: GpuSchedulingSettings) -> Workload:
    draw = partial(_draw, build_cluster(settings), settings)
    work = gpu_seconds(draw(_SAMPLE, False, np.random.default_rng(_SEED)))
    description = "generated, calibrated to the published statistics of PAI"
    return Workload("pai-like", description, draw, float(work.mean()), keeps_time=False)


def _draw(
    cluster: Cluster,
    settings: GpuSchedulingSettings,
    count: int,
    consecutive: bool,
    rng: np.random.Generator,
) -> Jobs:
    jobs = generate(count, tuple(settings.known_gpu_types), rng)
    if not settings.require_types:
        jobs = jobs._replace(gpu_type=np.full_like(jobs.gpu_type, ANY_TYPE))
    return _cut(jobs, cluster)


def generate(count: int, types: Sequence[str], rng: np.random.Generator) -> Jobs:
    """Draw jobs as submitted at PAI, independent of the cluster."""
    user, uniform = _draw_latent(count, rng)
    duration_s = np.exp(np.interp(uniform[:, 0], DURATION_AT, DURATION_LOG_S))
    instances = look_up(INSTANCES, uniform[:, 1])
    alone = look_up(CPU_ALONE, uniform[:, 3])
    in_gang = look_up(CPU_IN_GANG, uniform[:, 3])
    wanted = np.array([*(types.index(name) for name in TYPES), ANY_TYPE])
    up_to = np.cumsum(list(TYPES.values()))
    return Jobs(
        arrival_s=_draw_arrivals(count, rng),
        duration_s=np.maximum(1.0, np.rint(duration_s)),
        instances=instances,
        gpu=look_up(GPU, uniform[:, 2]),
        cpu=np.where(instances > 1, in_gang, alone),
        gpu_type=wanted[np.searchsorted(up_to, rng.random(count))],
        comm=np.where(instances > 1, rng.beta(*_BETA, count), 0.0),
        user=user,
        job_id=np.arange(count),
    )


def _draw_latent(count: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], Floats]:
    """Draw users, and (count, 4) quantiles of duration, instances, GPU and CPU."""
    weights, habits, grid, up_to = _users()
    user = rng.choice(USERS, size=count, p=weights)
    own = rng.standard_normal((count, 4)) @ np.linalg.cholesky(CORRELATION).T
    latent = np.sqrt(HABIT) * habits[user] + np.sqrt(1 - HABIT) * own
    uniform = [np.interp(latent[:, c], grid, up_to[c]) for c in range(4)]
    return user, np.stack(uniform, axis=1)


@lru_cache(maxsize=1)
def _users() -> tuple[Floats, Floats, Floats, Floats]:
    """Shares (U,) and means (U, 4) of the users; a grid, and the latent distribution on it (4, G).

    A few users submit most jobs, so latent numbers follow a mixture of normal distributions. Its
    distribution function maps them to uniform numbers, so the marginals are exact.
    """
    rank = np.arange(1.0, USERS + 1, dtype=np.float64)
    weights: Floats = (rank + USER_SHIFT) ** -USER_EXPONENT
    weights /= weights.sum()
    rng = np.random.default_rng(_SEED)
    habits = rng.standard_normal((USERS, 4)) @ np.linalg.cholesky(CORRELATION).T
    grid = np.linspace(-7, 7, 1401)
    spread = np.sqrt(1 - HABIT)
    fine = np.linspace(-25, 25, 20_001)
    below = np.array([NormalDist().cdf(x) for x in fine])
    centres = np.sqrt(HABIT) * habits  # (U, 4)
    shifts = ((grid - centres[:, [c]]) / spread for c in range(4))
    up_to = np.stack([weights @ np.interp(shift, fine, below) for shift in shifts])
    return weights, habits, grid, up_to


def _draw_arrivals(count: int, rng: np.random.Generator) -> Floats:
    """Draw a Poisson process with an hourly rate like PAI's; the first job arrives at 0."""
    # Unit-rate arrivals, mapped through the inverse of the rate's integral.
    unit = np.concatenate([[0.0], np.cumsum(rng.exponential(size=count - 1))])
    hours = int(unit[-1] * MEAN_GAP_S / 3600 * 2) + 48
    phase = rng.uniform(0, 2 * np.pi)
    wave = DAILY_WAVE * np.sin(2 * np.pi * np.arange(hours) / 24 + phase)
    noise = HOUR_SIGMA * rng.standard_normal(hours)
    variance = HOUR_SIGMA**2 + DAILY_WAVE**2 / 2
    rate = np.exp(wave + noise - variance / 2) / MEAN_GAP_S  # arrivals per second
    done = np.concatenate([[0.0], np.cumsum(rate * 3600)])
    return np.interp(unit, done, 3600.0 * np.arange(hours + 1))


def _cut(jobs: Jobs, cluster: Cluster) -> Jobs:
    """Cut requests to the cluster; types that it lacks become ANY_TYPE."""
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
    most = np.maximum(1, capacity(jobs, cluster) // _PARTS)
    instances = np.minimum(jobs.instances, most)
    return jobs._replace(instances=instances, comm=np.where(instances > 1, jobs.comm, 0.0))
