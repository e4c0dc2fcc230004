"""Least instances for the measured load: a plan that is too small is raised at once.

A policy may hold a plan although more records arrive than it can process: it was trained to restart
seldom, and to expect the mean of the last minutes. Of each task the busy instances per record at
the sources are measured. Where the load of the last minutes would keep a task busy for more than a
share of the time, all tasks get what the load needs after a lead time, by its trend: in one
restart, and without another for the next part of the rise. No task falls below what the load needs.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.stream_scaling import state as cols
from loadmaster.serving.systems.sure.schema import SureState

WINDOW_MIN = 15  # minutes whose means give the busy instances per record
NOW_MIN = 3  # minutes whose mean is the present load
TREND_MIN = 10  # minutes of the trend
_LEAST_MINUTES = 3  # with a report, before anything is raised
_ROUNDING = 1e-6

Floats = NDArray[np.float64]


class LoadFloor(NamedTuple):
    """Least instances of the tasks by name, and why; no reason where the plan suffices."""

    instances: dict[str, float]
    reason: str = ""


def load_floor(state: SureState, busy: float, lead_s: float) -> LoadFloor:
    """Floors at which no task is busy for more than the share `busy`.

    Sources that never report idle or back-pressured time are left out: those of the old interface
    always appear as busy.
    """
    parsed = state.parsed
    job, names = parsed.snapshot.job, parsed.names
    recent = parsed.snapshot.metrics[-WINDOW_MIN:].astype(np.float64)
    minutes = np.flatnonzero(~np.isnan(recent[:, 0, cols.PARALLELISM]))
    recent, source = recent[minutes], job.source >= 0
    emitted = float(recent[:, source, cols.OUT_RATE].sum())
    if len(minutes) < _LEAST_MINUTES or emitted <= 0:
        return LoadFloor({})
    work = (recent[:, :, cols.BUSY] * recent[:, :, cols.PARALLELISM]).sum(0)
    rested = (recent[:, :, cols.IDLE] + recent[:, :, cols.BLOCKED]).sum(0) > 0
    demand = np.where(~source | rested, work / emitted, 0.0)  # busy instances by records a minute
    arrived = recent[:, source, cols.IN_RATE].sum(1)
    now = float(arrived[-NOW_MIN:].mean())
    later = max(_extrapolated(minutes, arrived, lead_s / 60), now)
    instances = parsed.snapshot.parallelism
    least = _needed(demand * now / busy)
    if not (least > instances).any():
        return LoadFloor(dict(zip(names, least.tolist(), strict=True)))
    short = [name for name, more in zip(names, least > instances, strict=True) if more]
    least = np.maximum(least, _needed(demand * later / busy))
    rates = f"{now / 60:.0f} records/s arrive, {later / 60:.0f} are expected"
    return LoadFloor(
        dict(zip(names, least.tolist(), strict=True)),
        f"load floor: {rates} in {lead_s / 60:.0f} min; more than {', '.join(short)} can process",
    )


def _needed(busy: Floats) -> Floats:
    """Whole instances, at least one."""
    return np.maximum(np.ceil(busy - _ROUNDING), 1.0)


def _extrapolated(minutes: NDArray[np.int64], arrived: Floats, lead_min: float) -> float:
    """Records a minute after `lead_min`, by the line through the minutes of the trend."""
    kept = minutes > minutes[-1] - TREND_MIN
    ages, rates = minutes[kept] - float(minutes[-1]), arrived[kept]
    spread = float(((ages - ages.mean()) ** 2).sum())
    if len(rates) < _LEAST_MINUTES or math.isclose(spread, 0.0):
        return float(rates.mean())
    slope = float(((ages - ages.mean()) * rates).sum()) / spread
    return float(rates.mean()) + max(slope, 0.0) * (lead_min - float(ages.mean()))
