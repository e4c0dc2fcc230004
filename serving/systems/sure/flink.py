"""Conversion of Flink's REST answers into the state of a job, as SURE's endpoint takes it.

Pure functions: the caller polls Flink. docs/flink.md lists the paths.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Any, NamedTuple, TypedDict

from loadmaster.envs.errors import InputError, counted, unknown_name

Json = Mapping[str, Any]
_Increase = tuple[float, float, float]  # records in, records out, the seconds of both

BUSY, IDLE = "busyTimeMsPerSecond", "idleTimeMsPerSecond"
BLOCKED = "backPressuredTimeMsPerSecond"
RECORDS_IN, RECORDS_OUT = "numRecordsIn", "numRecordsOut"
BUFFERS_IN = "Shuffle.Netty.Input.Buffers.inPoolUsage"  # 0 if the parent is in the same process
BUFFERS_OUT = "Shuffle.Netty.Output.Buffers.outPoolUsage"
PENDING = ".pendingRecords"  # its name begins with that of an operator
METRICS = (BUSY, IDLE, BLOCKED, RECORDS_IN, RECORDS_OUT, BUFFERS_IN, BUFFERS_OUT)

SETTLE_S = 12.0  # after a start Flink reports every task as busy, and counters of before
_MINUTE_S, _WEEK_MIN = 60.0, 10_080.0
_EPOCH_WEEKDAY = 3  # 1970-01-01 was a Thursday; weeks begin on Monday


class Task(TypedDict):
    """A vertex of the job."""

    name: str
    id: str
    max_parallelism: int
    source: bool
    sink: bool


class Snapshots(TypedDict):
    """L snapshots, the oldest first; tables have L rows of one value a task."""

    minutes_ago: list[int]  # ascending in time; minutes without a poll are left out
    parallelism: list[list[int]]
    busy_ms_per_s: list[list[float]]  # mean of the subtasks
    busy_max_ms_per_s: list[list[float]]
    idle_ms_per_s: list[list[float]]
    backpressured_ms_per_s: list[list[float]]
    records_in_per_s: list[list[float]]
    records_out_per_s: list[list[float]]
    buffer_usage: list[list[float]]  # 0 to 1
    pending_records: list[list[float | None]]  # of sources; 0 for other tasks; None: not reported


class JobState(TypedDict):
    """State of a job, as SURE's endpoint takes it."""

    job: str
    tasks: list[Task]
    edges: list[tuple[str, str]]  # names of the tasks
    snapshots: Snapshots
    time_of_week_min: float  # UTC, of the newest snapshot; Monday 00:00 is 0
    minutes_since_restart: float | None
    restart_minutes: float | None


class Conversion(NamedTuple):
    """The state, and one line for each value that Flink did not report."""

    state: JobState
    notes: list[str]


@dataclass(frozen=True)
class FlinkPoll:
    """Parsed answers of one poll."""

    time_s: float  # Unix time
    job: Json  # GET /jobs/:id
    metrics: Mapping[str, Sequence[Json]]  # by vertex: .../subtasks/metrics?get=...&agg=sum,avg,max
    rescales: Json | None = None  # GET /jobs/:id/rescales/overview, of Flink 2.3 and later


class _Values(NamedTuple):
    """Metrics of one task at a poll or in a minute; NaN where Flink reported none."""

    busy: float
    busy_max: float
    idle: float
    blocked: float
    records_in: float  # counted so far at a poll, a second in a minute
    records_out: float
    buffers: float
    pending: float


def metric_query(listed: Iterable[str]) -> str:
    """Return the value of `get=`, of the metrics that a vertex lists."""
    return ",".join(name for name in listed if name in METRICS or name.endswith(PENDING))


