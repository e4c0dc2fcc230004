"""Conversion of Flink's REST answers into the state of a job, as SURE's endpoint takes it.

Pure functions: the caller polls Flink. docs/flink.md lists the paths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import NamedTuple

from pydantic import ValidationError

from loadmaster.envs.errors import InputError
from loadmaster.serving.systems.sure.flink_answers import (
    BUSY,
    NOTHING,
    SETTLE_S,
    FlinkPoll,
    Increase,
    TaskMetrics,
    check_polls,
    graph_of,
    increase,
    inputs_of,
    last_restart,
    metric_query,
    read_metrics,
)
from loadmaster.serving.systems.sure.records import DEFAULT_INSTANCES, Snapshots, Task
from loadmaster.serving.systems.sure.schema import WEEK_MIN, SureState

__all__ = ["Conversion", "FlinkPoll", "job_state", "metric_query"]

_MINUTE_S = 60.0
_EPOCH_WEEKDAY = 3  # 1970-01-01 was a Thursday; weeks begin on Monday


class Conversion(NamedTuple):
    """The state, and one line for each value that Flink did not report."""

    state: SureState
    notes: list[str]


def job_state(
    polls: Sequence[FlinkPoll], history: int = 60, max_instances: int = DEFAULT_INSTANCES
) -> Conversion:
    """Convert polls, the oldest first, into snapshots of the last `history` minutes.

    `max_instances`: the most that the cluster has for all tasks together.
    Polls may have any distance. A snapshot has the values of the last poll in its minute; rates
    and the use of buffers are means over the minute.
    """
    check_polls(polls)
    try:
        return _convert(polls, history, max_instances)
    except ValidationError as fault:
        first = fault.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise InputError(
            f"Flink's answers are no state of a job: {field}: {first['msg']}"
        ) from None


def _convert(polls: Sequence[FlinkPoll], history: int, max_instances: int) -> Conversion:
    newest = polls[-1]
    tasks, edges = graph_of(newest.job)
    inputs = inputs_of(newest.job)
    minutes: dict[int, _Minute] = {}
    notes: list[str] = []
    slack_s = min(median(b.time_s - a.time_s for a, b in pairwise(polls)), _MINUTE_S) / 2
    before: FlinkPoll | None = None
    for poll in polls:
        ago = int((newest.time_s - poll.time_s + slack_s) // _MINUTE_S)
        if not poll.is_running:
            notes.append(f"{ago} min ago: the job is {poll.job['state']}, poll not used")
            continue
        minute = minutes.setdefault(ago, _Minute(tasks, inputs))
        if poll.is_settled or ago == 0 or not minute.polled[0]:
            minute.parallelism = [poll.parallelism(vertex) for vertex in minute.vertices]
        if poll.is_settled:
            minute.add(poll, before)
            before = poll
        else:
            notes.append(
                f"{ago} min ago: less than {SETTLE_S:.0f} s after a start, metrics not used"
            )
    ages = sorted((ago for ago in minutes if ago < history), reverse=True)
    found = [[minutes[ago].values(k, ago, notes) for k in range(len(tasks))] for ago in ages]
    ages, rows = _filled(ages, found, tasks, notes)
    age, length = last_restart(polls)
    state = SureState(
        job=str(newest.job["name"]),
        tasks=tuple(tasks),
        edges=tuple(edges),
        snapshots=_snapshots(ages, [minutes[ago].parallelism for ago in ages], rows),
        time_of_week_min=(newest.time_s / 60 + _EPOCH_WEEKDAY * 1440) % WEEK_MIN,
        minutes_since_restart=age,
        restart_minutes=length,
        max_instances=max_instances,
    )
    return Conversion(state, notes)


class _Minute:
    """Polls of one minute. Flink's busy, idle and back-pressured times are means over 60 s."""

    def __init__(self, tasks: Sequence[Task], inputs: Mapping[str, list[str]]) -> None:
        self.tasks, self.inputs = tasks, inputs
        self.vertices = [task.id or task.name for task in tasks]
        self.parallelism = [0] * len(tasks)
        self.polled: list[list[TaskMetrics]] = [[] for _ in tasks]
        self.increases: list[list[Increase]] = [[] for _ in tasks]
        self.arrivals: list[list[tuple[float, float]]] = [[] for _ in tasks]  # and seconds

    def add(self, poll: FlinkPoll, before: FlinkPoll | None) -> None:
        for k, vertex in enumerate(self.vertices):
            self.polled[k].append(read_metrics(poll, vertex, self.inputs.get(vertex, [])))
            if before is None:
                continue
            self.increases[k].append(increase(poll, before, vertex))
            if self.tasks[k].source:
                self._add_arrivals(k, poll, before)

    def _add_arrivals(self, k: int, poll: FlinkPoll, before: FlinkPoll) -> None:
        """Records that a source read and those that its backlog grew by, with the time it was down.

        After a restart it reads again what came since the checkpoint, about as many as it read
        between the checkpoint and the restart, which are not counted any more.
        """
        now, then = (read_metrics(one, self.vertices[k], []).pending for one in (poll, before))
        growth = 0.0 if math.isnan(now - then) else now - then
        read = increase(poll, before, self.vertices[k]).records_out
        self.arrivals[k].append((read + growth, poll.time_s - before.time_s))

    def values(self, k: int, ago: int, notes: list[str]) -> TaskMetrics:
        """Return times and pending records of the last poll, the rates and mean use of buffers."""
        task, polled = self.tasks[k], self.polled[k]
        last = polled[-1] if polled else NOTHING
        rest = min(max(1000.0 - last.idle - last.blocked, 0.0), 1000.0)
        if polled and math.isnan(last.busy) and not math.isnan(rest):
            last = last._replace(busy=rest, busy_max=rest)
            notes.append(
                f"{ago} min ago: no {BUSY} of {task.name!r}, computed from idle and "
                "back-pressured time"
            )
        known = [one for one in self.increases[k] if not math.isnan(sum(one))]
        records_in, records_out, seconds = (sum(one[c] for one in known) for c in range(3))
        if task.source and known and not records_in:  # Flink counts none
            arrived, elapsed = (sum(column) for column in zip(*self.arrivals[k], strict=True))
            records_in, records_in_s = max(arrived, 0.0), elapsed
        else:
            records_in_s = seconds
        used = [values.buffers for values in polled if not math.isnan(values.buffers)]
        return last._replace(
            records_in=records_in / records_in_s if known else math.nan,
            records_out=records_out / seconds if known else math.nan,
            buffers=fmean(used) if used else math.nan,
            pending=last.pending if task.source else 0.0,
        )


