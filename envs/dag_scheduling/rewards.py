"""Costs and rewards of an episode.

Objective "jct": the cost is the integral over time of the jobs in the system, which ends as the
sum of job completion times. Objective "makespan": the cost is the time passed. A step's reward is
minus the cost (s) since the previous step.
"""

from loadmaster.envs.compiled import Ints, njit_internal
from loadmaster.envs.dag_scheduling.state import ACTIVE, JOB_MS, NOW

COST_COLUMN = {"jct": JOB_MS, "makespan": NOW}  # objective -> its column of `SimState.clock`
REWARD_UNIT_MS = 1000  # rewards are in seconds


@njit_internal
def advance_clock(clock: Ints, when_ms: int) -> None:
    """Move time on to `when_ms`; every job in the system adds that much to JOB_MS."""
    clock[JOB_MS] += clock[ACTIVE] * (when_ms - clock[NOW])
    clock[NOW] = when_ms
