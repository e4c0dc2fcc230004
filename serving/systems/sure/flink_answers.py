"""Flink's REST answers of one poll: their shape, and the values that SURE's state needs of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from loadmaster.envs.errors import InputError, counted, unknown_name
from loadmaster.serving.systems.sure.records import Task

Json = Mapping[str, Any]

BUSY, IDLE = "busyTimeMsPerSecond", "idleTimeMsPerSecond"
BLOCKED = "backPressuredTimeMsPerSecond"
RECORDS_IN, RECORDS_OUT = "numRecordsIn", "numRecordsOut"
BUFFERS_IN = "Shuffle.Netty.Input.Buffers.inPoolUsage"  # 0 if the parent is in the same process
BUFFERS_OUT = "Shuffle.Netty.Output.Buffers.outPoolUsage"
PENDING = ".pendingRecords"  # its name begins with that of an operator
METRICS = (BUSY, IDLE, BLOCKED, RECORDS_IN, RECORDS_OUT, BUFFERS_IN, BUFFERS_OUT)

HASH = "HASH"  # the ship strategy of keyed inputs
RESTORED = "restoredInMillis"  # of a rescale: until tasks process records, where the caller knows
SETTLE_S = 12.0  # after a start Flink reports every task as busy, and counters of before
RUNNING = "RUNNING"


@dataclass(frozen=True)
class FlinkPoll:
    """Parsed answers of one poll."""

    time_s: float  # Unix time
    job: Json  # GET /jobs/:id
    metrics: Mapping[str, Sequence[Json]]  # by vertex: .../subtasks/metrics?get=...&agg=sum,avg,max
    rescales: Json | None = None  # GET /jobs/:id/rescales/overview, of Flink 2.3 and later

    @property
    def is_running(self) -> bool:
        return bool(self.job["state"] == RUNNING)

    @property
    def started_ms(self) -> int:
        """Time at which the present execution of the job began, by Flink's clock."""
        return max(int(vertex["start-time"]) for vertex in self.job["vertices"])

    @property
    def seconds_up(self) -> float:
        return (int(self.job["now"]) - self.started_ms) / 1000

    @property
    def is_settled(self) -> bool:
        """Whether the metrics are those of the present execution."""
        return self.seconds_up >= SETTLE_S

    def parallelism(self, vertex: str) -> int:
        return int(next(v["parallelism"] for v in self.job["vertices"] if v["id"] == vertex))

    def metric(self, vertex: str, name: str, aggregate: str) -> float:
        """NaN if Flink did not report it."""
        for metric in self.metrics[vertex]:
            if metric["id"] == name:
                try:
                    return float(metric.get(aggregate, math.nan))  # Flink sends "NaN" as text
                except (TypeError, ValueError):
                    raise InputError(
                        f"{aggregate} of {name} of vertex {vertex!r} is {metric[aggregate]!r}, "
                        "expected a number"
                    ) from None
        return math.nan


class TaskMetrics(NamedTuple):
    """Metrics of one task at a poll or in a minute; NaN where Flink reported none."""

    busy: float
    busy_max: float
    idle: float
    blocked: float
    records_in: float  # counted so far at a poll, a second in a minute
    records_out: float
    buffers: float
    pending: float


NOTHING = TaskMetrics(*[math.nan] * len(TaskMetrics._fields))


class Increase(NamedTuple):
    """Records of a task between two polls."""

    records_in: float
    records_out: float
    seconds: float


def metric_query(listed: Iterable[str]) -> str:
    """Return the value of `get=`, of the metrics that a vertex lists."""
    return ",".join(name for name in listed if name in METRICS or name.endswith(PENDING))


def inputs_of(job: Json) -> dict[str, list[str]]:
    """Return the parents of each vertex."""
    return {n["id"]: [i["id"] for i in n.get("inputs", ())] for n in job["plan"]["nodes"]}


