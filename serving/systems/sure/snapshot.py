"""From a state to the simulator's tables, which the policy observes as in training.

A state that is not consistent is refused by a ValidationError that names the field.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import Ints
from loadmaster.envs.stream_scaling import state as cols
from loadmaster.envs.stream_scaling.snapshot import JobSnapshot
from loadmaster.envs.stream_scaling.state import JobTables
from loadmaster.serving.system import field_error
from loadmaster.serving.systems.sure.job_graph import ParsedGraph, parse_graph
from loadmaster.serving.systems.sure.records import SNAPSHOTS_MAX, Snapshots, Task

Floats = NDArray[np.float64]

SECOND_MS, MINUTE_S = 1000.0, 60.0
MOST_MS = 1100.0  # busy, idle and backpressured of a second: metrics of different moments
RATIO_MIN = 15  # minutes whose means give the ratios of edges
DEFAULT_RESTART_MIN = 1.0
BACKLOG_MIN = 5  # minutes over which the growth of a backlog is measured
LEAST_RATE = 1e-3  # records a minute: fewer count as so many
LONGEST_S = 1e9
NAMED = 3  # tasks in a note


class JobFields(Protocol):
    """The fields of a state."""

    @property
    def job(self) -> str: ...
    @property
    def tasks(self) -> tuple[Task, ...]: ...
    @property
    def edges(self) -> tuple[tuple[str, ...], ...]: ...
    @property
    def snapshots(self) -> Snapshots: ...
    @property
    def time_of_week_min(self) -> float: ...
    @property
    def minutes_since_restart(self) -> float | None: ...
    @property
    def restart_minutes(self) -> float | None: ...
    @property
    def max_instances(self) -> int: ...


class Column(NamedTuple):
    """A table of a state, the simulator's column, and the factor between their units."""

    name: str
    metric: int
    factor: float


COLUMNS = (
    Column("parallelism", cols.PARALLELISM, 1.0),
    Column("busy_ms_per_s", cols.BUSY, 1 / SECOND_MS),
    Column("busy_max_ms_per_s", cols.HOT_BUSY, 1 / SECOND_MS),
    Column("idle_ms_per_s", cols.IDLE, 1 / SECOND_MS),
    Column("backpressured_ms_per_s", cols.BLOCKED, 1 / SECOND_MS),
    Column("records_in_per_s", cols.IN_RATE, MINUTE_S),
    Column("records_processed_per_s", cols.OUT_RATE, MINUTE_S),
    Column("buffer_usage", cols.BUFFER_USE, 1.0),
    Column("pending_records", cols.PENDING, 1.0),
)
OUT = "records_out_per_s"


@dataclass(frozen=True, eq=False)
class ParsedJob:
    """A state in tables; tasks are in an order in which parents come first."""

    names: tuple[str, ...]
    snapshot: JobSnapshot
    notes: tuple[str, ...]  # values that were not reported, and what was taken instead

    @cached_property
    def backlog(self) -> tuple[float, float]:
        """Seconds in which as much arrives as is pending, and the part of that that is added."""
        source = self.snapshot.job.source >= 0
        recent = self.snapshot.metrics[-BACKLOG_MIN:, source].astype(np.float64)
        known = recent[~np.isnan(recent[:, 0, cols.PARALLELISM])]
        arrived = max(float(known[:, :, cols.IN_RATE].sum(1).mean()), LEAST_RATE)
        pending = np.nan_to_num(known[:, :, cols.PENDING]).sum(1)
        minutes = np.flatnonzero(~np.isnan(recent[:, 0, cols.PARALLELISM]))
        grown = (pending[-1] - pending[0]) / max(int(minutes[-1] - minutes[0]), 1)
        return min(MINUTE_S * float(pending[-1]) / arrived, LONGEST_S), float(grown) / arrived

    def reported(self, minutes: int) -> int:
        """How many of the last minutes were reported."""
        known = ~np.isnan(self.snapshot.metrics[-minutes:, 0, cols.PARALLELISM])
        return int(known.sum())


def parse_job(state: JobFields) -> ParsedJob:
    """Check the state and lay it out; the first fault is raised as a ValidationError."""
    _check_shapes(state.snapshots, len(state.tasks))
    graph = parse_graph(state.job, state.tasks, state.edges)
    values = {name: np.array(table, np.float64) for name, table in _tables(state.snapshots)}
    _check_values(graph, values)
    notes = tuple(_fill_missing(state, graph.source, values))
    metrics = _metrics(state.snapshots.minutes_ago, values, graph.order)
    age = state.minutes_since_restart
    down_for = DEFAULT_RESTART_MIN if state.restart_minutes is None else state.restart_minutes
    snapshot = JobSnapshot(
        job=graph.tables._replace(ratio=_edge_ratios(graph.tables, metrics)),
        levels=graph.levels,
        metrics=metrics,
        parallelism=values["parallelism"][-1][graph.order].astype(np.int64),
        week_minute=round(state.time_of_week_min),
        restart_age_min=None if age is None else round(age),
        down_for_min=0.0 if age is None else down_for,
        plan_limit=state.max_instances,
    )
    return ParsedJob(graph.names, snapshot, notes)


def _check_shapes(snapshots: Snapshots, tasks: int) -> None:
    ages = snapshots.minutes_ago
    for row, (older, newer) in enumerate(pairwise(ages), start=1):
        if newer >= older:
            why = f"{newer:g} after {older:g}; expected the oldest snapshot first"
            raise field_error(("snapshots", "minutes_ago", row), why)
    if ages[-1] != 0:
        why = f"{ages[-1]:g}; expected 0, the last snapshot is that of now"
        raise field_error(("snapshots", "minutes_ago", len(ages) - 1), why)
    for name, table in _tables(snapshots):
        if len(table) != len(ages):
            why = f"{len(table)} rows; expected {len(ages)}, as many as minutes_ago"
            raise field_error(("snapshots", name), why)
        if set(map(len, table)) == {tasks}:
            continue
        for row, given in enumerate(table):
            if len(given) != tasks:
                why = f"{len(given)} values; expected {tasks}, one for each task"
                raise field_error(("snapshots", name, row), why)


