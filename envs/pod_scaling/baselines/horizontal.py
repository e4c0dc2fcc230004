"""Kubernetes' horizontal pod autoscaler, compiled.

desired = ceil(pods * use / target), unchanged where the ratio is within the tolerance of 1. Pods
that are not ready count 0 where the rest asks for more; pods without metrics count 0 there, and
their whole request where it asks for fewer. If that turns the direction, nothing changes. Fewer
pods only by the highest recommendation of the last minutes, more by at most 4 or 100%.
"""

import math

from loadmaster.envs.compiled import njit_internal
from loadmaster.envs.pod_scaling.baselines import DOWN_MIN, TARGET, TOLERANCE
from loadmaster.envs.pod_scaling.baselines.memory import REMEMBERED, RuleState
from loadmaster.envs.pod_scaling.observation import newest_report
from loadmaster.envs.pod_scaling.settings import INTERVAL_S
from loadmaster.envs.pod_scaling.state import (
    CPU,
    END_PODS,
    NOW,
    PODS,
    R_READY,
    R_SEEN,
    R_USED_CORES,
    REPLICAS,
    SimConstants,
    SimState,
)

Parameters = tuple[float, ...]

_STEP = 4  # pods that may always be added at once
_SLACK = 1e-9


@njit_internal
def scaled_replicas(
    parameters: Parameters,
    constants: SimConstants,
    state: SimState,
    memory: RuleState,
    on_usage: bool,
) -> float:
    """The replicas of the rule at this sync, after stabilisation and limits.

    With `on_usage` the target is a number of cores of a pod of the first plan, so that it does not
    follow the pods' size.
    """
    current = state.plan[REPLICAS]
    wanted = float(_desired(parameters, constants, state, memory, on_usage))
    now, made = state.clock[NOW], memory.made[0]
    memory.recent[made % REMEMBERED], memory.times[made % REMEMBERED] = wanted, now
    memory.made[0] = made + 1
    if wanted < current:
        for place in range(min(made + 1, REMEMBERED)):
            if (now - memory.times[place]) * INTERVAL_S < 60 * parameters[DOWN_MIN]:
                wanted = max(wanted, memory.recent[place])
        return min(wanted, current)
    return min(wanted, max(current + _STEP, 2 * current))


@njit_internal
def _desired(
    parameters: Parameters,
    constants: SimConstants,
    state: SimState,
    memory: RuleState,
    on_usage: bool,
) -> int:
    current = int(state.plan[REPLICAS])
    report = state.reports[newest_report(state)]
    pods = state.clock[PODS]
    ready = min(state.totals[END_PODS], pods)
    seen = report[R_SEEN] * ready
    if seen <= 0 or report[R_READY] <= 0:
        return current
    size = memory.base[CPU] if on_usage else state.plan[CPU]
    request = constants.request_share * size
    use = report[R_USED_CORES] / report[R_READY] / request
    ratio = use / parameters[TARGET]
    unready, missing = pods - ready, ready - seen
    if unready <= 0 and missing <= 0:
        if abs(1.0 - ratio) <= parameters[TOLERANCE]:
            return current
        return math.ceil(ratio * ready - _SLACK)
    total, count = use * seen, seen
    if ratio > 1.0:
        count += unready + missing
    else:
        total += missing * max(1.0, parameters[TARGET])
        count += missing
    changed = total / count / parameters[TARGET]
    if abs(1.0 - changed) <= parameters[TOLERANCE] or (changed > 1.0) != (ratio > 1.0):
        return current
    wanted = math.ceil(changed * count - _SLACK)
    if (changed < 1.0 and wanted > current) or (changed > 1.0 and wanted < current):
        return current
    return wanted
