"""Plans of the baseline rules by the metrics of a job, compiled.

A formula writes the parallelism it recommends for every task, from means over its window.
"""

import math

from loadmaster.envs.compiled import Ints, njit_internal
from loadmaster.envs.stream_scaling.baselines import (
    CATCH_UP,
    LEVEL,
    LOW,
    RESTART,
    TARGET,
    TOLERANCE,
    WINDOW,
)
from loadmaster.envs.stream_scaling.state import (
    BLOCKED,
    BUFFER_USE,
    BUSY,
    IN_RATE,
    MINUTE,
    OUT_RATE,
    PENDING,
    Floats,
    JobTables,
    SimConstants,
    SimState,
)

_LEAST_BUSY = 0.005  # below it a true rate is not known
_MOST_BLOCKED = 0.9
_LEAST_FACTOR = 0.4  # Flink's: a task keeps at least this share of its instances
_LAG_MIN = 5.0  # with a larger lag Flink's rule only adds instances
_HPA_STEP = 4  # instances that HPA may always add

Parameters = tuple[float, ...]


@njit_internal
def mean_metric(state: SimState, task: int, column: int, window: float) -> float:
    """Mean over the last minutes, without those that are missing."""
    total, count, ring = 0.0, 0, len(state.metrics)
    now = state.clock[MINUTE]
    for back in range(1, min(int(window), now, ring) + 1):
        value = state.metrics[(now - back) % ring, task, column]
        if value == value:
            total += value
            count += 1
    return total / count if count else 0.0


@njit_internal
def static(
    parameters: Parameters, job: JobTables, constants: SimConstants, fixed: Ints, plan: Ints
) -> None:
    """The fixed plan, or instances that are busy for a share `target` at a load of `level`."""
    for task in range(len(plan)):
        if fixed[task] > 0:
            plan[task] = fixed[task]
            continue
        need = parameters[LEVEL] * job.nominal[task] * job.service_min[task] / parameters[TARGET]
        # Capacity grows less than linearly: p / (1 + contention (p - 1)) = need.
        crowded = need * (1.0 - constants.contention) / max(1.0 - need * constants.contention, 1e-3)
        plan[task] = math.ceil(crowded - 1e-9)


@njit_internal
def threshold(parameters: Parameters, state: SimState, plan: Ints) -> None:
    for task in range(len(plan)):
        count = state.parallelism[task]
        busy = mean_metric(state, task, BUSY, parameters[WINDOW])
        if busy > parameters[TARGET]:
            plan[task] = count + 1
        elif count > 1 and busy * count / (count - 1) < parameters[LOW]:
            plan[task] = count - 1


@njit_internal
def hpa(parameters: Parameters, state: SimState, plan: Ints) -> None:
    """ceil(p m / target), within the tolerance p; up by 4 or 100%, whichever is more."""
    for task in range(len(plan)):
        count = state.parallelism[task]
        ratio = mean_metric(state, task, BUSY, parameters[WINDOW]) / parameters[TARGET]
        if abs(1.0 - ratio) > parameters[TOLERANCE]:
            desired = math.ceil(count * ratio - 1e-9)
            plan[task] = min(desired, count + max(_HPA_STEP, count))


@njit_internal
def dhalion(parameters: Parameters, job: JobTables, state: SimState, plan: Ints) -> None:
    """More instances where a task holds its parents up, fewer where nothing is held up.

    A task with parents blocked for a share b of the time, that is not blocked itself, gets
    1 / (1 - b) times its instances (Floratou et al. 2017).
    """
    window, held_up = parameters[WINDOW], False
    for task in range(len(plan)):
        blocked = 0.0
        for edge in range(job.parent_at[task], job.parent_at[task + 1]):
            blocked = max(blocked, mean_metric(state, job.parent[edge], BLOCKED, window))
        if job.source[task] >= 0:  # a source is held up by nothing but itself
            rate = mean_metric(state, task, OUT_RATE, window)
            lag = mean_metric(state, task, PENDING, 1.0)
            busy = mean_metric(state, task, BUSY, window)
            if busy > 1 - parameters[TARGET]:
                blocked = min(lag / max(rate * window, 1.0), 1.0)
        own = mean_metric(state, task, BLOCKED, window)
        if blocked > parameters[TARGET] and own <= parameters[TARGET]:
            held_up = True
            share = min(blocked, _MOST_BLOCKED)
            plan[task] = math.ceil(state.parallelism[task] * (1.0 + share / (1.0 - share)))
    if held_up:
        return
    for task in range(len(plan)):
        busy = mean_metric(state, task, BUSY, window)
        empty = mean_metric(state, task, BUFFER_USE, window) < 0.1
        if empty and busy < parameters[LOW]:
            plan[task] = max(int(0.8 * state.parallelism[task]), 1)


