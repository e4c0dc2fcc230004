"""What is known of an application: its parameters, estimated from reports, and its load.

CPU time a request is the use of CPU divided by the requests. I/O time is what the p99 exceeds that
of the queueing model by. Memory is a line over the requests in flight, fitted to the mean and the
peak of the pods by least squares with forgetting. The load is an exponentially weighted mean of
logarithms with the deviation of its errors; an error beyond three deviations is a new level, and
where errors have one sign for long the mean follows faster.
"""

import math

import numpy as np

from loadmaster.envs.compiled import compiled, njit_internal
from loadmaster.envs.pod_scaling.episode import PEAK_SAMPLES
from loadmaster.envs.pod_scaling.latency import time_of_level, write_row
from loadmaster.envs.pod_scaling.observation import newest_report
from loadmaster.envs.pod_scaling.settings import INTERVAL_S, STEP_INTERVALS, STEP_S
from loadmaster.envs.pod_scaling.simulator import requests_at_cpu
from loadmaster.envs.pod_scaling.state import (
    CPU,
    CPU_S,
    IO_S,
    MEMORY_MIB,
    NOW,
    P99_S,
    R_LIMIT_CORES,
    R_LIMIT_MIB,
    R_OOMS,
    R_PEAK_MIB,
    R_PODS,
    R_READY,
    R_REQUESTS,
    R_SEEN,
    R_USED_CORES,
    R_USED_MIB,
    REPLICAS,
    REQUEST_MIB,
    S_ARRIVED,
    S_RESTARTS,
    SLO,
    SLO_S,
    Floats,
    SimConstants,
    SimState,
)
from loadmaster.models.aware.pod_model import (
    ESTIMATED_COLUMNS,
    MEMORY_IO_S,
    Forecast,
    level_moments,
)

# Columns of the estimates.
(
    STEPS, CPU_SECONDS, REQUESTS, IO, IO_SEEN, LOAD, VARIANCE,
    W, WA, WB, WY, WAA, WAB, WBB, WAY, WBY, OUTLIERS, SURGE, BIAS, ERROR,
) = range(20)  # fmt: skip
ESTIMATE_COLUMNS = 20

KEEP = 0.98  # forgetting of CPU and memory, by the report
_SETTLED_P99 = 2.0  # times the SLO: a later one is that of requests that queued up
_SLOWEST = 0.05  # weight of a new p99
_PRIOR_MIB, _RIDGE = 5.0, 0.003  # of memory a request
_STATIONARY = 0.05  # deviation of the CPU time a request, of reports without a backlog
_RISE = 0.7  # weight of a load far above the forecast
# Of the tracking signal (Trigg and Leach, 1967): smoothing, and the value from which on a forecast
# is taken to lag. Under noise alone it is 0.24 in the mean, and beyond 0.6 in 3% of the steps.
_TRACKING, _LAGS = 0.2, 0.6
_OUTLIER = 0.03  # relative error of memory, of reports that are left out
_PATIENCE = 12.0  # of them in a row, after which the line is fitted anew
# The most requests at once in an interval vary; their mean is known. They count little beside the
# mean number, unless that hardly changes, as at a low load.
_PEAK_LEVEL, _PEAK_WEIGHT = math.log(PEAK_SAMPLES) + 0.5772, 5e-4
_RARE = 0.2  # of the workers: so few that the most requests are hardly ever limited by them
_LEAST_REPORTS, _LEAST_SPREAD = 20.0, 0.01
_FIRST_VARIANCE, _FIRST_ERROR = 0.04, 0.16  # of the logarithm of the load
MOST_RHO = 0.9  # of reports that memory and latency are estimated from


def new_estimates() -> Floats:
    return np.zeros(ESTIMATE_COLUMNS)


@njit_internal
def update_estimates(
    constants: SimConstants, state: SimState, gain: float, row: Floats, estimates: Floats
) -> None:
    """Take the last control step; all steps so far if these are the first estimates."""
    step = state.clock[NOW] // STEP_INTERVALS - 1
    newest = newest_report(state)
    first = step if estimates[STEPS] > 0 else 0
    for one in range(first, step + 1):
        known = state.outcome[one, SLO] > 0  # a state of the service has its last steps alone
        if known:
            _take_load(state, one, gain, estimates)
        begin = one * STEP_INTERVALS
        end = begin + STEP_INTERVALS
        if one == step:  # the newest ones, which may be older than the step
            end = newest + 1
            begin = max(end - STEP_INTERVALS, 0)
        for place in range(begin, min(end, newest + 1)):
            _take_report(constants, state, place, estimates)
        if known:
            _take_latency(constants, state, one, row, estimates)
            estimates[STEPS] += 1.0


