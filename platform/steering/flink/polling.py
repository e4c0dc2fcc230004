"""Polls of one job: requests, busy times from counters, and the history that is kept."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from loadmaster.platform.steering.flink.client import FlinkClient, Json
from loadmaster.serving.systems.sure.flink_answers import (
    BLOCKED,
    BUSY,
    IDLE,
    RECORDS_IN,
    RECORDS_OUT,
    RESTORED,
    SETTLE_S,
    FlinkPoll,
    metric_query,
)

# Milliseconds since the start of a task. Their differences are means over the time between two
# polls, where the metrics in ms per second are means over 60 s and wrong soon after a start.
COUNTED = {
    BUSY: "accumulateBusyTimeMs",
    IDLE: "accumulateIdleTimeMs",
    BLOCKED: "accumulateBackPressuredTimeMs",
}
# The same in the answer on a job.
ACCUMULATED = ("accumulated-busy-time", "accumulated-idle-time", "accumulated-backpressured-time")
COUNTED_FROM_START_S = 900.0  # later, small errors of the counters would add up
DENSE_S, SPARSE_S = 300.0, 25.0  # older polls are kept this far apart

Sleep = Callable[[float], None]


@dataclass(frozen=True)
class Restored:
    """Time in which the tasks of an execution restored their state.

    Flink counts busy, idle and back-pressured time from then on. Its counts are some seconds old,
    so the least difference from the time since the start is kept, of the first minutes.
    """

    started_ms: int = 0
    length_ms: float | None = None  # None: not known

    def after(self, job: Json) -> Restored:
        """With the answer of a poll."""
        started = max(int(vertex["start-time"]) for vertex in job["vertices"])
        kept = self if started == self.started_ms else Restored(started)
        up = int(job["now"]) - started
        if starting(job) or not 1000 * SETTLE_S <= up <= 1000 * COUNTED_FROM_START_S:
            return kept
        counted = [_counted_ms(vertex) for vertex in job["vertices"]]
        if not all(0 < one <= up for one in counted):
            return kept
        found = up - min(counted)
        return Restored(started, min(found, found if kept.length_ms is None else kept.length_ms))


def _counted_ms(vertex: Json) -> float:
    """Busy, idle and back-pressured time of a subtask so far; NaN where Flink counts none."""
    metrics = vertex.get("metrics") or {}
    total = 0.0
    for name in ACCUMULATED:
        value = metrics.get(name)
        total += value if isinstance(value, (int, float)) else math.nan  # Flink sends NaN as text
    return total / int(vertex["parallelism"])


class Poller:
    """Polls a job. `prepare` requests what makes Flink refresh its metrics, `poll` the values."""

    def __init__(
        self,
        client: FlinkClient,
        job: str,
        refresh_s: float,
        clock: Callable[[], float] = time.time,
        sleep: Sleep = time.sleep,
    ) -> None:
        self._client, self._job, self._refresh_s = client, job, refresh_s
        self._clock, self._sleep = clock, sleep
        self._prepared: tuple[float, Json, dict[str, str]] | None = None
        self._rescale: tuple[str, Json | None] = "", None  # the last one with its details
        self._restored = Restored()

    def prepare(self) -> None:
        """List the metrics of all vertices."""
        job = self._client.job(self._job)
        names: dict[str, str] = {}
        for vertex in job["vertices"]:
            listed = self._client.metric_names(self._job, vertex["id"])
            counted = [name for name in listed if name in COUNTED.values()]
            names[vertex["id"]] = ",".join(
                [part for part in (metric_query(listed), *counted) if part]
            )
        self._prepared = self._clock(), job, names

    def poll(self) -> FlinkPoll:
        """Request the metrics `refresh_s` after `prepare`, which is called where it was not."""
        if self._prepared is None:
            self.prepare()
        assert self._prepared is not None
        (at, _, names), self._prepared = self._prepared, None
        self._sleep(max(self._refresh_s - max(self._clock() - at, 0.0), 0.0))
        job = self._client.job(self._job)
        metrics = {
            vertex: self._client.metrics(self._job, vertex, wanted) if wanted else []
            for vertex, wanted in names.items()
        }
        self._restored = self._restored.after(job)
        return FlinkPoll(self._clock(), job, metrics, self._rescales())

    def _rescales(self) -> Json | None:
        """The overview, its last completed rescale with details, which are requested once.

        `restoredInMillis` is added: the time from its end until tasks process records.
        """
        overview = self._client.rescales(self._job)
        latest = (overview or {}).get("latest") or {}
        completed = latest.get("completed")
        if overview is None or completed is None:
            return overview
        name = str(completed["rescaleUuid"])
        if self._rescale[0] != name:
            self._rescale = name, self._client.rescale(self._job, name)
        details = {**(self._rescale[1] or completed), RESTORED: self._restored.length_ms}
        return {**overview, "latest": {**latest, "completed": details}}


def with_counted_times(poll: FlinkPoll, before: FlinkPoll | None) -> FlinkPoll:
    """Replace busy, idle and back-pressured time by those counted since the poll before.

    Without a poll of the same execution it is the time since its start. Vertices that do not count
    them, as in Flink before 1.16, are left as they are.
    """
    same = before is not None and before.started_ms == poll.started_ms
    metrics: dict[str, Sequence[Json]] = {}
    for vertex, rows in poll.metrics.items():
        older = before.metrics.get(vertex, ()) if before is not None and same else ()
        found = _counted_rows(rows, older, poll.parallelism(vertex))
        metrics[vertex] = rows if found is None else found
    return replace(poll, metrics=metrics)


def _counted_rows(
    rows: Sequence[Json], older: Sequence[Json], parallelism: int
) -> Sequence[Json] | None:
    now, then = _by_name(rows), _by_name(older)
    spent: dict[str, tuple[float, float]] = {}
    for name, counter in COUNTED.items():
        if counter not in now:
            return None
        values = []
        for aggregate in ("sum", "max"):
            value, past = _number(now[counter], aggregate), _number(then.get(counter), aggregate)
            values.append(value - past if value >= past else value)
        spent[name] = values[0], values[1]
    total = sum(one for one, _ in spent.values())
    if not total > 0 or math.isnan(total):
        return None
    each = total / parallelism  # of one subtask: the elapsed time, as Flink counts it
    kept = [row for row in rows if row["id"] not in COUNTED]
    for name, (together, highest) in spent.items():
        mean = 1000 * together / total
        most = min(max(1000 * highest / each, mean), 1000.0)
        kept.append({"id": name, "avg": mean, "max": most, "sum": mean * parallelism})
    return kept


def _by_name(rows: Sequence[Json]) -> dict[str, Json]:
    return {row["id"]: row for row in rows}


def _number(row: Json | None, aggregate: str) -> float:
    try:
        return 0.0 if row is None else float(row.get(aggregate, math.nan))
    except (TypeError, ValueError):
        return math.nan


def remember(polls: list[FlinkPoll], poll: FlinkPoll, history_min: int) -> None:
    """Append a poll; drop those that are older than the history, and close ones of long ago."""
    polls.append(poll)
    oldest = poll.time_s - 60 * (history_min + 1)
    kept: list[FlinkPoll] = []
    for one in polls:
        if one.time_s < oldest:
            continue
        is_dense = bool(kept) and one.time_s - kept[-1].time_s < SPARSE_S
        is_same = bool(kept) and one.started_ms == kept[-1].started_ms
        if poll.time_s - one.time_s > DENSE_S and is_dense and is_same:
            continue
        kept.append(one)
    polls[:] = kept


def fingerprint(poll: FlinkPoll) -> tuple[Any, ...]:
    """Counters of all vertices, which change in any job that runs: at least the idle time."""
    return tuple(
        (vertex, name, poll.metric(vertex, name, "sum"))
        for vertex in sorted(poll.metrics)
        for name in (RECORDS_IN, RECORDS_OUT, *COUNTED.values())
        if any(row["id"] == name for row in poll.metrics[vertex])
    )


def starting(job: Mapping[str, Any]) -> str:
    """Why the tasks of a job do not all run; empty if they do."""
    if job["state"] != "RUNNING":
        return f"the job is {job['state']}"
    for vertex in job["vertices"]:
        running, wanted = int(vertex["tasks"].get("RUNNING", 0)), int(vertex["parallelism"])
        if running < wanted:
            return f"{vertex['name']}: {running} of {wanted} tasks run"
    return ""