def _tables(snapshots: Snapshots) -> Iterator[tuple[str, Any]]:
    """Names and (L, N) values of the tables that are given."""
    for name in (*(column.name for column in COLUMNS), OUT):
        if (table := getattr(snapshots, name)) is not None:
            yield name, table


def _check_values(graph: ParsedGraph, values: dict[str, Floats]) -> None:
    """Raise for instances above the maximum, and for more time than there is."""
    most = graph.most
    for row, task in _first(values["parallelism"] > most):
        why = f"{values['parallelism'][row, task]:g} instances; expected at most {most[task]}"
        raise field_error(("snapshots", "parallelism", row, task), f"{why}, its max_parallelism")
    parts = [values[name] for name in ("busy_ms_per_s", "idle_ms_per_s", "backpressured_ms_per_s")]
    total = np.nan_to_num(parts[0]) + parts[1] + parts[2]
    for row, task in _first(total > MOST_MS):
        why = f"busy, idle and backpressured time are {total[row, task]:g} ms of a second"
        field = ("snapshots", "busy_ms_per_s", row, task)
        raise field_error(field, f"{why}; expected about 1000")


def _first(wrong: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """The place of the first that is wrong, if any is."""
    if wrong.any():
        row, task = np.unravel_index(int(wrong.argmax()), wrong.shape)
        yield int(row), int(task)


def _fill_missing(
    state: JobFields, source: NDArray[np.bool_], values: dict[str, Floats]
) -> Iterator[str]:
    """Replace what tasks do not report; yield notes on what Flink usually has."""
    for name in ("busy_ms_per_s", "busy_max_ms_per_s", "records_in_per_s"):
        for row, task in _first(np.isnan(values[name]) & ~source):
            why = "null; expected a number, which only sources may lack"
            raise field_error(("snapshots", name, row, task), why)
    busy, hot = values["busy_ms_per_s"], values["busy_max_ms_per_s"]
    left = SECOND_MS - values["idle_ms_per_s"] - values["backpressured_ms_per_s"]
    missing = np.isnan(busy)
    if missing.any():
        busy[missing] = np.maximum(left, 0.0)[missing]
        lacking = _named(state.tasks, missing)
        yield f"busy time of {lacking} not reported: taken from idle and backpressured time"
    hot[np.isnan(hot)] = busy[np.isnan(hot)]
    arrived, read, pending = (values[name] for name in ("records_in_per_s", OUT, "pending_records"))
    uncounted = source & ~np.nan_to_num(arrived).any(0) & read.any(0)
    missing = np.isnan(arrived) | np.broadcast_to(uncounted, arrived.shape)
    if missing.any():
        growth = np.zeros_like(read)
        minutes = -np.diff(np.array(state.snapshots.minutes_ago))[:, None]
        growth[1:] = np.nan_to_num(np.diff(pending, axis=0) / (MINUTE_S * minutes))
        arrived[missing] = np.maximum(read + growth, 0.0)[missing]
    values.setdefault("records_processed_per_s", np.where(source, read, arrived))
    unknown = np.isnan(pending) & source
    if unknown.any():
        yield f"pending records of {_named(state.tasks, unknown)} not reported"


def _named(tasks: tuple[Task, ...], of: NDArray[np.bool_]) -> str:
    """Names of the tasks with a true value in a column."""
    found = [tasks[place].name for place in np.flatnonzero(np.any(of, axis=0)).tolist()]
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return ", ".join(found[:NAMED]) + more


def _metrics(
    minutes_ago: tuple[float, ...], values: dict[str, Floats], order: Ints
) -> NDArray[np.float32]:
    """(R, N, METRIC_COLUMNS) by minute; of two snapshots in one minute the later counts."""
    ages = np.rint(np.array(minutes_ago)).astype(np.int64)
    minutes = min(int(ages[0]) + 1, SNAPSHOTS_MAX)
    kept = ages < minutes
    metrics = np.full((minutes, len(order), cols.METRIC_COLUMNS), np.nan, np.float32)
    rows = minutes - 1 - ages[kept]
    metrics[rows, :, cols.QUEUED] = 0.0  # nothing that decides reads it
    for column in COLUMNS:
        metrics[rows, :, column.metric] = values[column.name][kept][:, order] * column.factor
    return metrics


def _edge_ratios(job: JobTables, metrics: NDArray[np.float32]) -> Floats:
    """(E,) records on an edge for each that its parent processes, by the means of the last minutes.

    A task's parents are taken to have equal ratios, since metrics do not tell them apart.
    """
    recent = metrics[-RATIO_MIN:]
    recent = recent[~np.isnan(recent[:, 0, cols.PARALLELISM])].astype(np.float64)
    arrived, finished = recent[:, :, cols.IN_RATE].mean(0), recent[:, :, cols.OUT_RATE].mean(0)
    parents = np.bincount(job.child, minlength=len(job.cap))
    emitted = np.bincount(job.child, finished[job.parent], len(job.cap))
    equal = 1.0 / np.maximum(parents, 1)
    ratio: Any = np.where(emitted > 0, arrived / np.where(emitted > 0, emitted, 1.0), equal)
    return np.asarray(ratio[job.child], np.float64)