def graph_of(job: Json) -> tuple[list[Task], list[tuple[str, str]]]:
    """Return the tasks and the edges of the plan; equal names get the vertex id."""
    inputs = inputs_of(job)
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
            keyed=_is_keyed(job, vertex["id"]),
        )
        for vertex in job["vertices"]
    ]
    return tasks, [(names[p], names[child]) for child, parents in inputs.items() for p in parents]


def _is_keyed(job: Json, vertex: str) -> bool:
    """Whether an input is distributed by keys; sources, and inputs of unknown kind, count as so."""
    inputs = next((n.get("inputs", ()) for n in job["plan"]["nodes"] if n["id"] == vertex), ())
    kinds = {one.get("ship_strategy") for one in inputs}
    return not kinds or None in kinds or HASH in kinds


def read_metrics(poll: FlinkPoll, vertex: str, parents: Sequence[str]) -> TaskMetrics:
    """Return the metrics of a vertex; records are those counted so far."""
    names = [metric["id"] for metric in poll.metrics[vertex]]
    pending = [poll.metric(vertex, name, "sum") for name in names if name.endswith(PENDING)]
    buffers = [poll.metric(vertex, BUFFERS_IN, "avg")] if parents else [0.0]
    buffers += [poll.metric(parent, BUFFERS_OUT, "avg") for parent in parents]
    return TaskMetrics(
        busy=poll.metric(vertex, BUSY, "avg"),
        busy_max=poll.metric(vertex, BUSY, "max"),
        idle=poll.metric(vertex, IDLE, "avg"),
        blocked=poll.metric(vertex, BLOCKED, "avg"),
        records_in=poll.metric(vertex, RECORDS_IN, "sum"),
        records_out=poll.metric(vertex, RECORDS_OUT, "sum"),
        buffers=max((min(use, 1.0) for use in buffers if not math.isnan(use)), default=math.nan),
        pending=sum(pending) if pending else math.nan,
    )


def increase(poll: FlinkPoll, before: FlinkPoll, vertex: str) -> Increase:
    """Return the records since the poll before, or since a restart, which sets counters to 0."""
    seconds = poll.time_s - before.time_s
    now, then = (
        [p.metric(vertex, name, "sum") for name in (RECORDS_IN, RECORDS_OUT)]
        for p in (poll, before)
    )
    if poll.started_ms != before.started_ms:
        return Increase(now[0], now[1], min(seconds, poll.seconds_up))
    if now[0] < then[0] or now[1] < then[1]:
        return Increase(now[0], now[1], seconds)
    return Increase(now[0] - then[0], now[1] - then[1], seconds)


def last_restart(polls: Sequence[FlinkPoll]) -> tuple[float | None, float | None]:
    """Return minutes since the last restart began, and its length by the history of rescales."""
    newest = polls[-1]
    started, now = newest.started_ms, int(newest.job["now"])
    last = ((newest.rescales or {}).get("latest") or {}).get("completed")
    if last is not None and abs(started - last["endTimestampInMillis"]) < SETTLE_S * 1000:
        if last["triggerCause"] == "INITIAL_SCHEDULE":
            return None, None
        states = {state["state"]: state for state in last.get("schedulerStates", ())}
        began = states.get("Restarting", {}).get(  # until then the job runs and waits for a trigger
            "enterTimestampInMillis", last["startTimestampInMillis"]
        )
        ended = last["endTimestampInMillis"] + (last.get(RESTORED) or 0)  # Flink ends it before
        return (now - began) / 60_000, (ended - began) / 60_000
    if any(not poll.is_running or poll.started_ms < started for poll in polls):
        return (now - started) / 60_000, None
    return None, None


def check_polls(polls: Sequence[FlinkPoll]) -> None:
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
        if poll.is_running:
            _check_vertices(place, poll, [vertex["id"] for vertex in newest["vertices"]])
    if not polls[-1].is_running:
        raise InputError(f"the newest poll has the job {newest['state']}, expected {RUNNING}")


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