def job_state(polls: Sequence[FlinkPoll], history: int = 60) -> Conversion:
    """Convert polls, the oldest first, into snapshots of the last `history` minutes.

    Polls may have any distance. A snapshot has the values of the last poll in its minute; rates
    and the use of buffers are means over the minute.
    """
    _check(polls)
    newest = polls[-1]
    tasks, edges = _graph(newest.job)
    minutes: dict[int, _Minute] = {}
    notes: list[str] = []
    slack_s = min(median(b.time_s - a.time_s for a, b in pairwise(polls)), _MINUTE_S) / 2
    before: FlinkPoll | None = None
    for poll in polls:
        ago = int((newest.time_s - poll.time_s + slack_s) // _MINUTE_S)
        if poll.job["state"] != "RUNNING":
            notes.append(f"{ago} min ago: the job is {poll.job['state']}, poll not used")
            continue
        minute = minutes.setdefault(ago, _Minute(tasks, _inputs(newest.job)))
        settled = _seconds_up(poll) >= SETTLE_S
        if settled or ago == 0 or not minute.polled[0]:
            minute.parallelism = [_vertex(poll, task["id"])["parallelism"] for task in tasks]
        if settled:
            minute.add(poll, before)
            before = poll
        else:
            notes.append(
                f"{ago} min ago: less than {SETTLE_S:.0f} s after a start, metrics not used"
            )
    ages = sorted((ago for ago in minutes if ago < history), reverse=True)
    found = [[minutes[ago].values(k, ago, notes) for k in range(len(tasks))] for ago in ages]
    ages, rows = _filled(ages, found, tasks, notes)
    age, length = _last_restart(polls)
    state = JobState(
        job=str(newest.job["name"]),
        tasks=tasks,
        edges=edges,
        snapshots=_snapshots(ages, [minutes[ago].parallelism for ago in ages], rows),
        time_of_week_min=(newest.time_s / 60 + _EPOCH_WEEKDAY * 1440) % _WEEK_MIN,
        minutes_since_restart=age,
        restart_minutes=length,
    )
    return Conversion(state, notes)


class _Minute:
    """Polls of one minute. Flink's busy, idle and back-pressured times are means over 60 s."""

    def __init__(self, tasks: Sequence[Task], inputs: Mapping[str, list[str]]) -> None:
        self.tasks, self.inputs = tasks, inputs
        self.parallelism = [0] * len(tasks)
        self.polled: list[list[_Values]] = [[] for _ in tasks]
        self.increases: list[list[_Increase]] = [[] for _ in tasks]

    def add(self, poll: FlinkPoll, before: FlinkPoll | None) -> None:
        for k, task in enumerate(self.tasks):
            self.polled[k].append(_read(poll, task["id"], self.inputs.get(task["id"], [])))
            if before is not None:
                self.increases[k].append(_increase(poll, before, task["id"]))

    def values(self, k: int, ago: int, notes: list[str]) -> _Values:
        """Return times and pending records of the last poll, the rates and mean use of buffers."""
        task, polled = self.tasks[k], self.polled[k]
        last = polled[-1] if polled else _Values(*[math.nan] * len(_Values._fields))
        rest = min(max(1000.0 - last.idle - last.blocked, 0.0), 1000.0)
        if polled and math.isnan(last.busy) and not math.isnan(rest):
            last = last._replace(busy=rest, busy_max=rest)
            notes.append(
                f"{ago} min ago: no {BUSY} of {task['name']!r}, computed from idle and "
                "back-pressured time"
            )
        known = [increase for increase in self.increases[k] if not math.isnan(sum(increase))]
        records_in, records_out, seconds = (sum(i[c] for i in known) for c in range(3))
        used = [values.buffers for values in polled if not math.isnan(values.buffers)]
        return last._replace(
            records_in=records_in / seconds if known else math.nan,
            records_out=records_out / seconds if known else math.nan,
            buffers=fmean(used) if used else math.nan,
            pending=last.pending if task["source"] else 0.0,
        )


def _filled(
    ages: list[int], found: list[list[_Values]], tasks: Sequence[Task], notes: list[str]
) -> tuple[list[int], list[list[_Values]]]:
    """Take what is missing from the snapshot before; leave out first snapshots that lack values."""
    rows: list[list[_Values]] = []
    lacking = ""
    for ago, row in zip(ages, found, strict=True):
        complete = []
        for k, (task, values) in enumerate(zip(tasks, row, strict=True)):
            names = [name for name in _Values._fields[:-1] if math.isnan(getattr(values, name))]
            if names:
                lacking = f"{', '.join(names)} of {task['name']!r}"
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
    ages: list[int], parallelism: list[list[int]], rows: Sequence[Sequence[_Values]]
) -> Snapshots:
    def column(field: Callable[[_Values], float]) -> list[list[float]]:
        return [[field(values) for values in row] for row in rows]

    return Snapshots(
        minutes_ago=ages,
        parallelism=parallelism,
        busy_ms_per_s=column(lambda v: v.busy),
        busy_max_ms_per_s=column(lambda v: v.busy_max),
        idle_ms_per_s=column(lambda v: v.idle),
        backpressured_ms_per_s=column(lambda v: v.blocked),
        records_in_per_s=column(lambda v: v.records_in),
        records_out_per_s=column(lambda v: v.records_out),
        buffer_usage=column(lambda v: v.buffers),
        pending_records=[[None if math.isnan(v.pending) else v.pending for v in r] for r in rows],
    )


