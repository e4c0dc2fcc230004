"""The rule that SURE starts from."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from loadmaster.envs.stream_scaling.observation import (
    RESTART_COLUMNS,
    SNAPSHOT_COLUMNS,
    TASK_COLUMNS,
)
from loadmaster.models.sure.prior import Prior, recommend
from loadmaster.models.sure.settings import PriorSettings

MOST, COUNT, MAX_FACTOR = 10, 4, 3.0
SETTINGS = PriorSettings(
    target=0.5, tolerance=0.2, up_min=2, down_min=6, every_min=60, urgent_min=10
)


def decide(*busy: float | None, age: float | None = None, count: int = COUNT) -> Prior:
    """Of one task, busy for these shares of the last minutes; None: the job was down."""
    snapshots = np.zeros((len(busy), 1, len(SNAPSHOT_COLUMNS)), np.float32)
    for row, share in zip(snapshots[:, 0], busy, strict=True):
        row[SNAPSHOT_COLUMNS.index("parallelism")] = count / MOST
        if share is not None:
            row[SNAPSHOT_COLUMNS.index("busy")] = share
            row[SNAPSHOT_COLUMNS.index("idle")] = 1 - share
    tasks = np.zeros((1, len(TASK_COLUMNS)), np.float32)
    tasks[0, TASK_COLUMNS.index("most instances")] = np.log1p(MOST) / 4
    restart = np.zeros(len(RESTART_COLUMNS), np.float32)
    restart[RESTART_COLUMNS.index("age")] = 1.0
    if age is not None:
        restart[:] = 0
        restart[RESTART_COLUMNS.index("age")] = np.log1p(age) / 8
        restart[RESTART_COLUMNS.index("ever")] = 1
    return recommend(snapshots, tasks, restart, SETTINGS, MAX_FACTOR)


def instances(prior: Prior, count: int = COUNT) -> NDArray[Any]:
    return np.rint(count * MAX_FACTOR**prior.change)


@pytest.mark.parametrize(
    ("busy", "expected"),
    [
        ((0.5, 0.5, 0.5), 4),
        ((0.58, 0.58, 0.58), 4),  # within the tolerance
        ((0.5, 0.8, 0.8), 7),  # 6.4 instances would be busy for half of the time
        ((0.5, 1.0, 1.0), 8),
        ((0.2, 0.2, 0.2), 2),
        ((0.01, 0.01, 0.01), 1),
        ((0.8, 0.8, 0.2, 0.2), 4),  # was busy within the last minutes
        ((0.8, 0.8, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2), 2),  # that was before
        ((0.6, 0.6, None, None, 0.5), 4),  # minutes without a report do not count
    ],
)
def test_instances(busy: tuple[float | None, ...], expected: int) -> None:
    prior = decide(*busy)
    assert instances(prior) == [expected]
    assert prior.gate == (SETTINGS.log_odds if expected != COUNT else -SETTINGS.log_odds)


def test_never_more_than_the_task_may_have() -> None:
    assert instances(decide(1.0, 1.0, count=8), 8) == [MOST]


@pytest.mark.parametrize(
    ("busy", "age", "acts"),
    [
        (0.8, 59, False),
        (0.8, 61, True),
        (0.8, None, True),  # there was no restart
        (1.0, 9, False),
        (1.0, 11, True),  # urgent: it cannot keep up
        (0.1, 30, False),
    ],
)
def test_time_between_restarts(busy: float, age: float | None, acts: bool) -> None:
    assert (decide(busy, busy, age=age).gate > 0) == acts