@njit_internal
def _take_load(state: SimState, step: int, gain: float, estimates: Floats) -> None:
    value = math.log((state.outcome[step, S_ARRIVED] + 0.5) / STEP_S)
    seen = estimates[STEPS]
    if seen == 0:
        estimates[LOAD], estimates[VARIANCE] = value, _FIRST_VARIANCE
        estimates[BIAS], estimates[ERROR] = 0.0, _FIRST_ERROR
        return
    error = value - estimates[LOAD]
    estimates[BIAS] += _TRACKING * (error - estimates[BIAS])
    estimates[ERROR] += _TRACKING * (abs(error) - estimates[ERROR])
    signal = abs(estimates[BIAS]) / max(estimates[ERROR], 1e-9)
    weight = max(gain, 1.0 / (seen + 1.0), (signal - _LAGS) / (1.0 - _LAGS))
    deviation = math.sqrt(estimates[VARIANCE])
    if error > 3.0 * deviation:
        weight = max(weight, _RISE)
    estimates[LOAD] += weight * error
    bounded = min(abs(error), 3.0 * deviation)
    estimates[VARIANCE] += 0.08 * (bounded * bounded - estimates[VARIANCE])


@njit_internal
def _take_report(constants: SimConstants, state: SimState, place: int, estimates: Floats) -> None:
    report = state.reports[place]
    ready, requests = report[R_READY], report[R_REQUESTS]
    if report[R_SEEN] <= 0 or ready < 1 or requests < 1 or report[R_PODS] < 1:
        return
    cores = report[R_LIMIT_CORES] / report[R_PODS]
    rho = report[R_USED_CORES] / max(ready * cores, 1e-9)
    for column in (CPU_SECONDS, REQUESTS):
        estimates[column] *= KEEP
    estimates[CPU_SECONDS] += report[R_USED_CORES] * INTERVAL_S
    estimates[REQUESTS] += requests
    if rho > MOST_RHO or ready != report[R_PODS] or report[R_OOMS] > 0:
        return
    work_s = estimates[CPU_SECONDS] / estimates[REQUESTS]
    if abs(report[R_USED_CORES] * INTERVAL_S / requests - work_s) > _STATIONARY * work_s:
        return
    if place == 0:
        return
    before = state.reports[place - 1]
    for column in (R_PODS, R_READY, R_LIMIT_CORES, R_LIMIT_MIB):
        if before[R_SEEN] <= 0 or report[column] != before[column]:
            return
    rate = requests / INTERVAL_S / ready
    at_cpu = requests_at_cpu(rho, cores)
    if rate * estimates[IO] + at_cpu > 0.9 * constants.concurrency:
        return
    mib = report[R_USED_MIB] / ready
    if estimates[W] > 8.0:
        fixed, each, waiting = fit_memory(estimates)
        if abs(fixed + each * at_cpu + waiting * rate - mib) > _OUTLIER * mib:
            estimates[OUTLIERS] += 1.0
            if estimates[OUTLIERS] < _PATIENCE:
                return
            for column in range(W, WBY + 1):
                estimates[column] = 0.0
    estimates[OUTLIERS] = 0.0
    for column in range(W, WBY + 1):
        estimates[column] *= KEEP
    _add_row(estimates, 1.0, at_cpu, rate, mib)
    in_io = rate * estimates[IO]
    most = in_io + 2.0 * math.sqrt(in_io) + _PEAK_LEVEL / math.log1p(1.0 / max(at_cpu, 1e-9))
    if most < _RARE * constants.concurrency:
        _add_row(estimates, _PEAK_WEIGHT, most, 0.0, report[R_PEAK_MIB])


@njit_internal
def _add_row(estimates: Floats, weight: float, a: float, b: float, mib: float) -> None:
    """Add MiB with so many requests at the CPU, and so many a second in I/O."""
    estimates[W] += weight
    estimates[WA] += weight * a
    estimates[WB] += weight * b
    estimates[WY] += weight * mib
    estimates[WAA] += weight * a * a
    estimates[WAB] += weight * a * b
    estimates[WBB] += weight * b * b
    estimates[WAY] += weight * a * mib
    estimates[WBY] += weight * b * mib


@njit_internal
def memory_is_known(estimates: Floats) -> bool:
    """Whether reports differ enough to say what memory a request takes."""
    weight = max(estimates[W], 1e-9)
    spread = estimates[WAA] - estimates[WA] * estimates[WA] / weight
    return bool(weight >= _LEAST_REPORTS and spread >= _LEAST_SPREAD)