def _check(polls: Sequence[FlinkPoll]) -> None:
    """Refuse polls that do not describe one job in order of time."""
    if len(polls) < 2:
        raise InputError(
            f"{counted(len(polls), 'poll')}, expected 2 or more: rates are differences"
        )
    newest = polls[-1].job
    for place, poll in enumerate(polls):
        for name in ("jid", "name", "state", "now", "vertices", "plan"):
            if name not in poll.job:
                raise InputError(f"poll {place}: job has no {name!r}, expected GET /jobs/:id")
        if place and poll.time_s <= polls[place - 1].time_s:
            raise InputError(
                f"poll {place}: not later than poll {place - 1}, expected the oldest first"
            )
        if poll.job["jid"] != newest["jid"]:
            raise InputError(
                f"poll {place}: job {poll.job['jid']!r}, expected that of the newest poll, "
                f"{newest['jid']!r}"
            )
        if poll.job["state"] == "RUNNING":
            _check_vertices(place, poll, [vertex["id"] for vertex in newest["vertices"]])
    if newest["state"] != "RUNNING":
        raise InputError(f"the newest poll has the job {newest['state']}, expected RUNNING")


def _check_vertices(place: int, poll: FlinkPoll, expected: list[str]) -> None:
    vertices = [vertex["id"] for vertex in poll.job["vertices"]]
    if vertices != expected:
        raise InputError(
            f"poll {place}: vertices {', '.join(vertices)}, expected those of the newest poll, "
            f"{', '.join(expected)}"
        )
    for vertex in poll.metrics:
        if vertex not in expected:
            raise unknown_name(f"vertex in metrics of poll {place}:", vertex, expected)
    for vertex in expected:
        if vertex not in poll.metrics:
            raise InputError(f"poll {place}: no metrics of vertex {vertex!r}, expected an answer")


def _inputs(job: Json) -> dict[str, list[str]]:
    """Return the parents of each vertex."""
    return {n["id"]: [i["id"] for i in n.get("inputs", ())] for n in job["plan"]["nodes"]}


def _graph(job: Json) -> tuple[list[Task], list[tuple[str, str]]]:
    """Return the tasks and the edges of the plan; equal names get the vertex id."""
    inputs = _inputs(job)
    feeding = {parent for parents in inputs.values() for parent in parents}
    shown = Counter(vertex["name"] for vertex in job["vertices"])
    names = {
        v["id"]: v["name"] if shown[v["name"]] == 1 else f"{v['name']} ({v['id']})"
        for v in job["vertices"]
    }
    for vertex in {*inputs, *feeding} - names.keys():
        raise unknown_name("vertex in the plan:", vertex, names)
    tasks = [
        Task(
            name=names[vertex["id"]],
            id=vertex["id"],
            max_parallelism=vertex["maxParallelism"],
            source=not inputs.get(vertex["id"]),
            sink=vertex["id"] not in feeding,
        )
        for vertex in job["vertices"]
    ]
    return tasks, [(names[p], names[child]) for child, parents in inputs.items() for p in parents]


