"""Baseline rules, compiled: when each decides, and which plan it sets.

Horizontal rules decide every 15 seconds, as Kubernetes does, vertical ones once in a control step.
"""

import math

from loadmaster.envs.compiled import njit_internal, uniform
from loadmaster.envs.pod_scaling.actions import set_plan
from loadmaster.envs.pod_scaling.baselines import (
    CPU_FACTOR,
    HPA,
    HPA_VPA,
    MEMORY_FACTOR,
    MPA,
    MPA_USAGE,
    PEAK,
    RANDOM,
    REPLICAS_FACTOR,
    STATIC,
    VPA,
)
from loadmaster.envs.pod_scaling.baselines.horizontal import Parameters, scaled_replicas
from loadmaster.envs.pod_scaling.baselines.memory import RuleState
from loadmaster.envs.pod_scaling.baselines.vertical import (
    add_samples,
    vertical_limits,
    window_limits,
)
from loadmaster.envs.pod_scaling.settings import STEP_INTERVALS, WARM_UP_STEPS
from loadmaster.envs.pod_scaling.state import (
    CPU,
    KEY,
    MEMORY,
    NOW,
    REPLICAS,
    SimConstants,
    SimState,
)

_RANDOM_PLANS = 3  # added to KEY: a purpose of random numbers


@njit_internal
def recommend(
    rule: int,
    parameters: Parameters,
    constants: SimConstants,
    state: SimState,
    memory: RuleState,
) -> None:
    """Set the plan of a rule at the begin of an interval."""
    now, plan = state.clock[NOW], state.plan
    deciding = now % STEP_INTERVALS == 0
    if now == WARM_UP_STEPS * STEP_INTERVALS and rule != RANDOM:
        _set_first_plan(parameters, constants, state, memory)
    if rule == STATIC:
        return
    if rule == RANDOM:
        if deciding:
            _set_random_plan(constants, state)
        return
    cores, mib, replicas = plan[CPU], plan[MEMORY], plan[REPLICAS]
    alternating = rule in (MPA, MPA_USAGE)
    vertical_turn = not alternating or now // STEP_INTERVALS % 2 == 0
    if deciding and (alternating or rule in (VPA, HPA_VPA)):
        add_samples(parameters, state, memory)
        if vertical_turn:
            cores, mib = vertical_limits(parameters, state, memory, rule != HPA_VPA)
    if deciding and rule == PEAK:
        cores, mib = window_limits(parameters, state)
    if rule in (HPA, HPA_VPA) or (alternating and not vertical_turn):
        replicas = scaled_replicas(parameters, constants, state, memory, rule == MPA_USAGE)
    set_plan(constants, state, cores, mib, replicas)


@njit_internal
def _set_first_plan(
    parameters: Parameters, constants: SimConstants, state: SimState, memory: RuleState
) -> None:
    """The factors of the first plan, also the base of a target in cores."""
    base = memory.base
    base[CPU] *= parameters[CPU_FACTOR]
    base[MEMORY] *= parameters[MEMORY_FACTOR]
    replicas = math.ceil(base[REPLICAS] * parameters[REPLICAS_FACTOR] - 1e-9)
    set_plan(constants, state, base[CPU], base[MEMORY], replicas)


@njit_internal
def _set_random_plan(constants: SimConstants, state: SimState) -> None:
    low, high, first = constants.low, constants.high, 3 * state.clock[NOW]
    key = state.clock[KEY] + _RANDOM_PLANS
    cores = low[CPU] * (high[CPU] / low[CPU]) ** uniform(key, first)
    mib = low[MEMORY] * (high[MEMORY] / low[MEMORY]) ** uniform(key, first + 1)
    span = high[REPLICAS] - low[REPLICAS] + 1.0
    set_plan(constants, state, cores, mib, low[REPLICAS] + int(span * uniform(key, first + 2)))