@njit_internal
def target_rates(
    parameters: Parameters, job: JobTables, state: SimState, rate: Floats, with_lag: bool
) -> None:
    """Records a minute that each task should process: arrivals at the sources, and what follows.

    `with_lag` estimates the arrivals by what the sources read and the change of their lag.
    """
    window = parameters[WINDOW]
    now, ring = state.clock[MINUTE], len(state.metrics)
    for task in range(len(rate)):
        rate[task] = 0.0
        if job.source[task] >= 0:
            rate[task] = mean_metric(state, task, OUT_RATE if with_lag else IN_RATE, window)
            if with_lag:
                back = min(int(window), now, ring)
                late = state.metrics[(now - 1) % ring, task, PENDING]
                early = state.metrics[(now - back) % ring, task, PENDING]
                if back > 1 and late == late and early == early:
                    rate[task] = max(rate[task] + (late - early) / (back - 1), 0.0)
        for edge in range(job.parent_at[task], job.parent_at[task + 1]):
            rate[task] += rate[job.parent[edge]] * job.ratio[edge]


@njit_internal
def _true_rate(state: SimState, task: int, window: float) -> float:
    """Records a minute of all instances if they were always busy."""
    busy = mean_metric(state, task, BUSY, window)
    return mean_metric(state, task, OUT_RATE, window) / max(busy, _LEAST_BUSY)


@njit_internal
def ds2(parameters: Parameters, state: SimState, rate: Floats, plan: Ints) -> None:
    for task in range(len(plan)):
        count = state.parallelism[task]
        single = _true_rate(state, task, parameters[WINDOW]) / count
        if single > 0:
            plan[task] = math.ceil(rate[task] / (single * parameters[TARGET]) - 1e-9)


@njit_internal
def flink(
    parameters: Parameters, job: JobTables, state: SimState, rate: Floats, plan: Ints
) -> None:
    """The operator's rule: capacity for the rate, for the lag and for what a restart leaves."""
    window, catch_up = parameters[WINDOW], parameters[CATCH_UP]
    lag, arrivals = 0.0, 0.0
    for task in range(len(plan)):
        lag += mean_metric(state, task, PENDING, 1.0)
        if job.source[task] >= 0:
            arrivals += rate[task]
    behind = lag > _LAG_MIN * max(arrivals, 1.0)
    for task in range(len(plan)):
        count, true_rate = state.parallelism[task], _true_rate(state, task, window)
        if true_rate <= 0:
            continue
        use = rate[task] / true_rate
        inside = abs(use - parameters[TARGET]) <= parameters[TOLERANCE]
        if inside and not (behind and use > parameters[TARGET]):
            continue
        share = rate[task] / max(arrivals, 1e-9)
        capacity = (
            lag * share / catch_up
            + rate[task] * parameters[RESTART] / catch_up
            + rate[task] / parameters[TARGET]
        )
        wanted = math.ceil(max(count * capacity / true_rate, _LEAST_FACTOR * count) - 1e-9)
        if behind:
            wanted = max(wanted, count)
        plan[task] = _aligned(wanted, job.key_groups[task], job.cap[task])


@njit_internal
def _aligned(wanted: int, key_groups: int, most: int) -> int:
    """The first parallelism from `wanted` on at which the largest instance has fewer groups."""
    for count in range(wanted, most + 1):
        if key_groups % count == 0 or key_groups // count < key_groups // max(wanted, 1):
            return count
    return wanted
