"""A decision applied: (stage row, parallelism limit) becomes executors promised to a stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, njit_internal
from loadmaster.envs.dag_scheduling import observation as seen
from loadmaster.envs.dag_scheduling import state as at
from loadmaster.envs.dag_scheduling.jobs import JobTemplates
from loadmaster.envs.dag_scheduling.observation import Observation
from loadmaster.envs.dag_scheduling.rounds import choose, idle_rest
from loadmaster.envs.dag_scheduling.state import SimState


@compiled
def executors_granted(view: Observation, row: int, limit: int) -> int:
    """min(tasks left, limit - executors the job has, free ones that fit), at least 1.

    The free executors of the job itself count as room under its own limit.
    """
    job = view.jobs[view.stage_job[row]]
    room = limit - int(job[seen.MIN_LIMIT]) + 1
    granted = min(int(view.stages[row, seen.UNASSIGNED]), int(view.stages[row, seen.FITTING]))
    return max(min(granted, room), 1)


@compiled
def useful_limits(view: Observation, row: int) -> tuple[int, int]:
    """The lowest limit that places an executor, and the one beyond which no more are granted.

    Most rounds have a single executor to place; there one limit is as good as any other, and a
    policy that had to choose among them all would mostly learn noise.
    """
    lowest = max(int(view.jobs[view.stage_job[row], seen.MIN_LIMIT]), 1)
    placed = min(int(view.stages[row, seen.UNASSIGNED]), int(view.stages[row, seen.FITTING]))
    return lowest, min(lowest + max(placed, 1) - 1, int(view.cluster[seen.TOTAL_EXECUTORS]))


@njit_internal
def resolve_action(view: Observation, row: int, limit: int) -> tuple[int, int, bool]:
    """The decision that is carried out for (row, limit), and whether it is that one.

    A row that may not be chosen never stops the episode: it idles the rest of the round where
    that is allowed, and otherwise stands for the first stage that may be chosen, at its lowest
    limit.
    """
    idle = len(view.schedulable) - 1
    if 0 <= row <= idle and view.schedulable[row] == 1:
        return row, limit, True
    if view.schedulable[idle] == 1:
        return idle, limit, False
    row = 0
    while view.schedulable[row] == 0:
        row += 1
    return row, int(view.jobs[view.stage_job[row], seen.MIN_LIMIT]), False


@compiled
def apply_action(
    state: SimState,
    bank: JobTemplates,
    view: Observation,
    rows: NDArray[np.int64],
    row: int,
    limit: int,
) -> bool:
    """Carry out a decision on the round just observed; whether it was a legal one."""
    row, limit, legal = resolve_action(view, row, limit)
    if row == len(view.schedulable) - 1:
        state.clock[at.DECISIONS] += 1
        idle_rest(state, bank)
    else:
        choose(state, bank, rows[row], executors_granted(view, row, limit))
    return legal


def sample_legal_action(
    observation: Mapping[str, NDArray[Any]], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Any legal row, idling among them where it is allowed, and any limit."""
    row = rng.choice(np.flatnonzero(observation["schedulable"]))
    executors = int(observation["cluster"][seen.TOTAL_EXECUTORS])
    return np.array([row, rng.integers(1, executors, endpoint=True)])
