"""Actions: whether to act, and a change of every task's parallelism."""

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, njit_internal
from loadmaster.envs.stream_scaling.restart import rescale
from loadmaster.envs.stream_scaling.state import Ints, JobTables, SimConstants, SimState

ACT, HOLD = 1.0, -1.0  # first value of an action


def action_space(tasks: int) -> spaces.Box:
    """First whether to act (above 0), then the change of each task."""
    return spaces.Box(-1.0, 1.0, (1 + tasks,), np.float32)


@compiled
def apply_action(
    job: JobTables,
    constants: SimConstants,
    state: SimState,
    action: NDArray[np.float32],
    max_factor: float,
    plan: Ints,
) -> bool:
    """Rescale as the action says; returns whether it is legal, which one with NaN is not.

    With a `max_factor` of 0 the published rule applies, which adds a share of the parallelism.
    `plan` is overwritten.
    """
    legal = write_plan(state.parallelism, action, max_factor, plan)
    if action[0] > 0 or constants.published:
        rescale(job, constants, state, plan)
    return legal


@njit_internal
def write_plan(
    parallelism: Ints, action: NDArray[np.float32], max_factor: float, plan: Ints
) -> bool:
    """Write the instances that an action asks for, before any limit; returns whether it is legal.

    `plan` is that of `parallelism` if the action is not legal, or is not to act.
    """
    legal = True
    for value in action:
        legal = legal and value == value
    for task in range(len(plan)):
        change, count = min(max(action[1 + task], -1.0), 1.0), parallelism[task]
        if not legal or not action[0] > 0:
            plan[task] = count
        elif max_factor > 0:
            plan[task] = int(np.round(count * max_factor**change))
        else:
            plan[task] = count + int(change * count)
    return legal


def sample_legal_action(observation: Any, rng: np.random.Generator) -> NDArray[np.float32]:
    """Hold nine times in ten, as any change restarts the job; else change all tasks."""
    action = rng.uniform(-1, 1, 1 + len(observation["tasks"])).astype(np.float32)
    action[0] = 1.0 if rng.random() < 0.1 else -1.0
    return action
