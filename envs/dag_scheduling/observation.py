"""Observations: padded tables in physical units, and a mask of schedulable stages.

Heuristics, networks and the decision service all use `observe`. Rows are sorted by job in order of
arrival, then by stage; finished stages and finished jobs have no row.
"""

from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from loadmaster.envs.compiled import Ints, compiled, njit_inline
from loadmaster.envs.dag_scheduling import placement
from loadmaster.envs.dag_scheduling import state as cols
from loadmaster.envs.dag_scheduling.jobs import JobTemplates
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.state import NONE, SimState
from loadmaster.envs.errors import InputError

# Columns of `stages`.
UNASSIGNED = 0  # tasks without an executor that runs them, is committed or moving to them
UNSTARTED = 1  # tasks not started
RUNNING = 2  # tasks running now
MEAN_S = 3  # mean task duration, s
CRITICAL_S = 4  # longest path of mean durations from here to the job's end, s
HEIGHT = 5  # edges on the longest path to the job's end
RUNNABLE = 6  # 1: all parents are finished
UNLOCKED = 7  # order in which it became runnable
FITTING = 8  # the round's free executors that could run it
CPU = 9  # what an executor must offer
MEMORY = 10
LONGEST_AHEAD_S = 11  # the longest mean task duration from here to the job's end, s
DEMAND_AHEAD = 12  # the largest CPU + memory demand from here to the job's end
FITTING_TOTAL = 13  # executors of the whole cluster that could run it
STAGE_FEATURES = 14

# Columns of `jobs`.
EXECUTORS = 0  # its own, on their way and committed to it
IS_SOURCE = 1  # 1: the free executors belong to this job
MIN_LIMIT = 2  # the lowest parallelism limit that places an executor
AGE_S = 3  # s since it arrived
WORK_S = 4  # executor-seconds of the whole job
WORK_LEFT_S = 5  # executor-seconds of its tasks not started
UNPLACED = 6  # sum of UNASSIGNED over its stages
JOB_FEATURES = 7

# `cluster`.
JOBS = 0  # rows in use in `jobs`
STAGES = 1  # rows in use in `stages`
EDGES = 2  # rows in use in `edges`
FREE_EXECUTORS = 3  # the round's executors not yet placed
TOTAL_EXECUTORS = 4
MAY_IDLE = 5  # 1: the rest of the round's executors may be left idle
CLUSTER_FEATURES = 6

_HUGE = 1e9  # above any count, time or amount of work

FITS, TOO_MANY_JOBS, TOO_MANY_STAGES, TOO_MANY_EDGES = 0, 1, 2, 3


class Observation(NamedTuple):
    """N stage rows, M job rows, K edge rows; rows not in use are 0."""

    stages: NDArray[np.float32]  # (N, STAGE_FEATURES)
    stage_job: NDArray[np.int32]  # (N,) the row of the stage's job
    schedulable: NDArray[np.int8]  # (N + 1,) 1: may be chosen; the last stands for idling
    jobs: NDArray[np.float32]  # (M, JOB_FEATURES)
    edges: NDArray[np.int32]  # (K, 2) rows of parent and child
    cluster: NDArray[np.float32]  # (CLUSTER_FEATURES,)


def blank_observation(max_stages: int, max_jobs: int, max_edges: int) -> Observation:
    """Allocate an observation with all rows unused."""
    return Observation(
        stages=np.zeros((max_stages, STAGE_FEATURES), np.float32),
        stage_job=np.zeros(max_stages, np.int32),
        schedulable=np.zeros(max_stages + 1, np.int8),
        jobs=np.zeros((max_jobs, JOB_FEATURES), np.float32),
        edges=np.zeros((max_edges, 2), np.int32),
        cluster=np.zeros(CLUSTER_FEATURES, np.float32),
    )


def padded_observation(settings: DagSchedulingSettings) -> Observation:
    """Allocate an observation of the settings' sizes."""
    return blank_observation(settings.max_stages, settings.max_jobs, settings.max_edges)


