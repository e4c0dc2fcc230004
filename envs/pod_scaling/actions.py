"""Actions: CPU limit, memory limit and number of replicas, absolute or as changes."""

import math
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, njit_internal
from loadmaster.envs.pod_scaling.settings import PodScalingSettings
from loadmaster.envs.pod_scaling.state import (
    CPU,
    MEMORY,
    PLAN_COLUMNS,
    REPLICAS,
    SETTLED,
    SimConstants,
    SimState,
)

# Factors of a discrete action; the middle one holds. Replicas change by one or more.
CHANGES = (0.5, 0.8, 1.0, 1.25, 2.0)
_HOLD = CHANGES.index(1.0)


def action_space(settings: PodScalingSettings) -> spaces.Box | spaces.MultiDiscrete:
    """CPU, memory, replicas: each from -1 to 1, or a place in CHANGES."""
    if settings.actions == "discrete":
        return spaces.MultiDiscrete([len(CHANGES)] * PLAN_COLUMNS)
    return spaces.Box(-1.0, 1.0, (PLAN_COLUMNS,), np.float32)


@compiled
def apply_action(constants: SimConstants, state: SimState, action: NDArray[np.float32]) -> bool:
    """Change the plan as the action says; whether it is legal, which one with NaN is not.

    A continuous action is a place between the bounds, on a logarithmic scale: one replica more of
    two matters as much as ten of twenty.
    """
    for value in action:
        if value != value:
            return False
    if constants.discrete:
        for value in action:
            if not 0 <= value < len(CHANGES):
                return False
        plan = state.plan
        replicas = plan[REPLICAS] * CHANGES[int(action[REPLICAS])]
        # Away from the present number.
        replicas = math.floor(replicas) if int(action[REPLICAS]) < _HOLD else math.ceil(replicas)
        cores = plan[CPU] * CHANGES[int(action[CPU])]
        mib = plan[MEMORY] * CHANGES[int(action[MEMORY])]
        set_plan(constants, state, cores, mib, replicas)
    else:
        set_plan(constants, state, *plan_of_action(constants, action))
    return True


@compiled
def plan_of_action(
    constants: SimConstants, action: NDArray[np.float32]
) -> tuple[float, float, float]:
    """Cores, MiB and replicas of a continuous action: places between the bounds."""
    low, high = constants.low, constants.high
    cores = low[CPU] * (high[CPU] / low[CPU]) ** _share(action[CPU])
    mib = low[MEMORY] * (high[MEMORY] / low[MEMORY]) ** _share(action[MEMORY])
    replicas = low[REPLICAS] * (high[REPLICAS] / low[REPLICAS]) ** _share(action[REPLICAS])
    return cores, mib, math.floor(replicas + 0.5)


@njit_internal
def _share(value: float) -> float:
    """From -1 to 1, or beyond, to 0 to 1."""
    return min(max(0.5 * (value + 1.0), 0.0), 1.0)


@njit_internal
def set_plan(
    constants: SimConstants, state: SimState, cores: float, mib: float, replicas: float
) -> None:
    """Change the plan within the bounds; a size that differs by less than the tolerance stays."""
    plan, low, high = state.plan, constants.low, constants.high
    replicas = min(max(replicas, low[REPLICAS]), high[REPLICAS])
    cores = min(max(cores, low[CPU]), high[CPU])
    mib = min(max(mib, low[MEMORY]), high[MEMORY])
    if abs(cores - plan[CPU]) <= constants.tolerance * plan[CPU]:
        cores = plan[CPU]
    if abs(mib - plan[MEMORY]) <= constants.tolerance * plan[MEMORY]:
        mib = plan[MEMORY]
    if replicas != plan[REPLICAS] or cores != plan[CPU] or mib != plan[MEMORY]:
        plan[REPLICAS], plan[CPU], plan[MEMORY] = replicas, cores, mib
        state.clock[SETTLED] = 0


def sample_legal_action(observation: Any, rng: np.random.Generator) -> NDArray[np.float32]:
    """Any continuous action is legal; all of them are drawn alike."""
    return rng.uniform(-1, 1, PLAN_COLUMNS).astype(np.float32)
