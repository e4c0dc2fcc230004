"""The plan with the highest expected reward, less what changing to it costs."""

import math
from typing import NamedTuple

from loadmaster.envs.compiled import njit_internal
from loadmaster.envs.pod_scaling.rewards import RESOURCES
from loadmaster.envs.pod_scaling.settings import STEP_INTERVALS
from loadmaster.envs.pod_scaling.state import (
    CPU,
    CPU_S,
    MEMORY,
    REPLICAS,
    Floats,
    SimConstants,
)
from loadmaster.models.aware.pod_model import (
    Forecast,
    expected_service,
    full_memory,
    mean_memory,
    memory_of_level,
    oom_probability,
)

SIZES = 48  # of CPU between the bounds, on a logarithmic scale
_LEVELS = (5.0, 7.0, 9.0, 12.0)  # of the most requests at once, that memory is tried for
_EVICTION = 0.06  # reward a step that another size has to gain where it evicts pods
_MOST_LOAD = 1.1  # of plans that are considered
_FINE = 64  # replicas up to which every number is tried; beyond, steps of a 64th


class Margins(NamedTuple):
    """What a plan is chosen with; the actor sets them, and the rule has fixed ones."""

    load: float  # factor of the forecast
    spread: float  # factor of its deviation
    latency: float  # factor of the p99
    oom: float  # reward that pods killed for their memory cost
    change: float  # reward a step that other replicas have to gain
    restart: float  # reward a step that smaller memory, which takes restarts, has to gain


@njit_internal
def choose_plan(
    constants: SimConstants,
    app: Floats,
    forecast: Forecast,
    margins: Margins,
    now: Floats,
    row: Floats,
    plan: Floats,
) -> float:
    """Write the best plan after `now` and return its expected reward; `row` is scratch.

    Plans are left out whose reward could not be the best even if every SLO held.
    """
    load = Forecast(forecast.rate * margins.load, forecast.sigma * margins.spread)
    low, high = constants.low, constants.high
    sizes = SIZES if high[CPU] > low[CPU] else 1
    ratio = (high[CPU] / low[CPU]) ** (1.0 / (SIZES - 1))
    work = load.rate * app[CPU_S]  # cores
    best, reward = -math.inf, 0.0
    least, most = int(low[REPLICAS]), int(high[REPLICAS])
    turn = least - 1  # the present number first: others soon lose
    while turn <= most:
        replicas = int(now[REPLICAS]) if turn < least else turn
        seen = turn == int(now[REPLICAS])
        step = 1 if turn < least else max(1, turn // _FINE)
        turn = min(turn + step, most) if turn < most else most + 1
        if seen:
            continue
        changed = 0.0 if replicas == now[REPLICAS] else margins.change
        largest = replicas == most
        for size in range(sizes):
            cores = min(low[CPU] * ratio**size, high[CPU])
            rho = work / (replicas * cores)
            if rho > _MOST_LOAD and not (largest and size == sizes - 1):
                continue
            cost = changed + eviction_cost(constants, cores, now[CPU])
            tight = memory_of_level(constants, app, load, replicas, cores, _LEVELS[0])
            mean = mean_memory(constants, app, load, replicas, cores)
            memory_use = min(mean / min(max(tight, low[MEMORY]), high[MEMORY]), 1.0)
            ahead = RESOURCES * constants.slo_weight + constants.use_weight * memory_use - cost
            if ahead + constants.use_weight * min(rho, 1.0) <= best:
                continue
            preserved, use = expected_service(
                constants, app, row, load, margins.latency, replicas, cores
            )
            value = RESOURCES * constants.slo_weight * preserved + constants.use_weight * use
            if value + constants.use_weight * memory_use - cost <= best:
                continue
            mib, memory, paid = _choose_memory(
                constants, app, load, margins, replicas, cores, now[MEMORY]
            )
            if value + memory - paid - cost > best:
                best, reward = value + memory - paid - cost, value + memory
                plan[CPU], plan[MEMORY], plan[REPLICAS] = cores, mib, replicas
    return reward


@njit_internal
def eviction_cost(constants: SimConstants, size: float, now: float) -> float:
    """What another size costs where pods are not resized in place."""
    if constants.in_place or abs(size - now) <= constants.tolerance * now:
        return 0.0
    return _EVICTION


@njit_internal
def _choose_memory(
    constants: SimConstants,
    app: Floats,
    load: Forecast,
    margins: Margins,
    replicas: float,
    cores: float,
    now_mib: float,
) -> tuple[float, float, float]:
    """The limit that gains most; its part of the reward, less kills; and what restarts cost."""
    low, high = constants.low[MEMORY], constants.high[MEMORY]
    mean = mean_memory(constants, app, load, replicas, cores)
    best_mib, best, best_paid = now_mib, -math.inf, 0.0
    for place in range(len(_LEVELS) + 2):
        if place == 0:
            mib = now_mib
        elif place == 1:
            mib = full_memory(constants, app)
        else:
            level = _LEVELS[place - 2]
            mib = memory_of_level(constants, app, load, replicas, cores, level)
        mib = min(max(mib, low), high)
        paid = margins.restart if mib < now_mib else 0.0
        paid += eviction_cost(constants, mib, now_mib)
        found = constants.use_weight * min(mean / mib, 1.0)
        if found - paid <= best - best_paid:
            continue
        chance = oom_probability(constants, app, load, replicas, cores, mib)
        found -= margins.oom * STEP_INTERVALS * chance
        if found - paid > best - best_paid:
            best_mib, best, best_paid = mib, found, paid
    return best_mib, best, best_paid
