"""Expected reward of a plan: a queueing model of the pods under an uncertain load and p99.

The load of the next control step is lognormal around its forecast, and the p99 is an order
statistic of the step's few requests. Both are integrated by Gauss-Hermite quadrature, with the
latencies of `envs/pod_scaling/latency.py`. Memory is what a pod's mean and highest number of
requests in flight need.
"""

import math
from typing import NamedTuple

from loadmaster.envs.compiled import njit_internal
from loadmaster.envs.pod_scaling.episode import PEAK_SAMPLES
from loadmaster.envs.pod_scaling.latency import time_of_level, write_row
from loadmaster.envs.pod_scaling.rewards import slo_preservation
from loadmaster.envs.pod_scaling.settings import STEP_S
from loadmaster.envs.pod_scaling.simulator import most_load, requests_at_cpu
from loadmaster.envs.pod_scaling.state import (
    CPU_S,
    IO_S,
    MEMORY_MIB,
    REQUEST_MIB,
    SLO_S,
    Floats,
    SimConstants,
)

# Nodes and weights for a standard normal variable.
_LOAD_NODES = (-2.85697, -1.355626, 0.0, 1.355626, 2.85697)
_LOAD_WEIGHTS = (0.011257, 0.222076, 0.533333, 0.222076, 0.011257)
_LEVEL_NODES = (-1.732051, 0.0, 1.732051)
_LEVEL_WEIGHTS = (1 / 6, 2 / 3, 1 / 6)
_PHASE = 0.5  # of CFS periods, the mean
_SPARE = 1.03  # of memory, for errors of the estimates
_HIGH_LOAD = 1.355626  # standard deviations, of the load that memory is planned for


# Columns of an estimated application: those of `SimState.apps` up to SLO_S, then I/O seconds by the
# memory that requests hold, which differ from those of the latency.
MEMORY_IO_S = SLO_S + 1
ESTIMATED_COLUMNS = MEMORY_IO_S + 1


class Forecast(NamedTuple):
    """Load of the next step: requests a second, and the standard deviation of its logarithm."""

    rate: float
    sigma: float


@njit_internal
def level_moments(requests: float) -> tuple[float, float]:
    """Mean and deviation of the level of the p99 of so many requests.

    The share of requests above it is a beta variable (a, n - a + 1), a = floor(n / 100) + 1, whose
    negative logarithm has the mean psi(n + 1) - psi(a) and the variance psi'(a) - psi'(n + 1).
    """
    count = max(requests, 1.0)
    above = max(0.5 + 0.01 * count, 1.0)  # in the mean of near numbers of requests
    mean = _digamma(count + 1.0) - _digamma(above)
    return mean, math.sqrt(max(_trigamma(above) - _trigamma(count + 1.0), 0.0))


@njit_internal
def _digamma(x: float) -> float:
    """Asymptotic series, within 0.006 for x of 1 or more."""
    return math.log(x) - 0.5 / x - 1.0 / (12.0 * x * x)


@njit_internal
def _trigamma(x: float) -> float:
    return 1.0 / x + 0.5 / (x * x) + 1.0 / (6.0 * x * x * x)


@njit_internal
def load_of(work_s: float, replicas: float, cores: float, rate: float) -> float:
    """rho of so many pods, at most that of a queue which grew for one step."""
    return min(rate * work_s / (replicas * cores), most_load(work_s, cores))


@njit_internal
def expected_service(
    constants: SimConstants,
    app: Floats,
    row: Floats,
    load: Forecast,
    margin: float,
    replicas: float,
    cores: float,
) -> tuple[float, float]:
    """Mean SLO preservation and mean use of CPU of the next step; `row` is scratch.

    The p99 counts with the factor `margin`.
    """
    preserved = use = 0.0
    for place in range(len(_LOAD_NODES)):
        rate = load.rate * math.exp(load.sigma * _LOAD_NODES[place])
        rho = load_of(app[CPU_S], replicas, cores, rate)
        write_row(constants, row, app[IO_S], app[CPU_S], cores, replicas, rho, _PHASE, 1.0)
        mean, deviation = level_moments(rate * STEP_S)
        kept = 0.0
        for point in range(len(_LEVEL_NODES)):
            level = max(mean + deviation * _LEVEL_NODES[point], 0.05)
            p99_s = margin * time_of_level(constants, row, level)
            kept += _LEVEL_WEIGHTS[point] * slo_preservation(app[SLO_S], p99_s)
        preserved += _LOAD_WEIGHTS[place] * kept
        use += _LOAD_WEIGHTS[place] * min(rate * app[CPU_S] / (replicas * cores), 1.0)
    return preserved, use


@njit_internal
def mean_memory(
    constants: SimConstants, app: Floats, load: Forecast, replicas: float, cores: float
) -> float:
    """Mean MiB of a pod at the forecast load."""
    in_io, at_cpu = _in_flight(app, load.rate, replicas, cores)
    found: float = app[MEMORY_MIB] + app[REQUEST_MIB] * min(in_io + at_cpu, constants.concurrency)
    return found


@njit_internal
def full_memory(constants: SimConstants, app: Floats) -> float:
    """MiB of a pod whose workers all have a request: it never needs more."""
    found: float = _SPARE * (app[MEMORY_MIB] + app[REQUEST_MIB] * constants.concurrency)
    return found


@njit_internal
def memory_of_level(
    constants: SimConstants,
    app: Floats,
    load: Forecast,
    replicas: float,
    cores: float,
    level: float,
) -> float:
    """MiB that suffice up to this level of the most requests at once, at a high load."""
    rate = load.rate * math.exp(_HIGH_LOAD * load.sigma)
    in_io, at_cpu = _in_flight(app, rate, replicas, cores)
    most = in_io + 2.0 * math.sqrt(in_io) + max(at_cpu, level / math.log1p(1.0 / at_cpu))
    found: float = app[MEMORY_MIB] + app[REQUEST_MIB] * min(most, constants.concurrency)
    return _SPARE * found


@njit_internal
def oom_probability(
    constants: SimConstants,
    app: Floats,
    load: Forecast,
    replicas: float,
    cores: float,
    mib: float,
) -> float:
    """That pods with this limit need more in an interval of the next step.

    The level of the most requests at once is a Gumbel variable around ln PEAK_SAMPLES.
    """
    room = (mib / _SPARE - app[MEMORY_MIB]) / app[REQUEST_MIB]
    if room >= constants.concurrency - 1e-6:
        return 0.0
    found = 0.0
    for place in range(len(_LOAD_NODES)):
        rate = load.rate * math.exp(load.sigma * _LOAD_NODES[place])
        in_io, at_cpu = _in_flight(app, rate, replicas, cores)
        spare = room - in_io - 2.0 * math.sqrt(in_io)
        chance = 1.0
        if spare > at_cpu:
            chance = 1.0 - math.exp(-PEAK_SAMPLES * math.exp(-spare * math.log1p(1.0 / at_cpu)))
        found += _LOAD_WEIGHTS[place] * chance
    return found


@njit_internal
def _in_flight(app: Floats, rate: float, replicas: float, cores: float) -> tuple[float, float]:
    """Mean requests of a pod in I/O, by Little's law, and at its CPU."""
    rho = load_of(app[CPU_S], replicas, cores, rate)
    return rate / replicas * app[MEMORY_IO_S], max(requests_at_cpu(rho, cores), 1e-9)
