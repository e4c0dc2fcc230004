"""History of a deployment as the state of AWARE's endpoint.

A replica is a pod of fixed size. An interval is a report, four of them are a control step. Where
Ray has no such number the column is derived:

- CPU: with `capacity: requests` a place of a request is a core, and processing time is CPU time.
- Latency: the p99 of the processing time, and of the wait for a replica, which by Little's law has
  the mean queue / arrivals and is taken as exponential.
- Requests: `parts` of each, as short as those of the applications that policies were trained on.
- Restarts: replicas that ended without a lower target.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from loadmaster.platform.steering.ray_serve.exported_metrics import (
    Readings,
    Series,
    increase,
    quantile,
)
from loadmaster.platform.steering.ray_serve.settings import REPORTS_PER_STEP, DeploymentSettings

MAX_REPORTS = 240
UNKNOWN_MIB = 1024.0  # limit of a replica whose memory is not known
# Use where it is not known: that of the median application of the policies' training, a constant
# and an amount for each request at the CPU. With other amounts the endpoint would take the
# application for one that its policy does not know.
IDLE_MIB, REQUEST_MIB, MOST_RHO = 200.0, 14.0, 0.9
FLOOR_RHO = 0.8  # load of the replicas that a queue calls for
_P99 = math.log(100.0)  # of an exponential variable, in means
_CORE_M = 1000.0


@dataclass(frozen=True)
class View:
    """A deployment at one time, from Serve's context or its REST API."""

    at_s: float
    target: int
    replicas: frozenset[str]  # ids of those that run
    low: int
    high: int
    slots: float  # of a replica, if no setting has it
    ongoing: float | None = None  # requests running and queued; None: not known
    queued: float | None = None


@dataclass(frozen=True)
class Interval:
    """What happened between two readings. None: not known."""

    end_s: float
    seconds: float
    target: int
    ready: int
    gone: int
    slots: float
    queued: float | None
    requests: float | None = None
    done: float | None = None
    busy_s: float | None = None
    buckets: Mapping[float, float] = field(default_factory=dict)
    cpu_m: float | None = None
    memory_mib: float | None = None


