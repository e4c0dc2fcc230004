"""Actions: (stage row, parallelism limit), resolved to executors committed to a stage."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import Ints, compiled, njit_internal
from loadmaster.envs.dag_scheduling import observation as obs
from loadmaster.envs.dag_scheduling import state as cols
from loadmaster.envs.dag_scheduling.jobs import JobTemplates
from loadmaster.envs.dag_scheduling.observation import Observation
from loadmaster.envs.dag_scheduling.rounds import choose, decline_rest
from loadmaster.envs.dag_scheduling.state import SimState


@compiled
def executors_granted(view: Observation, row: int, limit: int) -> int:
    """Compute min(tasks left, limit - executors of the job, fitting free executors), at least 1.

    Free executors of the job itself do not count against its limit.
    """
    job = view.jobs[view.stage_job[row]]
    below_limit = limit - int(job[obs.MIN_LIMIT]) + 1
    granted = min(int(view.stages[row, obs.UNASSIGNED]), int(view.stages[row, obs.FITTING]))
    return max(min(granted, below_limit), 1)


@compiled
def useful_limits(view: Observation, row: int) -> tuple[int, int]:
    """Return the lowest limit that places an executor, and the lowest that places the most.

    Most rounds have a single executor to place. All limits then have the same effect, and a
    policy that chose among them would learn noise.
    """
    lowest = max(int(view.jobs[view.stage_job[row], obs.MIN_LIMIT]), 1)
    placed = min(int(view.stages[row, obs.UNASSIGNED]), int(view.stages[row, obs.FITTING]))
    return lowest, min(lowest + max(placed, 1) - 1, int(view.cluster[obs.TOTAL_EXECUTORS]))


@njit_internal
def resolve_action(view: Observation, row: int, limit: int) -> tuple[int, int, bool]:
    """Return the legal (row, limit) that is applied, and whether it is the given one.

    An illegal row idles the rest of the round where that is allowed, and otherwise becomes the
    first legal stage at its lowest limit.
    """
    idle = len(view.schedulable) - 1
    if 0 <= row <= idle and view.schedulable[row] == 1:
        return row, limit, True
    if view.schedulable[idle] == 1:
        return idle, limit, False
    row = 0
    while view.schedulable[row] == 0:
        row += 1
    return row, int(view.jobs[view.stage_job[row], obs.MIN_LIMIT]), False


@compiled
def apply_action(
    state: SimState, bank: JobTemplates, view: Observation, rows: Ints, row: int, limit: int
) -> bool:
    """Apply an action to the round just observed; return whether it was legal."""
    row, limit, legal = resolve_action(view, row, limit)
    if row == len(view.schedulable) - 1:
        state.clock[cols.DECISIONS] += 1
        decline_rest(state, bank)
    else:
        choose(state, bank, rows[row], executors_granted(view, row, limit))
    return legal


def sample_legal_action(observation: Mapping[str, NDArray[Any]], rng: np.random.Generator) -> Ints:
    """Sample a legal row uniformly, idling included where it is allowed, and any limit."""
    row = rng.choice(np.flatnonzero(observation["schedulable"]))
    executors = int(observation["cluster"][obs.TOTAL_EXECUTORS])
    return np.array([row, rng.integers(1, executors, endpoint=True)])