def _filled(
    ages: list[int], found: list[list[TaskMetrics]], tasks: Sequence[Task], notes: list[str]
) -> tuple[list[int], list[list[TaskMetrics]]]:
    """Take what is missing from the snapshot before; leave out first snapshots that lack values."""
    rows: list[list[TaskMetrics]] = []
    lacking = ""
    for ago, row in zip(ages, found, strict=True):
        complete = []
        for k, (task, values) in enumerate(zip(tasks, row, strict=True)):
            names = [name for name in TaskMetrics._fields[:-1] if math.isnan(getattr(values, name))]
            if names:
                lacking = f"{', '.join(names)} of {task.name!r}"
            if names and rows:
                notes.append(f"{ago} min ago: no {lacking}, taken from the snapshot before")
                values = values._replace(**{name: getattr(rows[-1][k], name) for name in names})
            complete.append(values)
        if rows or not any(math.isnan(value) for values in complete for value in values[:-1]):
            rows.append(complete)
    if not rows:
        raise InputError(f"no minute has {lacking}, expected two polls with all metrics or more")
    return ages[len(ages) - len(rows) :], rows


def _snapshots(
    ages: list[int], parallelism: list[list[int]], rows: Sequence[Sequence[TaskMetrics]]
) -> Snapshots:
    def column(field: Callable[[TaskMetrics], float]) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(field(values) for values in row) for row in rows)

    return Snapshots(
        minutes_ago=tuple(ages),
        parallelism=tuple(map(tuple, parallelism)),
        busy_ms_per_s=column(lambda v: v.busy),
        busy_max_ms_per_s=column(lambda v: v.busy_max),
        idle_ms_per_s=column(lambda v: v.idle),
        backpressured_ms_per_s=column(lambda v: v.blocked),
        records_in_per_s=column(lambda v: v.records_in),
        records_out_per_s=column(lambda v: v.records_out),
        buffer_usage=column(lambda v: v.buffers),
        pending_records=tuple(
            tuple(None if math.isnan(v.pending) else v.pending for v in row) for row in rows
        ),
    )
