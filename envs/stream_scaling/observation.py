"""Observations: snapshots of every task over the last minutes, and the job's graph.

All of it is in the REST API of Flink. Rates and pending records are on a logarithmic scale.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, njit_internal
from loadmaster.envs.stream_scaling.state import (
    BLOCKED,
    BUFFER_USE,
    BUSY,
    DOWN_FOR,
    HOT_BUSY,
    IDLE,
    IN_RATE,
    MINUTE,
    OUT_RATE,
    PARALLELISM,
    PENDING,
    RESTARTED_AT,
    JobTables,
    SimState,
)

# Columns of `snapshots`.
SNAPSHOT_COLUMNS = (
    "parallelism", "busy", "idle", "blocked", "hottest busy", "in rate", "out rate", "true rate",
    "buffer use", "pending", "pending change", "pending missing",
)  # fmt: skip
TASK_COLUMNS = ("level", "source", "sink", "most instances", "chained")
TIME_COLUMNS = ("day sine", "day cosine", "week sine", "week cosine", "present")
RESTART_COLUMNS = ("age", "length", "ever")
MOST_INSTANCES = TASK_COLUMNS.index("most instances")
CAP_UNIT, AGE_UNIT, RATE_UNIT, PENDING_UNIT = 4.0, 8.0, 6.0, 8.0  # of logarithms
_LEAST_BUSY = 0.01  # below it the true rate is not known
_DAY, _WEEK = 1440.0, 10_080.0
_MOST = 1e4  # of any column: logarithms, shares and the minutes of a restart


class Observation(NamedTuple):
    """L snapshots, the oldest first, of N tasks and E edges."""

    snapshots: NDArray[np.float32]  # (L, N, SNAPSHOT_COLUMNS)
    times: NDArray[np.float32]  # (L, TIME_COLUMNS)
    tasks: NDArray[np.float32]  # (N, TASK_COLUMNS)
    edges: NDArray[np.int64]  # (2, E) parent, child
    restart: NDArray[np.float32]  # (RESTART_COLUMNS,)


def blank_observation(job: JobTables, levels: NDArray[np.int64], history: int) -> Observation:
    """Tables with what does not change."""
    count = len(job.service_min)
    tasks = np.zeros((count, len(TASK_COLUMNS)), np.float32)
    tasks[:, 0] = levels / max(levels.max(), 1)
    tasks[:, 1] = job.source >= 0
    tasks[:, 2] = job.weight > 0
    tasks[:, MOST_INSTANCES] = np.log1p(job.cap) / CAP_UNIT
    tasks[:, 4] = job.chain != np.arange(count)
    return Observation(
        snapshots=np.zeros((history, count, len(SNAPSHOT_COLUMNS)), np.float32),
        times=np.zeros((history, len(TIME_COLUMNS)), np.float32),
        tasks=tasks,
        edges=np.stack([job.parent, job.child]),
        restart=np.zeros(len(RESTART_COLUMNS), np.float32),
    )


def most_instances(tasks: NDArray[np.float32]) -> NDArray[np.float32]:
    """(..., N) most instances of each task, of `tasks` (..., N, TASK_COLUMNS)."""
    return np.rint(np.expm1(CAP_UNIT * tasks[..., MOST_INSTANCES]))


def observation_space(blank: Observation) -> spaces.Dict:
    count = len(blank.tasks)
    return spaces.Dict(
        {
            name: spaces.Box(0, count - 1, table.shape, np.int64)
            if name == "edges"
            else spaces.Box(-_MOST, _MOST, table.shape, np.float32)
            for name, table in blank._asdict().items()
        }
    )


@compiled
def observe(job: JobTables, state: SimState, week_minute: int, view: Observation, new: int) -> None:
    """Write the snapshots before the present minute; `week_minute` is that of minute 0.

    `view` holds the observation of `new` minutes ago, whose snapshots move up; with as many as
    its snapshots or more, all are written.
    """
    history, now = len(view.snapshots), state.clock[MINUTE]
    kept = max(history - new, 0)
    move_up(view.snapshots.reshape(view.snapshots.size), kept, history)
    move_up(view.times.reshape(view.times.size), kept, history)
    ring = len(state.metrics)
    for place in range(kept, history):
        minute = now - history + place
        if minute < 0:
            view.snapshots[place] = 0
            view.times[place] = 0
            continue
        moment = week_minute + minute
        day, week = moment % _DAY / _DAY * 2 * math.pi, moment % _WEEK / _WEEK * 2 * math.pi
        times = view.times[place]
        times[0], times[1] = math.sin(day), math.cos(day)
        times[2], times[3] = math.sin(week), math.cos(week)
        times[4] = 1.0
        for task in range(len(job.service_min)):
            _write_features(
                job, state.metrics[minute % ring, task], state.metrics[(minute - 1) % ring, task],
                minute, task, view.snapshots[place, task],
            )  # fmt: skip
    restarted = state.clock[RESTARTED_AT]
    view.restart[0] = math.log1p(now - restarted) / AGE_UNIT if restarted >= 0 else 1.0
    view.restart[1] = state.times[DOWN_FOR]
    view.restart[2] = restarted >= 0


@njit_internal
def move_up(table: NDArray[Any], kept: int, rows: int) -> None:
    """Copy the last `kept` of so many rows to the front."""
    width = len(table) // rows
    shift = (rows - kept) * width
    for place in range(kept * width):
        table[place] = table[place + shift]


@njit_internal
def _write_features(
    job: JobTables,
    report: NDArray[np.float32],
    before: NDArray[np.float32],
    minute: int,
    task: int,
    row: NDArray[np.float32],
) -> None:
    row[0] = report[PARALLELISM] / job.cap[task]
    row[1], row[2], row[3] = report[BUSY], report[IDLE], report[BLOCKED]
    row[4] = report[HOT_BUSY]
    row[5] = math.log1p(report[IN_RATE]) / RATE_UNIT
    row[6] = math.log1p(report[OUT_RATE]) / RATE_UNIT
    row[7] = math.log1p(report[OUT_RATE] / max(report[BUSY], _LEAST_BUSY)) / RATE_UNIT
    row[8] = report[BUFFER_USE]
    pending, last = report[PENDING], before[PENDING]
    missing = pending != pending
    row[9] = 0.0 if missing else math.log1p(pending) / PENDING_UNIT
    change = 0.0 if missing or last != last or minute == 0 else pending - last
    row[10] = math.copysign(math.log1p(abs(change)) / PENDING_UNIT, change)
    row[11] = 1.0 if missing else 0.0