def _vertex(poll: FlinkPoll, vertex: str) -> Json:
    found: Json = next(v for v in poll.job["vertices"] if v["id"] == vertex)
    return found


def _started_ms(poll: FlinkPoll) -> int:
    """Time at which the present execution of the job began, by Flink's clock."""
    return max(int(vertex["start-time"]) for vertex in poll.job["vertices"])


def _seconds_up(poll: FlinkPoll) -> float:
    return (int(poll.job["now"]) - _started_ms(poll)) / 1000


def _metric(poll: FlinkPoll, vertex: str, name: str, aggregate: str) -> float:
    for metric in poll.metrics[vertex]:
        if metric["id"] == name:
            try:
                return float(metric.get(aggregate, math.nan))  # Flink sends "NaN" as text
            except (TypeError, ValueError):
                raise InputError(
                    f"{aggregate} of {name} of vertex {vertex!r} is {metric[aggregate]!r}, "
                    "expected a number"
                ) from None
    return math.nan


def _read(poll: FlinkPoll, vertex: str, parents: list[str]) -> _Values:
    names = [metric["id"] for metric in poll.metrics[vertex]]
    pending = [_metric(poll, vertex, name, "sum") for name in names if name.endswith(PENDING)]
    buffers = [_metric(poll, vertex, BUFFERS_IN, "avg")] if parents else [0.0]
    buffers += [_metric(poll, parent, BUFFERS_OUT, "avg") for parent in parents]
    return _Values(
        busy=_metric(poll, vertex, BUSY, "avg"),
        busy_max=_metric(poll, vertex, BUSY, "max"),
        idle=_metric(poll, vertex, IDLE, "avg"),
        blocked=_metric(poll, vertex, BLOCKED, "avg"),
        records_in=_metric(poll, vertex, RECORDS_IN, "sum"),
        records_out=_metric(poll, vertex, RECORDS_OUT, "sum"),
        buffers=max((min(use, 1.0) for use in buffers if not math.isnan(use)), default=math.nan),
        pending=sum(pending) if pending else math.nan,
    )


def _increase(poll: FlinkPoll, before: FlinkPoll, vertex: str) -> _Increase:
    """Return the records since the poll before, or since a restart, which sets counters to 0."""
    seconds = poll.time_s - before.time_s
    now, then = (
        [_metric(p, vertex, name, "sum") for name in (RECORDS_IN, RECORDS_OUT)]
        for p in (poll, before)
    )
    if _started_ms(poll) != _started_ms(before):
        return now[0], now[1], min(seconds, _seconds_up(poll))
    if now[0] < then[0] or now[1] < then[1]:
        return now[0], now[1], seconds
    return now[0] - then[0], now[1] - then[1], seconds


def _last_restart(polls: Sequence[FlinkPoll]) -> tuple[float | None, float | None]:
    """Return minutes since the last restart began, and its length by the history of rescales."""
    newest = polls[-1]
    started, now = _started_ms(newest), int(newest.job["now"])
    last = ((newest.rescales or {}).get("latest") or {}).get("completed")
    if last is not None and abs(started - last["endTimestampInMillis"]) < SETTLE_S * 1000:
        if last["triggerCause"] == "INITIAL_SCHEDULE":
            return None, None
        states = {state["state"]: state for state in last.get("schedulerStates", ())}
        began = states.get("Restarting", {}).get(  # until then the job runs and waits for a trigger
            "enterTimestampInMillis", last["startTimestampInMillis"]
        )
        ended = last["endTimestampInMillis"]
        return (now - began) / 60_000, (ended - began) / 60_000
    if any(poll.job["state"] != "RUNNING" or _started_ms(poll) < started for poll in polls):
        return (now - started) / 60_000, None
    return None, None
