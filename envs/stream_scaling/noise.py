"""Noise of reported metrics, and metrics that are missing; the simulation itself has none."""

import numpy as np

from loadmaster.envs.compiled import njit_internal, normal, uniform
from loadmaster.envs.stream_scaling.state import (
    BLOCKED,
    BUFFER_USE,
    BUSY,
    HOT_BUSY,
    IDLE,
    IN_RATE,
    METRIC_COLUMNS,
    MINUTE,
    OUT_RATE,
    PENDING,
    QUEUED,
    JobTables,
    SimConstants,
    SimState,
)


@njit_internal
def disturb_metrics(job: JobTables, constants: SimConstants, state: SimState) -> None:
    """Add noise to this minute's reports; busy, idle and blocked still add up to 1."""
    minute, tasks = state.clock[MINUTE], len(job.service_min)
    report = state.metrics[minute % len(state.metrics)]
    if constants.noise > 0:
        for task in range(tasks):
            row, first = report[task], (minute * tasks + task) * METRIC_COLUMNS
            for column in (BUSY, BLOCKED, HOT_BUSY, BUFFER_USE, IN_RATE, OUT_RATE, QUEUED, PENDING):
                if row[column] != 0:
                    factor = 1.0 + constants.noise * normal(constants.key, first + column)
                    row[column] = max(row[column] * factor, 0.0)
            for column in (BUSY, HOT_BUSY, BUFFER_USE):
                row[column] = min(row[column], 1.0)
            row[BLOCKED] = min(row[BLOCKED], np.float32(1.0) - row[BUSY])
            row[IDLE] = np.float32(1.0) - row[BUSY] - row[BLOCKED]
    if constants.missing > 0 and uniform(constants.key + 1, minute) < constants.missing:
        for task in range(tasks):
            report[task, PENDING] = np.nan
