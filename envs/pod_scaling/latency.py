"""Latency of requests, compiled: its distribution in an interval, and the p99 of a control step.

A time in the pod has the level x if a share exp(-x) of the requests takes longer. In an interval

    T(x) = io + q / (n mu) + s (k(x) / (1 - rho) - x) + alone(x c),

with the quantiles k of quantile_table.py, and the time `alone` that x c of work takes in an idle
pod, where a CFS quota takes the place of s: work W with a quota Q a period takes
(ceil(W / Q) - 1) periods and the rest, less a random phase, and never less than W. Between the
tabulated levels T is linear.

The p99 of a control step is that of its requests: the level is drawn as an order statistic of their
number. If the intervals of the step differ, their distributions are mixed by their requests.
"""

import math

from loadmaster.envs.compiled import compiled, njit_internal
from loadmaster.envs.pod_scaling.settings import STEP_INTERVALS
from loadmaster.envs.pod_scaling.state import (
    BASE_S,
    CORES_PART,
    CORES_PLACE,
    FREE,
    LOAD_PART,
    LOAD_PLACE,
    OF_CORES,
    OF_READY,
    PHASE_S,
    QUOTA_S,
    SERVICE_S,
    WEIGHT,
    WORK_S,
    Floats,
    SimConstants,
)

PERIOD_S = 0.1  # of CFS quotas
_ITERATIONS = 12  # of a false position, at most
_ACCURACY = 1e-4  # of a level


@compiled
def time_alone(work_s: float, quota_s: float, phase_s: float) -> float:
    """Seconds that work takes in an idle pod with a CPU quota a period; 0: without quota."""
    if quota_s <= 0 or work_s <= quota_s:
        return work_s
    periods = math.ceil(work_s / quota_s) - 1
    return max(work_s, periods * PERIOD_S + work_s - periods * quota_s - phase_s)


@njit_internal
def place_in(grid: Floats, value: float) -> int:
    """The cell of an ascending grid that holds the value, or the nearest one."""
    low, high = 0, len(grid) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if grid[middle] <= value:
            low = middle
        else:
            high = middle
    return low


@njit_internal
def _pods_together(pods: float, rho: float) -> float:
    """Pods with one queue that have the p99 of so many where requests go to the less busy of two.

    A formula fitted to requests simulated one by one, first come, first served: with 2 to 20 pods
    the p99 is within 5% of theirs up to a load of 0.8, and within 12% at 0.9.
    """
    if pods <= 2.0:
        return 1.0 + 0.87 * (pods - 1.0)
    most = 1.6 + 0.37 / max(1.0 - rho, 0.01)  # of any number of pods
    return max((pods**-2.3 + most**-2.3) ** (-1.0 / 2.3), 1.0)


@njit_internal
def write_row(
    constants: SimConstants,
    row: Floats,
    base_s: float,
    work_s: float,
    cores: float,
    pods: float,
    rho: float,
    phase: float,
    weight: float,
) -> None:
    """Describe the latency of requests in so many pods of so many cores with a load below 1.

    `base_s` is the time outside the CPU, `work_s` the mean CPU time, `phase` from 0 to 1.
    """
    loads, grid = constants.loads, constants.cores
    servers = max(cores, 1.0)
    if constants.two_choices and pods > 1.0:
        servers *= _pods_together(pods, rho)
    servers = min(servers, grid[-1])
    inside = min(rho, loads[-1])
    load_place, cores_place = place_in(loads, inside), place_in(grid, servers)
    row[BASE_S], row[WORK_S], row[WEIGHT] = base_s, work_s, weight
    row[SERVICE_S] = work_s / min(cores, 1.0)
    throttled = constants.throttling and cores < 1.0
    row[QUOTA_S] = cores * PERIOD_S if throttled else 0.0
    row[PHASE_S] = phase * PERIOD_S
    row[FREE] = 1.0 - rho
    row[LOAD_PLACE], row[CORES_PLACE] = load_place, cores_place
    row[LOAD_PART] = (inside - loads[load_place]) / (loads[load_place + 1] - loads[load_place])
    width = grid[cores_place + 1] - grid[cores_place]
    row[CORES_PART] = (servers - grid[cores_place]) / width


