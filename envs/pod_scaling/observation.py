"""Observations: the state of the published agent, from metrics that are 15 to 60 seconds old.

The published state has the limits of CPU and memory, the use of CPU, memory, disk and network, the
SLO preservation and the change of the load. Replicas, which are decided too, the load itself, the
age of the metrics, pods that are not ready and restarts are added. So is the logarithm of
SLO / p99: the SLO preservation does not say how far below the SLO a p99 is.
"""

import math
from typing import NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, njit_internal
from loadmaster.envs.pod_scaling.settings import STEP_INTERVALS, STEP_S
from loadmaster.envs.pod_scaling.state import (
    CPU,
    MEMORY,
    NOW,
    P99_S,
    PRESERVED,
    R_DISK_MB_S,
    R_LIMIT_CORES,
    R_LIMIT_MIB,
    R_NETWORK_MB_S,
    R_PODS,
    R_READY,
    R_SEEN,
    R_USED_CORES,
    R_USED_MIB,
    REPLICAS,
    S_ARRIVED,
    S_RESTARTS,
    SLO,
    SimConstants,
    SimState,
)

STATE_COLUMNS = (
    "cpu limit", "memory limit", "replicas", "ready", "cpu use", "memory use", "disk use",
    "network use", "slo preservation", "load", "load change", "restarts", "age of metrics",
    "slo slack",
)  # fmt: skip
DISK_MB_S, NETWORK_MB_S = 100.0, 125.0  # of a pod that is fully used
LOAD_UNIT = 6.0  # of the logarithm of requests a second
MOST_CHANGE = 4.0  # of the logarithms of the load's ratio, and of SLO / p99
_MOST = 1e3  # of any column


class Observation(NamedTuple):
    state: NDArray[np.float32]  # (STATE_COLUMNS,)


def blank_observation() -> Observation:
    return Observation(np.zeros(len(STATE_COLUMNS), np.float32))


def observation_space() -> spaces.Dict:
    shape = (len(STATE_COLUMNS),)
    return spaces.Dict({"state": spaces.Box(-_MOST, _MOST, shape, np.float32)})


@njit_internal
def newest_report(state: SimState) -> int:
    """The interval of the newest report that has arrived and is not missing for all pods."""
    now = state.clock[NOW]
    found = max(now - state.delays[min(now, len(state.delays) - 1)], 0)
    while found > 0 and state.reports[found, R_SEEN] <= 0:
        found -= 1
    return found


@compiled
def observe(constants: SimConstants, state: SimState, view: Observation) -> None:
    """Write the observation at the end of a control step."""
    row, low, high, plan = view.state, constants.low, constants.high, state.plan
    place = newest_report(state)
    report, now = state.reports[place], state.clock[NOW]
    step = now // STEP_INTERVALS - 1
    last, before = state.outcome[step], state.outcome[max(step - 1, 0)]
    row[0] = _position(plan[CPU], low[CPU], high[CPU])
    row[1] = _position(plan[MEMORY], low[MEMORY], high[MEMORY])
    row[2] = _position(plan[REPLICAS], low[REPLICAS], high[REPLICAS])
    row[3] = report[R_READY] / max(report[R_PODS], 1.0)
    row[4] = report[R_USED_CORES] / max(report[R_LIMIT_CORES], 1e-9)
    row[5] = report[R_USED_MIB] / max(report[R_LIMIT_MIB], 1e-9)
    pods = max(report[R_READY], 1.0)
    row[6] = min(report[R_DISK_MB_S] / (DISK_MB_S * pods), 10.0)
    row[7] = min(report[R_NETWORK_MB_S] / (NETWORK_MB_S * pods), 10.0)
    row[8] = last[PRESERVED]
    row[9] = math.log1p(last[S_ARRIVED] / STEP_S) / LOAD_UNIT
    change = math.log((last[S_ARRIVED] + 1.0) / (before[S_ARRIVED] + 1.0))
    row[10] = min(max(change, -MOST_CHANGE), MOST_CHANGE)
    row[11] = last[S_RESTARTS] / max(plan[REPLICAS], 1.0)
    row[12] = (now - place) / STEP_INTERVALS
    slack = math.log(last[SLO] / last[P99_S]) if last[P99_S] > 0 else MOST_CHANGE
    row[13] = min(max(slack, -MOST_CHANGE), MOST_CHANGE)


@njit_internal
def _position(value: float, low: float, high: float) -> float:
    """Place between bounds, logarithmic, from 0 to 1."""
    return math.log(value / low) / math.log(high / low) if high > low else 0.0
