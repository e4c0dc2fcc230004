"""Parts of the lag of a Flink job: pauses of rescales, late plans, and plans that are too small.

The records that were due and the plans of a run are replayed through a queue without pauses, whose
capacity is that of the plan. What it lags behind is shortage: the present plan could not process
what arrived. The same with the plans as they were recommended, from the moment on at which they
were, is the part that no faster engine or adapter could have avoided. What is left of the measured
lag above that of the fixed plan is due to rescales: the pause, repeated records, and catching up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Plan = Mapping[str, int]


@dataclass
class Timeline:
    """Samples of one job, from before it is measured; times are real seconds since 1970."""

    times: list[float] = field(default_factory=list)
    due: list[int] = field(default_factory=list)  # records so far
    lag_s: list[float] = field(default_factory=list)  # of the policies, as measured
    plans: list[Plan] = field(default_factory=list)  # that ran
    steps: list[tuple[float, Plan]] = field(default_factory=list)  # recommended at this time


@dataclass(frozen=True)
class LagRow:
    """Mean lag of a job in one repeat, and its parts, in seconds of the policies."""

    profile: str
    repeat: int
    arm: str
    mean_lag_s: float
    base_s: float  # lag of the plan for the peak, without its shortage
    recommended_s: float  # shortage of the plans as recommended
    late_s: float  # more shortage of those that ran
    rescales_s: float  # the rest
    seconds_a_rescale: float  # of lag, times minutes that it lasts, of one rescale
    short_min: float  # minutes in which the plan could not process what arrived


def lag_row(
    name: tuple[str, int, str],
    timeline: Timeline,
    begin_s: float,
    base_s: float,
    seconds: Mapping[str, float],
    pace: float,
    rescales: int,
) -> LagRow:
    """Take the lag from `begin_s` on apart; `seconds` of a record in each task."""
    times = np.array(timeline.times)
    due, measured = np.array(timeline.due, np.float64), times >= begin_s
    ran = np.array([_capacity(plan, seconds) for plan in timeline.plans])
    wanted = _recommended(times, timeline, ran, seconds)
    lag = float(np.mean(np.array(timeline.lag_s)[measured]))
    short = float(queue_lag(times, due, ran)[measured].mean()) * pace
    unavoidable = float(queue_lag(times, due, wanted)[measured].mean()) * pace
    rest = lag - base_s - short
    arriving = np.gradient(due, times)
    smooth = np.convolve(arriving, np.ones(5) / 5, "same")  # of a minute
    minutes = float(np.ptp(times[measured])) * pace / 60
    return LagRow(
        *name,
        mean_lag_s=lag,
        base_s=base_s,
        recommended_s=unavoidable,
        late_s=short - unavoidable,
        rescales_s=rest,
        seconds_a_rescale=rest * minutes / rescales if rescales else 0.0,
        short_min=float((smooth > ran)[measured].mean()) * minutes,
    )


def _capacity(plan: Plan, seconds: Mapping[str, float]) -> float:
    """Records a second that the slowest task can process."""
    return min(plan.get(task, 1) / each for task, each in seconds.items())


def _recommended(
    times: Floats, timeline: Timeline, ran: Floats, seconds: Mapping[str, float]
) -> Floats:
    """Capacity by the last recommendation before each sample; before the first, that of the run."""
    if not timeline.steps:
        return ran
    places = np.searchsorted([at for at, _ in timeline.steps], times, "right") - 1
    found = np.array([_capacity(plan, seconds) for _, plan in timeline.steps])
    return np.where(places >= 0, found[np.maximum(places, 0)], ran)


def queue_lag(times: Floats, due: Floats, capacity: Floats) -> Floats:
    """Age of the record that leaves a queue at each time; it serves `capacity` records a second."""
    served = np.empty_like(due)
    served[0] = due[0]
    for place in range(1, len(times)):
        most = served[place - 1] + capacity[place - 1] * (times[place] - times[place - 1])
        served[place] = min(most, due[place])
    rising = np.maximum.accumulate(due + np.arange(len(due)) * 1e-9)
    ages: Floats = times - np.interp(served, rising, times)
    return np.maximum(ages, 0.0)


def minute_rows(
    name: tuple[str, int, str], timeline: Timeline, begin_s: float, minute_s: float
) -> list[dict[str, Any]]:
    """Load, plan and lag of each measured minute."""
    times, due = np.array(timeline.times), np.array(timeline.due, np.float64)
    minutes = np.floor((times - begin_s) / minute_s).astype(int)
    rates = np.gradient(due, times)
    rows: list[dict[str, Any]] = []
    for minute in range(int(minutes.max()) + 1):
        own = np.flatnonzero(minutes == minute)
        if not len(own):
            continue
        rows.append(
            {
                "profile": name[0], "repeat": name[1], "arm": name[2], "minute": minute,
                "records_per_s": round(float(rates[own].mean()), 1),
                **{task: timeline.plans[own[-1]][task] for task in ("parse", "enrich")},
                "mean_lag_s": round(float(np.mean([timeline.lag_s[one] for one in own])), 2),
                "peak_lag_s": round(max(timeline.lag_s[one] for one in own), 2),
            }
        )  # fmt: skip
    return rows