@njit_internal
def _time_at(constants: SimConstants, row: Floats, place: int) -> float:
    """T at a tabulated level."""
    load, core = int(row[LOAD_PLACE]), int(row[CORES_PLACE])
    part, table = row[LOAD_PART], constants.quantiles
    factor = table[core, load, place]
    factor += part * (table[core, load + 1, place] - factor)
    if row[CORES_PART] > 0:
        more = table[core + 1, load, place]
        more += part * (table[core + 1, load + 1, place] - more)
        factor += row[CORES_PART] * (more - factor)
    level = constants.levels[place]
    waiting = row[SERVICE_S] * (factor / row[FREE] - level)
    if row[QUOTA_S] > 0:
        return row[BASE_S] + waiting + time_alone(level * row[WORK_S], row[QUOTA_S], row[PHASE_S])
    return row[BASE_S] + waiting + level * row[SERVICE_S]


@njit_internal
def time_of_level(constants: SimConstants, row: Floats, level: float) -> float:
    """T(x), at most the timeout."""
    place = place_in(constants.levels, level)
    low, high = constants.levels[place], constants.levels[place + 1]
    first = _time_at(constants, row, place)
    slope = (_time_at(constants, row, place + 1) - first) / (high - low)
    return min(first + slope * (level - low), constants.timeout_s)


@njit_internal
def level_of_time(constants: SimConstants, row: Floats, time_s: float) -> float:
    """The inverse of T(x)."""
    low, high = 0, len(constants.levels) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if _time_at(constants, row, middle) <= time_s:
            low = middle
        else:
            high = middle
    first, last = _time_at(constants, row, low), _time_at(constants, row, high)
    if time_s <= first:
        return constants.levels[low]
    part = (time_s - first) / max(last - first, 1e-12)
    return constants.levels[low] + part * (constants.levels[high] - constants.levels[low])


@njit_internal
def mixed_time(constants: SimConstants, rows: Floats, level: float) -> float:
    """Time with a level in the mixture of the intervals' distributions, at most the timeout."""
    total, lowest, highest = 0.0, math.inf, 0.0
    if _alike(rows):
        return time_of_level(constants, rows[0], level)
    for place in range(STEP_INTERVALS):
        if rows[place, WEIGHT] > 0:
            total += rows[place, WEIGHT]
            time_s = time_of_level(constants, rows[place], level)
            lowest, highest = min(lowest, time_s), max(highest, time_s)
    if highest - lowest <= 1e-3 * highest:
        return highest
    # False position (Illinois) for the logarithm of the tail, which is near linear.
    low, high = lowest, highest
    below = _mixed_level(constants, rows, total, low) - level
    above = _mixed_level(constants, rows, total, high) - level
    side = 0
    for _ in range(_ITERATIONS):
        if above - below <= 1e-12:
            break
        middle = (low * above - high * below) / (above - below)
        error = _mixed_level(constants, rows, total, middle) - level
        if abs(error) < _ACCURACY:
            return middle
        if error > 0:
            high, above = middle, error
            below = 0.5 * below if side == 1 else below
            side = 1
        else:
            low, below = middle, error
            above = 0.5 * above if side == -1 else above
            side = -1
    return 0.5 * (low + high)


@njit_internal
def _alike(rows: Floats) -> bool:
    """Whether all intervals of a step have the same distribution: their load is the step's."""
    for place in range(1, STEP_INTERVALS):
        for column in (BASE_S, OF_READY, OF_CORES):
            if rows[place, column] != rows[0, column]:
                return False
    return True


@njit_internal
def _mixed_level(constants: SimConstants, rows: Floats, total: float, time_s: float) -> float:
    tail = 0.0
    for place in range(STEP_INTERVALS):
        weight = rows[place, WEIGHT]
        if weight > 0 and time_s < constants.timeout_s:
            tail += weight / total * math.exp(-level_of_time(constants, rows[place], time_s))
    return -math.log(max(tail, 1e-30))
