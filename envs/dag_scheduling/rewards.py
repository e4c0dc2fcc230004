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


def step_reward(before_ms: int, after_ms: int) -> float:
    """Return the reward (s) of a step from the costs before and after it."""
    return (before_ms - after_ms) / 1000


def step_rewards(
    before_ms: NDArray[np.int64], after_ms: NDArray[np.int64], acted: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """(environments,) Return the rewards (s) of a vector's step.

    An environment that did not act began an episode and gets 0; the cost before its first decision
    joins that decision's reward.
    """
    rewards: NDArray[np.float64] = np.where(acted, before_ms - after_ms, 0) / 1000
    return rewards