@njit_internal
def _take_latency(
    constants: SimConstants, state: SimState, step: int, row: Floats, estimates: Floats
) -> None:
    """I/O time from the p99 of a step, where the pods were settled."""
    outcome, requests = state.outcome[step], state.outcome[step, S_ARRIVED]
    if not 0 < outcome[P99_S] <= _SETTLED_P99 * outcome[SLO] or outcome[S_RESTARTS] > 0:
        return
    if estimates[REQUESTS] <= 0:
        return
    cores, replicas = state.plan[CPU], state.plan[REPLICAS]
    work_s = estimates[CPU_SECONDS] / estimates[REQUESTS]
    rho = requests / STEP_S * work_s / (replicas * cores)
    if rho > MOST_RHO:
        return
    write_row(constants, row, 0.0, work_s, cores, replicas, rho, 0.5, 1.0)
    level, _ = level_moments(requests)
    found = outcome[P99_S] - time_of_level(constants, row, level)
    most = 0.5 * outcome[SLO]
    if estimates[IO_SEEN] > 0:
        found = min(max(found, estimates[IO] - most), estimates[IO] + most)
    weight = max(_SLOWEST, 1.0 / (estimates[IO_SEEN] + 1.0))
    estimates[IO] = max(estimates[IO] + weight * (found - estimates[IO]), 0.0)
    estimates[IO_SEEN] += 1.0


@compiled
def write_application(estimates: Floats, slo_s: float, app: Floats) -> None:
    """The application's parameters by these estimates, as a row of `SimState.apps`."""
    app[CPU_S] = max(estimates[CPU_SECONDS] / max(estimates[REQUESTS], 1e-9), 1e-4)
    app[IO_S], app[SLO_S] = estimates[IO], slo_s
    fixed, each, waiting = fit_memory(estimates)
    each = max(each, 0.1)
    app[REQUEST_MIB], app[MEMORY_IO_S] = each, min(max(waiting / each, 0.0), slo_s)
    app[MEMORY_MIB] = max(fixed, 1.0)


@njit_internal
def fit_memory(estimates: Floats) -> tuple[float, float, float]:
    """MiB of an idle pod, of a request, and of a request a second, by ridge regression."""
    weight = max(estimates[W], 1e-9)
    a, b, y = estimates[WA] / weight, estimates[WB] / weight, estimates[WY] / weight
    aa = max(estimates[WAA] - weight * a * a, 0.0) + _RIDGE
    ab = estimates[WAB] - weight * a * b
    bb = max(estimates[WBB] - weight * b * b, 0.0) + _RIDGE
    ay = estimates[WAY] - weight * a * y + _RIDGE * _PRIOR_MIB
    by = estimates[WBY] - weight * b * y + _RIDGE * _PRIOR_MIB * estimates[IO]
    free = max(aa * bb - ab * ab, 1e-12)
    each, waiting = (ay * bb - by * ab) / free, (by * aa - ay * ab) / free
    return y - each * a - waiting * b, each, waiting


def write_memory(
    estimates: Floats,
    weight: float,
    moments: tuple[float, float, float, float, float],
    line: tuple[float, float, float],
) -> None:
    """Write sums by which `fit_memory` finds the line: the inverse of it.

    `moments`: means of the requests at the CPU and of those a second, and sums of their squares and
    product about the means. `line`: what `fit_memory` returns.
    """
    a, b, aa, ab, bb = moments
    fixed, each, waiting = line
    y = fixed + each * a + waiting * b
    ay = each * (aa + _RIDGE) + waiting * ab - _RIDGE * _PRIOR_MIB
    by = each * ab + waiting * (bb + _RIDGE) - _RIDGE * _PRIOR_MIB * estimates[IO]
    estimates[W : WBY + 1] = (
        weight, weight * a, weight * b, weight * y,
        aa + weight * a * a, ab + weight * a * b, bb + weight * b * b,
        ay + weight * a * y, by + weight * b * y,
    )  # fmt: skip


def begin_episode(estimates: Floats) -> None:
    """Forget the load, not the application."""
    for column in (STEPS, LOAD, VARIANCE, SURGE, BIAS, ERROR):
        estimates[column] = 0.0


def forecast_numbers(estimates: Floats) -> tuple[float, float]:
    """`forecast_of` for Python."""
    return math.exp(estimates[LOAD]), math.sqrt(estimates[VARIANCE])


@njit_internal
def forecast_of(estimates: Floats) -> Forecast:
    return Forecast(math.exp(estimates[LOAD]), math.sqrt(estimates[VARIANCE]))


def blank_application() -> Floats:
    return np.zeros(ESTIMATED_COLUMNS)