def observation_space(settings: DagSchedulingSettings) -> spaces.Dict:
    """Build the Gymnasium space: one box per field."""
    bounds = {"schedulable": (0, 1), "stage_job": (0, settings.max_jobs - 1)}
    bounds["edges"] = (0, settings.max_stages - 1)
    boxes: dict[str, spaces.Space[Any]] = {}
    for name, table in padded_observation(settings)._asdict().items():
        low, high = bounds.get(name, (0, _HUGE))
        boxes[name] = spaces.Box(low, high, table.shape, table.dtype.type)
    return spaces.Dict(boxes)


@compiled
def observe(state: SimState, bank: JobTemplates, out: Observation, rows: Ints) -> int:
    """Write the observation into `out` and each row's stage into `rows`; return FITS or TOO_MANY_*.

    Edges are skipped where `out` has no rows for them.
    """
    clock, cluster = state.clock, out.cluster
    used_stages, used_jobs = int(cluster[STAGES]), int(cluster[JOBS])
    if clock[cols.ACTIVE] > len(out.jobs):
        return TOO_MANY_JOBS
    out.schedulable[:used_stages] = 0
    row = int(np.int64(0))  # a literal 0 would compile everything below twice
    for job_row in range(clock[cols.ACTIVE]):
        first_row = row
        row = _observe_stages(state, bank, out, rows, job_row, first_row)
        if row < 0:
            return TOO_MANY_STAGES
        _observe_job(state, bank, out, job_row, first_row, row)
    # Only rows that the last observation used need clearing.
    for unused in range(row, used_stages):
        out.stages[unused] = 0
        out.stage_job[unused] = 0
    for unused in range(clock[cols.ACTIVE], used_jobs):
        out.jobs[unused] = 0
    if len(out.edges) > 0 and not _observe_edges(state, bank, out, rows, row):
        return TOO_MANY_EDGES
    may_idle = (
        clock[cols.PENDING] > 0
        or clock[cols.NEXT_JOB] < len(state.arrivals)
        or (clock[cols.SOURCE] != NONE and state.commit_first[clock[cols.SOURCE]] != NONE)
    )
    out.schedulable[len(out.schedulable) - 1] = may_idle
    cluster[JOBS] = clock[cols.ACTIVE]
    cluster[STAGES] = row
    cluster[FREE_EXECUTORS] = placement.unplaced_executors(state)
    cluster[TOTAL_EXECUTORS] = len(state.executors)
    cluster[MAY_IDLE] = may_idle
    return FITS


@njit_inline
def _observe_stages(
    state: SimState, bank: JobTemplates, out: Observation, rows: Ints, job_row: int, row: int
) -> int:
    """Write the unfinished stages of one job; return the next free row, or -1 if out of rows."""
    slot = state.order[job_row]
    first = slot * state.setup[cols.STRIDE]
    for stage in range(first, first + state.jobs[slot, cols.STAGES]):
        facts = state.stages[stage]
        if facts[cols.FINISHED] == facts[cols.TASKS]:
            continue
        if row == len(out.stages):
            return -1
        profile = facts[cols.PROFILE]
        fitting, fitting_total = 0, 0
        for kind in range(len(state.left)):
            if placement.fits(state, bank, kind, stage):
                fitting += state.left[kind]
                fitting_total += state.amount[kind]
        features = out.stages[row]
        features[UNASSIGNED] = max(placement.unassigned_tasks(state, stage), 0)
        features[UNSTARTED] = facts[cols.TASKS] - facts[cols.STARTED]
        features[RUNNING] = facts[cols.STARTED] - facts[cols.FINISHED]
        features[MEAN_S] = bank.mean_ms[profile] * 1e-3
        features[CRITICAL_S] = bank.critical_ms[profile] * 1e-3
        features[LONGEST_AHEAD_S] = bank.ahead[profile, 0] * 1e-3
        if state.setup[cols.TYPICAL_MS] > 0:
            typical_s = state.setup[cols.TYPICAL_MS] * 1e-3
            features[MEAN_S] = typical_s
            features[CRITICAL_S] = typical_s * (1 + bank.height[profile])
            features[LONGEST_AHEAD_S] = typical_s
        features[HEIGHT] = bank.height[profile]
        features[RUNNABLE] = facts[cols.WAITING] == 0
        features[UNLOCKED] = facts[cols.UNLOCKED]
        features[FITTING] = fitting
        features[CPU] = bank.demand[profile, 0]
        features[MEMORY] = bank.demand[profile, 1]
        features[DEMAND_AHEAD] = bank.ahead[profile, 1]
        features[FITTING_TOTAL] = fitting_total
        out.stage_job[row] = job_row
        out.schedulable[row] = fitting > 0 and placement.schedulable(state, bank, stage)
        rows[row] = stage
        facts[cols.ROW] = row
        row += 1
    return row


