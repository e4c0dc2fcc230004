"""Costs and rewards of an episode.

Objective "jct": the cost is the integral over time of the jobs in the system, which ends as the
sum of job completion times. Objective "makespan": the cost is the time passed. A step's reward is
minus the cost (s) since the previous step.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import njit_internal
from loadmaster.envs.dag_scheduling.state import ACTIVE, JOB_MS, NOW

COST_COLUMN = {"jct": JOB_MS, "makespan": NOW}  # objective -> its column of `SimState.clock`


@njit_internal
def advance_clock(clock: NDArray[np.int64], when_ms: int) -> None:
    """Move time on to `when_ms`; every job in the system adds that much to JOB_MS."""
    clock[JOB_MS] += clock[ACTIVE] * (when_ms - clock[NOW])
    clock[NOW] = when_ms


class StepRewards:
    """Rewards of one or more environments from the costs in their clocks."""

    def __init__(self, objective: str, environments: int = 1) -> None:
        self._column = COST_COLUMN[objective]
        self._cost_ms = np.zeros(environments, np.int64)  # that rewards have accounted for

    def reset(self) -> None:
        self._cost_ms[:] = 0

    def step(
        self, clocks: NDArray[np.int64], acted: NDArray[np.bool_] | bool = True
    ) -> NDArray[np.float64]:
        """(environments,) Reward of each step, from `clocks` (environments, CLOCK_SIZE).

        An environment that did not act began an episode and gets 0; the cost before its first
        decision joins that decision's reward.
        """
        cost_ms = clocks[:, self._column]
        rewards = np.where(acted, self._cost_ms - cost_ms, 0) / 1000
        self._cost_ms = np.where(acted, cost_ms, 0)
        return rewards
