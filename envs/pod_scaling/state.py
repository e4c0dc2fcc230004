"""Tables of the simulator: constants, and the state of an episode."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.pod_scaling.applications import Application
from loadmaster.envs.pod_scaling.settings import STEP_INTERVALS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NEVER = np.inf  # time of a pod that waits for a node, and of a node that is not there

# Columns of `SimState.clock`.
NOW, HORIZON, KEY, PODS, SETTLED, RESTARTS, OOMS = range(7)  # NOW and HORIZON in intervals
CLOCK_COLUMNS = 7

# Columns of `SimState.requests`: requests so far, and in the system now.
ARRIVED, SERVED, TIMED_OUT, LOST, QUEUED, RUNNING = range(6)
REQUEST_COLUMNS = 6

# Columns of `SimState.plan`, of actions and of bounds: limits of a pod in cores and MiB.
CPU, MEMORY, REPLICAS = range(3)
PLAN_COLUMNS = 3

# Columns of `SimState.apps`.
CPU_S, IO_S, MEMORY_MIB, REQUEST_MIB, SLO_S, DISK_MB, NETWORK_MB, START_S = range(8)
APP_COLUMNS = 8

# Columns of `SimState.pods`; CPU and MEMORY as above, times in seconds of the episode.
NODE, READY_AT, BACKOFFS = 2, 3, 4
POD_COLUMNS = 5

# Columns of `SimState.nodes`.
NODE_CPU, NODE_MEMORY, NODE_READY_AT, EMPTY_SINCE = range(4)  # the first two are free
NODE_COLUMNS = 4

# Columns of `SimState.totals`: sums over the pods in this interval.
# READY and READY_CORES weigh a pod by its ready part of the interval, END_PODS and END_CORES are
# those at its end; HELD are pods on nodes.
READY, READY_CORES, END_PODS, END_CORES, HELD, HELD_CORES, HELD_MIB, LEAST_MIB, CARRY = range(9)
TOTAL_COLUMNS = 9

# Columns of `SimState.rows`: distribution of the latency in an interval.
(
    BASE_S, SERVICE_S, WORK_S, QUOTA_S, PHASE_S, FREE, LOAD_PLACE, LOAD_PART, CORES_PLACE,
    CORES_PART, WEIGHT, OVER, OF_READY, OF_CORES,
) = range(14)  # fmt: skip
ROW_COLUMNS = 14

# Columns of `SimState.step`: sums over the intervals of the control step.
(
    S_ARRIVED, S_SERVED, S_TIMED_OUT, S_LOST, S_VIOLATED, S_CPU_USE, S_MEMORY_USE, S_PODS, S_CORES,
    S_MIB, S_RESTARTS, S_OOMS,
) = range(12)  # fmt: skip
STEP_COLUMNS = 12

# Columns of `SimState.outcome`: those of a step, then these; uses are means.
P99_S, SLO, PRESERVED, REWARD, WAITING = range(STEP_COLUMNS, STEP_COLUMNS + 5)
OUTCOME_COLUMNS = STEP_COLUMNS + 5

# Columns of `SimState.reports`: what the cluster reports of an interval.
(
    R_PODS, R_READY, R_USED_CORES, R_LIMIT_CORES, R_USED_MIB, R_LIMIT_MIB, R_PEAK_MIB, R_DISK_MB_S,
    R_NETWORK_MB_S, R_REQUESTS, R_OOMS, R_SEEN,
) = range(12)  # fmt: skip
REPORT_COLUMNS = 12

# Columns of `SimState.sums`.
SUM_REWARD, SUM_STEPS = range(2)
SUM_COLUMNS = 2


class SimConstants(NamedTuple):
    """Constants of the simulation; times in seconds, CPU in cores, memory in MiB."""

    low: Floats  # (PLAN_COLUMNS,) bounds
    high: Floats
    quantiles: Floats  # (CORES, LOADS, LEVELS) of quantile_table.py
    levels: Floats
    loads: Floats
    cores: Floats
    request_share: float
    throttling: bool
    two_choices: bool  # a request goes to the less busy of two random pods
    timeout_s: float
    concurrency: float
    in_place: bool
    tolerance: float
    max_unavailable: float
    start_sigma: float
    readiness_s: float
    backoff_s: float
    node_cores: float
    node_mib: float
    min_nodes: int
    node_start_s: float
    slo_weight: float
    use_weight: float
    discrete: bool


class SimState(NamedTuple):
    """An episode of T control steps and I intervals, with at most P pods on K nodes.

    Tables from `arrivals` on are drawn by the seed before the episode, so they are the same under
    every policy; so are the starts of pods and nodes, which depend on KEY, interval and number.
    """

    clock: Ints
    requests: Ints
    plan: Floats
    pods: Floats  # (P, POD_COLUMNS); the first PODS are there
    nodes: Floats  # (K, NODE_COLUMNS)
    totals: Floats
    rows: Floats  # (STEP_INTERVALS, ROW_COLUMNS)
    step: Floats
    sums: Floats
    outcome: Floats  # (T, OUTCOME_COLUMNS)
    reports: Floats  # (I, REPORT_COLUMNS)
    apps: Floats  # (applications, APP_COLUMNS)
    app_of: Ints  # (T,) row of `apps`
    arrivals: Ints  # (I,) requests
    rates: Floats  # (T,) requests a second
    levels: Floats  # (T,) level of the p99 of the step's requests, an order statistic
    phases: Floats  # (T,) 0 to 1: where in a CFS period the requests begin
    peaks: Floats  # (I,) level of the most requests in a pod at once
    delays: Ints  # (I,) age of the newest report, in intervals
    missing: Floats  # (I,) share of the pods without a report


def app_row(application: Application) -> list[float]:
    """Columns of `SimState.apps`."""
    return [
        application.cpu_s, application.io_s, application.memory_mib, application.request_mib,
        application.slo_s, application.disk_mb, application.network_mb, application.start_s,
    ]  # fmt: skip


def new_tables(steps: int, pods: int, nodes: int) -> dict[str, NDArray[np.float64 | np.int64]]:
    """Zeros for the tables that the simulation writes."""
    return {
        "clock": np.zeros(CLOCK_COLUMNS, np.int64),
        "requests": np.zeros(REQUEST_COLUMNS, np.int64),
        "plan": np.zeros(PLAN_COLUMNS),
        "pods": np.zeros((pods, POD_COLUMNS)),
        "nodes": np.zeros((nodes, NODE_COLUMNS)),
        "totals": np.zeros(TOTAL_COLUMNS),
        "rows": np.zeros((STEP_INTERVALS, ROW_COLUMNS)),
        "step": np.zeros(STEP_COLUMNS),
        "sums": np.zeros(SUM_COLUMNS),
        "outcome": np.zeros((steps, OUTCOME_COLUMNS)),
        "reports": np.zeros((steps * STEP_INTERVALS, REPORT_COLUMNS)),
    }
