"""The event queue: a tournament over the executors, each of which has at most one event ahead."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import inner
from loadmaster.envs.dag_scheduling import state as at

Table = NDArray[np.int64]


@inner
def replay_matches(tree: Table, executors: Table, executor: int) -> None:
    """Let `executor` play its way up again after its event changed. Ties: planned first, first."""
    node = (len(tree) // 2 + executor) // 2
    while node >= 1:
        one, other = tree[2 * node], tree[2 * node + 1]
        a, b = executors[one, at.EVENT_MS], executors[other, at.EVENT_MS]
        if b < a or (
            b == a and executors[other, at.EVENT_NUMBER] < executors[one, at.EVENT_NUMBER]
        ):
            one = other
        tree[node] = one
        node //= 2


@inner
def plan_event(clock: Table, tree: Table, executors: Table, executor: int, when: int) -> None:
    """The executor's next event, at time `when`; it replaces the one just happening, if any."""
    if executors[executor, at.EVENT_MS] == at.NEVER:
        clock[at.PENDING] += 1
    clock[at.SEQUENCE] += 1
    executors[executor, at.EVENT_MS] = when
    executors[executor, at.EVENT_NUMBER] = clock[at.SEQUENCE]
    replay_matches(tree, executors, executor)


@inner
def clear_event(clock: Table, tree: Table, executors: Table, executor: int) -> None:
    """The executor has nothing ahead of it."""
    if executors[executor, at.EVENT_MS] != at.NEVER:
        clock[at.PENDING] -= 1
        executors[executor, at.EVENT_MS] = at.NEVER
        replay_matches(tree, executors, executor)
