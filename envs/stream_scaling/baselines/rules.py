"""Rules that scale a job by its metrics, compiled.

A rule writes the parallelism it recommends for every task, from means over its window. What is
common to all of them: the interval of their decisions, and none until `settle_min` after a restart.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from loadmaster.envs.compiled import Ints, njit_internal
from loadmaster.envs.stream_scaling.baselines import (
    CATCH_UP,
    DHALION,
    DOWN_MIN,
    DS2,
    FLINK,
    HPA,
    INTERVAL,
    LEVEL,
    LOW,
    RANDOM,
    RESTART,
    SETTLE,
    STATIC,
    TARGET,
    THRESHOLD,
    TOLERANCE,
    WINDOW,
)
from loadmaster.envs.stream_scaling.noise import uniform
from loadmaster.envs.stream_scaling.state import (
    BLOCKED,
    BUFFER_USE,
    BUSY,
    DOWN_FOR,
    IN_RATE,
    MINUTE,
    OUT_RATE,
    PENDING,
    RESTARTED_AT,
    Floats,
    JobTables,
    SimConstants,
    SimState,
)

REMEMBERED = 64  # recommendations
_LEAST_BUSY = 0.005  # below it a true rate is not known
_MOST_BLOCKED = 0.9
_LEAST_FACTOR = 0.4  # Flink's: a task keeps at least this share of its instances
_LAG_MIN = 5.0  # with a larger lag Flink's rule only adds instances
_HPA_STEP = 4  # instances that HPA may always add

Parameters = tuple[float, ...]


class RuleState(NamedTuple):
    """Work tables of a rule for N tasks."""

    recent: Ints  # (N, REMEMBERED) recommendations, a ring buffer
    minutes: Ints  # (REMEMBERED,) when they were made
    made: Ints  # (1,) how many
    rate: Floats  # (N,) records a minute that a task should process
    fixed: Ints  # (N,) instances of the rule `static`; 0: by its parameters


def new_rule_state(tasks: int, plan: Sequence[int] = ()) -> RuleState:
    return RuleState(
        np.zeros((tasks, REMEMBERED), np.int64),
        np.full(REMEMBERED, -1, np.int64),
        np.zeros(1, np.int64),
        np.zeros(tasks),
        np.array(plan or np.zeros(tasks), np.int64),
    )


@njit_internal
def recommend(
    rule: int,
    parameters: Parameters,
    job: JobTables,
    constants: SimConstants,
    state: SimState,
    memory: RuleState,
    plan: Ints,
) -> bool:
    """Write the plan of a rule; False if it does not decide in this minute."""
    minute, since = state.clock[MINUTE], state.clock[RESTARTED_AT]
    settled = since < 0 or minute - since >= parameters[SETTLE] + state.times[DOWN_FOR]
    for task in range(len(plan)):
        plan[task] = state.parallelism[task]
    first = memory.made[0] == 0
    if not first and minute % int(parameters[INTERVAL]) != 0:
        return False
    if not settled:
        return False
    if rule == STATIC:
        _static(parameters, job, constants, memory.fixed, plan)
    elif rule == RANDOM:
        for task in range(len(plan)):
            drawn = uniform(constants.key + 2, minute * len(plan) + task)
            plan[task] = 1 + int(drawn * job.cap[task])
    elif rule == THRESHOLD:
        _threshold(parameters, state, plan)
    elif rule == HPA:
        _hpa(parameters, state, plan)
    elif rule == DHALION:
        _dhalion(parameters, job, state, plan)
    elif rule == DS2:
        _target_rates(parameters, job, state, memory.rate, False)
        _ds2(parameters, state, memory.rate, plan)
    elif rule == FLINK:
        _target_rates(parameters, job, state, memory.rate, True)
        _flink(parameters, job, state, memory.rate, plan)
    _remember(memory, minute, plan)
    if parameters[DOWN_MIN] > 0:
        _stabilise(parameters, state, memory, plan)
    return True


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
def _remember(memory: RuleState, minute: int, plan: Ints) -> None:
    place = memory.made[0] % REMEMBERED
    memory.minutes[place] = minute
    for task in range(len(plan)):
        memory.recent[task, place] = plan[task]
    memory.made[0] += 1


@njit_internal
def _stabilise(parameters: Parameters, state: SimState, memory: RuleState, plan: Ints) -> None:
    """Fewer instances only if all recommendations of the last `down_min` were lower."""
    for task in range(len(plan)):
        if plan[task] >= state.parallelism[task]:
            continue
        highest = plan[task]
        for place in range(min(memory.made[0], REMEMBERED)):
            if memory.minutes[place] > state.clock[MINUTE] - parameters[DOWN_MIN]:
                highest = max(highest, memory.recent[task, place])
        plan[task] = min(highest, state.parallelism[task])


@njit_internal
def _static(
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
def _threshold(parameters: Parameters, state: SimState, plan: Ints) -> None:
    for task in range(len(plan)):
        count = state.parallelism[task]
        busy = mean_metric(state, task, BUSY, parameters[WINDOW])
        if busy > parameters[TARGET]:
            plan[task] = count + 1
        elif count > 1 and busy * count / (count - 1) < parameters[LOW]:
            plan[task] = count - 1


@njit_internal
def _hpa(parameters: Parameters, state: SimState, plan: Ints) -> None:
    """ceil(p m / target), within the tolerance p; up by 4 or 100%, whichever is more."""
    for task in range(len(plan)):
        count = state.parallelism[task]
        ratio = mean_metric(state, task, BUSY, parameters[WINDOW]) / parameters[TARGET]
        if abs(1.0 - ratio) > parameters[TOLERANCE]:
            desired = math.ceil(count * ratio - 1e-9)
            plan[task] = min(desired, count + max(_HPA_STEP, count))


@njit_internal
def _dhalion(parameters: Parameters, job: JobTables, state: SimState, plan: Ints) -> None:
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
def _target_rates(
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
def _ds2(parameters: Parameters, state: SimState, rate: Floats, plan: Ints) -> None:
    for task in range(len(plan)):
        count = state.parallelism[task]
        single = _true_rate(state, task, parameters[WINDOW]) / count
        if single > 0:
            plan[task] = math.ceil(rate[task] / (single * parameters[TARGET]) - 1e-9)


@njit_internal
def _flink(
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