class History:
    """Intervals of the last hour of a deployment, and the state that they make."""

    def __init__(self, name: str, settings: DeploymentSettings) -> None:
        self.name, self._settings = name, settings
        self._intervals: deque[Interval] = deque(maxlen=MAX_REPORTS)
        self._last: tuple[View, Readings | None] | None = None

    def add(self, view: View, readings: Readings | None) -> None:
        """Add a reading; `readings` is None where the nodes' metrics are silent."""
        last, self._last = self._last, (view, readings)
        if last is None or view.at_s <= last[0].at_s:
            return
        past, before = last
        ended = len(past.replicas - view.replicas)
        removed = max(len(past.replicas) - view.target, 0)
        interval = Interval(
            view.at_s,
            view.at_s - past.at_s,
            view.target,
            len(view.replicas),
            max(ended - removed, 0),
            view.slots,
            view.queued,
            **_changes(before, readings),
        )
        self._intervals.append(self._estimated(interval, view))

    def _estimated(self, one: Interval, view: View) -> Interval:
        """Without metrics, requests by Little's law if the work of a request is known."""
        request_s = self._settings.request_s
        if one.requests is not None or request_s is None or view.ongoing is None:
            return one
        running = max(view.ongoing - (view.queued or 0.0), 0.0)
        requests = running * one.seconds / request_s
        return Interval(
            one.end_s, one.seconds, one.target, one.ready, one.gone, one.slots, one.queued,
            requests=requests, done=requests, busy_s=running * one.seconds,
        )  # fmt: skip

    @property
    def last(self) -> View | None:
        """The newest reading."""
        return self._last[0] if self._last else None

    def needed(self, queued: float) -> float | None:
        """Replicas that serve the arrivals and clear a queue within the SLO; None: not known."""
        settings = self._settings
        intervals = tuple(self._intervals)  # another thread adds to them
        newest = [one for one in intervals if one.requests is not None][-settings.pooled :]
        done = sum(one.done or 0.0 for one in newest)
        if done == 0:
            return None
        work_s = settings.request_s or sum(one.busy_s or 0.0 for one in newest) / done
        rate = sum(one.requests or 0.0 for one in newest) / sum(one.seconds for one in newest)
        slots = settings.slots or newest[-1].slots
        return work_s * (rate / FLOOR_RHO + queued / settings.slo_s) / slots

    def document(self, now_s: float) -> dict[str, Any] | None:
        """The state for a decision now.

        None before the first control step is complete, and where nothing is known of the newest
        one: without metrics the load would seem to be none.
        """
        intervals = list(self._intervals)
        view = self.last
        steps = _without_gaps([_step(part, self._settings) for part in _by_step(intervals)])
        if view is None or not steps:
            return None
        rows = [self._report(one) for one in _pooled(intervals, self._settings.pooled)]
        if all(row["requests"] is None for row in rows[-REPORTS_PER_STEP:]):
            return None
        scale = self._settings.scale
        size = self._size(intervals[-1].slots)
        low = max(view.low, 1)
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        ages = [scale * max(now_s - one.end_s, 0.0) for one in intervals]
        return {
            "application": self.name,
            "routing": "two-choices",
            "discipline": "fcfs" if self._settings.capacity == "requests" else "ps",
            "slo_s": self._settings.latency_scale * self._settings.slo_s,
            "bounds": {
                "replicas": [low, max(view.high, low)],
                "cpu_m": [size[0], size[0]],
                "memory_mib": [size[1], size[1]],
            },
            "plan": {"replicas": max(view.target, 1), "cpu_m": size[0], "memory_mib": size[1]},
            "reports": {"age_s": ages, **columns},
            "steps": {name: [step[name] for step in steps] for name in steps[0]},
        }

    def outcome(self) -> dict[str, Any] | None:
        """The last control step, for feedback; None if its use is not known."""
        parts = _by_step(list(self._intervals))
        if not parts:
            return None
        rows = [self._report(one) for one in parts[-1]]
        known = [row for row in rows if row["used_cpu_m"] is not None and row["limit_cpu_m"]]
        if not known:
            return None
        step = _step(parts[-1], self._settings)
        return {
            "p99_s": step["p99_s"],
            "slo_s": self._settings.latency_scale * self._settings.slo_s,
            "cpu_use": _share(known, "cpu_m"),
            "memory_use": _share(known, "memory_mib"),
            "restarts": int(step["restarts"]),
        }

    def _size(self, slots: float) -> tuple[float, float]:
        """CPU and memory of a replica."""
        settings = self._settings
        cores = settings.cpus if settings.capacity == "cpu" else settings.slots or slots
        return _CORE_M * cores, settings.memory_mib or UNKNOWN_MIB

    def _report(self, one: Interval) -> dict[str, float | None]:
        settings = self._settings
        cpu_m, mib = self._size(one.slots)
        used_m = self._used_m(one)
        if settings.memory_mib is not None and one.memory_mib is not None:
            used_mib = one.memory_mib
        else:
            rho = min((used_m or 0.0) / max(cpu_m * one.ready, 1.0), MOST_RHO)
            used_mib = one.ready * min(IDLE_MIB + REQUEST_MIB * rho / (1.0 - rho), mib)
        missing = one.requests is None or used_m is None
        row: dict[str, float | None] = {
            "pods": float(max(one.target, one.ready)),
            "ready": float(one.ready),
            "used_cpu_m": None if used_m is None else min(used_m, cpu_m * one.ready),
            "limit_cpu_m": cpu_m * one.ready,
            "used_memory_mib": min(used_mib, mib * one.ready),
            "limit_memory_mib": mib * one.ready,
            "peak_memory_mib": used_mib / max(one.ready, 1),
            "requests": None if one.requests is None else settings.parts * one.requests,
        }
        if missing:
            row["used_cpu_m"] = row["requests"] = None
        return row

    def _used_m(self, one: Interval) -> float | None:
        """Work done in the interval, in thousandths of a core."""
        settings = self._settings
        if settings.capacity == "cpu":
            return one.cpu_m
        if settings.request_s is not None and one.done is not None:
            return _CORE_M * one.done * settings.request_s / one.seconds
        return None if one.busy_s is None else _CORE_M * one.busy_s / one.seconds


