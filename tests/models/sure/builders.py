"""Observations of random jobs."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.stream_scaling.observation import (
    RESTART_COLUMNS,
    SNAPSHOT_COLUMNS,
    TASK_COLUMNS,
    TIME_COLUMNS,
)

Tables = dict[str, NDArray[Any]]


def random_observation(
    rng: np.random.Generator, tasks: int, window: int, history: int | None = None
) -> Tables:
    """Of a random DAG; before the last `history` snapshots all is zero, as in the environment."""
    pairs = [(a, b) for b in range(tasks) for a in range(b) if rng.random() < 2 / tasks]
    missing = window - (window if history is None else history)
    snapshots = rng.normal(size=(window, tasks, len(SNAPSHOT_COLUMNS))).astype(np.float32)
    times = rng.normal(size=(window, len(TIME_COLUMNS))).astype(np.float32)
    times[:, TIME_COLUMNS.index("present")] = 1
    snapshots[:missing], times[:missing] = 0, 0
    return {
        "snapshots": snapshots,
        "times": times,
        "tasks": rng.normal(size=(tasks, len(TASK_COLUMNS))).astype(np.float32),
        "edges": np.array(pairs, np.int64).reshape(-1, 2).T,
        "restart": rng.normal(size=len(RESTART_COLUMNS)).astype(np.float32),
    }


def chain_observation(tasks: int, window: int) -> Tables:
    """Of tasks in a chain, all numbers 0."""
    found = random_observation(np.random.default_rng(0), tasks, window)
    for name in ("snapshots", "tasks", "restart"):
        found[name][:] = 0
    found["edges"] = np.stack([np.arange(tasks - 1), np.arange(1, tasks)])
    return found


def reordered(tables: Tables, order: NDArray[np.int64]) -> Tables:
    """The same job with task order[i] in place i."""
    new = np.argsort(order)
    return {
        **tables,
        "snapshots": tables["snapshots"][:, order],
        "tasks": tables["tasks"][order],
        "edges": new[tables["edges"]],
    }
