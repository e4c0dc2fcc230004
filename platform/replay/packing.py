"""A schedule made small enough to travel inside a page.

Rows become stints: an executor's uninterrupted tasks in one stage of one job. A stint is five
small numbers, a task then only its duration, and numbers are packed seven bits to a byte: about
two bytes a task, against the 25 of the trace. `script/data.js` is the way back.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from loadmaster.envs.dag_scheduling.episode import ScheduleTrace

Packed = dict[str, int | str]


def pack_schedule(trace: ScheduleTrace) -> Packed:
    """Columns of the stints, in order of executor and time, and the duration of every row."""
    # A zero-length row sorts before the row that starts at the same moment, hence the end too.
    order = np.lexsort((trace.end_ms, trace.start_ms, trace.executor))
    executor = trace.executor[order].astype(np.int64)
    job = trace.job[order].astype(np.int64)
    kind = trace.stage[order].astype(np.int64) * 2 + trace.moving[order]
    start, end = trace.start_ms[order], trace.end_ms[order]

    same_executor = np.concatenate([[False], executor[1:] == executor[:-1]])
    free_at = np.where(same_executor, np.concatenate([[0], end[:-1]]), 0)
    gap = start - free_at
    if (gap < 0).any() or (end < start).any():
        raise ValueError("an executor runs two tasks at once, or a task ends before it starts")
    same_stint = same_executor & (gap == 0)
    same_stint[1:] &= (job[1:] == job[:-1]) & (kind[1:] == kind[:-1])
    first = np.flatnonzero(~same_stint)
    return {
        "rows": len(order),
        "stints": len(first),
        "executor": pack(executor[first]),
        "gap_ms": pack(gap[first]),  # since the executor's previous stint, or since 0
        "job": pack(job[first]),
        "kind": pack(kind[first]),  # stage * 2, + 1 for a move
        "length": pack(np.diff(first, append=len(order))),
        "duration_ms": pack(end - start),
    }


def pack(values: NDArray[np.int64]) -> str:
    """Non-negative numbers as LEB128 in base64: seven bits a byte, the high bit says go on."""
    largest = int(values.max(initial=0))
    places = max(1, -(-largest.bit_length() // 7))
    groups = values[:, None] >> (7 * np.arange(places))  # (values, places) low bits first
    used = groups > 0
    used[:, 0] = True  # a zero is one byte, too
    more = np.zeros_like(used)
    more[:, :-1] = used[:, 1:]
    coded = ((groups & 0x7F) | (more * 0x80)).astype(np.uint8)
    return base64.b64encode(coded[used].tobytes()).decode()