def _changes(before: Readings | None, after: Readings | None) -> dict[str, Any]:
    if before is None or after is None or after.at_s <= before.at_s:
        return {}
    added = after.nodes - before.nodes

    def rise(past: Series, now: Series) -> float:
        """Without nodes that are new here: what these have counted is not of this interval."""
        if added:
            now = {name: one for name, one in now.items() if name.partition(" ")[0] not in added}
        return increase(past, now)

    return {
        "requests": rise(before.arrivals, after.arrivals),
        "done": rise(before.done, after.done),
        "busy_s": rise(before.busy_s, after.busy_s),
        "buckets": {
            bound_s: rise(before.buckets.get(bound_s, {}), series)
            for bound_s, series in after.buckets.items()
        },
        "cpu_m": after.cpu_m,
        "memory_mib": after.memory_mib,
    }


def _pooled(intervals: Sequence[Interval], count: int) -> Iterator[Interval]:
    """Each interval with the rates of the `count` that end with it, less those without metrics."""
    for end, one in enumerate(intervals, start=1):
        known = [each for each in intervals[max(end - count, 0) : end] if each.requests is not None]
        if one.requests is None or count == 1:
            yield one
            continue
        share = one.seconds / sum(each.seconds for each in known)
        yield replace(
            one,
            requests=share * sum(each.requests or 0.0 for each in known),
            done=share * sum(each.done or 0.0 for each in known),
            busy_s=share * sum(each.busy_s or 0.0 for each in known),
        )


def _by_step(intervals: Sequence[Interval]) -> list[Sequence[Interval]]:
    """Complete control steps, the last one of which ends now."""
    count = len(intervals) // REPORTS_PER_STEP
    first = len(intervals) - count * REPORTS_PER_STEP
    return [
        intervals[begin : begin + REPORTS_PER_STEP]
        for begin in range(first, len(intervals), REPORTS_PER_STEP)
    ]


def _step(part: Iterable[Interval], settings: DeploymentSettings) -> dict[str, Any]:
    """A control step. Intervals without metrics count as the others; without any, None."""
    part = list(part)
    known = [one for one in part if one.requests is not None]
    requests = sum(one.requests or 0.0 for one in known)
    if known:
        requests *= sum(one.seconds for one in part) / sum(one.seconds for one in known)
    p99_s = _p99_s(part, requests, settings)
    return {
        "requests": settings.parts * requests if known else None,
        "p99_s": None if p99_s is None else settings.latency_scale * p99_s,
        "restarts": float(sum(one.gone for one in part)),
    }


def _without_gaps(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Steps of which no requests are known have those of the step before, else of the next one.

    Their p99 stays None: beside requests the endpoint takes it as unknown.
    """
    for order in (steps, steps[::-1]):
        last = None
        for one in order:
            if one["requests"] is None:
                one["requests"] = last
            last = one["requests"]
    return steps


def _p99_s(part: Sequence[Interval], requests: float, settings: DeploymentSettings) -> float | None:
    """p99 of the processing time and of the wait for a replica; None without requests."""
    counts: dict[float, float] = {}
    for one in part:
        for bound_s, count in one.buckets.items():
            counts[bound_s] = counts.get(bound_s, 0.0) + count
    inside_s = quantile(counts, 0.99)
    if inside_s is None:
        if requests <= 0 or settings.request_s is None:
            return None
        inside_s = settings.request_s
    waiting = [one.queued * one.seconds for one in part if one.queued is not None]
    wait_s = sum(waiting) / requests if requests > 0 else 0.0
    return inside_s + _P99 * wait_s


def _share(rows: Sequence[Mapping[str, float | None]], name: str) -> float:
    used = sum(row[f"used_{name}"] or 0.0 for row in rows)
    limit = sum(row[f"limit_{name}"] or 0.0 for row in rows)
    return min(used / limit, 1.0) if limit > 0 else 0.0