@njit_inline
def _observe_job(
    state: SimState,
    bank: JobTemplates,
    out: Observation,
    job_row: int,
    first_row: int,
    end_row: int,
) -> None:
    slot = state.order[job_row]
    job, features = state.jobs[slot], out.jobs[job_row]
    is_source = state.clock[cols.SOURCE_JOB] == slot
    held = job[cols.MEMBERS] + job[cols.INCOMING] + job[cols.COMMITTED_IN]
    work_left, unplaced = np.float32(0.0), np.float32(0.0)
    for row in range(first_row, end_row):
        work_left += out.stages[row, UNSTARTED] * out.stages[row, MEAN_S]
        unplaced += out.stages[row, UNASSIGNED]
    features[EXECUTORS] = held
    features[IS_SOURCE] = is_source
    own_free = placement.unplaced_executors(state) if is_source else 0
    features[MIN_LIMIT] = held + 1 - own_free
    features[AGE_S] = (state.clock[cols.NOW] - job[cols.ARRIVAL]) * 1e-3
    work_ms, typical_ms = bank.work_ms[job[cols.TEMPLATE]], state.setup[cols.TYPICAL_MS]
    if typical_ms > 0:
        work_ms, first = 0.0, bank.first_stage[job[cols.TEMPLATE]]
        for profile in range(first, first + job[cols.STAGES]):
            work_ms += bank.tasks[profile] * typical_ms
    features[WORK_S] = work_ms * 1e-3
    features[WORK_LEFT_S] = work_left
    features[UNPLACED] = unplaced


@njit_inline
def _observe_edges(
    state: SimState, bank: JobTemplates, out: Observation, rows: Ints, stages: int
) -> bool:
    """Write the edges between unfinished stages; return whether they all fit."""
    edge_row = 0
    for row in range(stages):
        stage = rows[row]
        profile = state.stages[stage, cols.PROFILE]
        first = stage - stage % state.setup[cols.STRIDE]
        for edge in range(bank.child_first[profile], bank.child_first[profile + 1]):
            if edge_row == len(out.edges):
                return False
            out.edges[edge_row, 0] = row
            out.edges[edge_row, 1] = state.stages[first + bank.child[edge], cols.ROW]
            edge_row += 1
    for unused in range(edge_row, int(out.cluster[EDGES])):
        out.edges[unused] = 0
    out.cluster[EDGES] = edge_row
    return True


def too_large(why: int, settings: DagSchedulingSettings, now_s: float) -> InputError:
    """Build the error for a state that exceeds the padded observation."""
    name = {TOO_MANY_JOBS: "jobs", TOO_MANY_STAGES: "stages", TOO_MANY_EDGES: "edges"}[why]
    limit = getattr(settings, f"max_{name}")
    return InputError(
        f"at {now_s:.0f} s more than max_{name}={limit} {name} are in the system; "
        f"expected at most that many: raise the setting max_{name}"
    )
