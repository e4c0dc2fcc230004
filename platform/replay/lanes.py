"""Which GPU of its machine a job is drawn on.

The simulator knows a machine's GPUs as one pool. For a drawing each stretch of a job takes units of
that pool which are free from its beginning to its end: whole GPUs where it asks for such, else a
part of one that others share already. Where neither is left, it takes what is free, in pieces:
there always is enough.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.gpu_scheduling.cluster import WHOLE, Cluster
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.rollout import PlacementTrace
from loadmaster.platform.replay.packing import Packed, pack


class Bars(NamedTuple):
    """Rectangles by machine, then time."""

    machine: NDArray[np.int64]  # (B,)
    job: NDArray[np.int64]  # (B,)
    first: NDArray[np.int64]  # (B,) percent of a GPU, counted from the machine's first one
    height: NDArray[np.int64]  # (B,) percent
    start_s: NDArray[np.float64]  # (B,)
    end_s: NDArray[np.float64]  # (B,)


def lay_out(trace: PlacementTrace, cluster: Cluster, jobs: Jobs) -> Bars:
    """Every stretch as the rectangles it is drawn as; one of no length is left out."""
    bars: list[tuple[int, int, int, int, float, float]] = []
    lasting = trace.end_s > trace.start_s
    # At one moment those with whole GPUs choose first.
    order = np.lexsort((-jobs.gpu[trace.job], trace.start_s, trace.machine))
    unit = math.gcd(WHOLE, *jobs.gpu[np.unique(trace.job)].tolist())
    until = np.zeros(0)  # (units,) when each is free again
    machine = -1
    for row in order[lasting[order]]:
        job, start_s, end_s = int(trace.job[row]), trace.start_s[row], trace.end_s[row]
        if trace.machine[row] != machine:
            machine = int(trace.machine[row])
            until = np.zeros(cluster.gpu_capacity[machine] // unit)
        taken = np.zeros(len(until), np.bool_)
        for _ in range(trace.instances[row]):
            taken |= _choose((until <= start_s) & ~taken, int(jobs.gpu[job]) // unit, WHOLE // unit)
        until[taken] = end_s
        edges = np.flatnonzero(np.diff(np.concatenate([[False], taken, [False]])))
        for first, end in edges.reshape(-1, 2) * unit:
            bars.append((machine, job, int(first), int(end - first), start_s, end_s))
    table = np.array(bars, np.float64).reshape(-1, len(Bars._fields)).T
    machines, owners, firsts, heights = table[:4].astype(np.int64)
    return Bars(machines, owners, firsts, heights, *table[4:])


def _choose(free: NDArray[np.bool_], needed: int, whole: int) -> NDArray[np.bool_]:
    """Units (U,) for one instance out of those that are free; `whole` of them are a GPU."""
    by_gpu = free.reshape(-1, whole)
    left = by_gpu.sum(1)
    chosen = np.zeros_like(by_gpu)
    if needed < whole:
        fitting = np.flatnonzero(left >= needed)
        if len(fitting):  # the fullest that has room
            gpu = fitting[left[fitting].argmin()]
            chosen[gpu, np.flatnonzero(by_gpu[gpu])[:needed]] = True
            return chosen.ravel()
    chosen[np.flatnonzero(left == whole)[: needed // whole]] = True
    missing = needed - int(chosen.sum())
    if missing > 0:
        # Pieces, out of the fullest GPUs first; the order of units within them stays.
        others = np.flatnonzero((by_gpu & ~chosen).ravel())
        others = others[np.argsort(left[others // whole], kind="stable")]
        if len(others) < missing:
            raise ValueError("a machine holds more than it has GPUs")
        chosen.ravel()[others[:missing]] = True
    return chosen.ravel()


def pack_bars(bars: Bars, finish_s: NDArray[np.float64]) -> Packed:
    """Columns of the bars; `script/gpu_scheduling/schedule.js` is the way back."""
    start, end = (np.rint(times * 1000).astype(np.int64) for times in (bars.start_s, bars.end_s))
    same = np.concatenate([[False], bars.machine[1:] == bars.machine[:-1]])[: len(start)]
    before = np.where(same, np.concatenate([[0], start[:-1]])[: len(start)], 0)
    # nan: it was never done
    stopped = ~(bars.end_s >= finish_s[bars.job])
    return {
        "bars": len(start),
        "machine": pack(bars.machine),
        "gap_ms": pack(start - before),  # since the start of the bar before on the same machine
        "duration_ms": pack(end - start),
        "job": pack(bars.job * 2 + stopped),  # + 1 where it was stopped at the end of the bar
        "first": pack(bars.first),
        "height": pack(bars.height),
    }
