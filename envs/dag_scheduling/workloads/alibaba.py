"""Imports batch jobs of the Alibaba 2018 cluster trace: one row a task, the DAG in its name.

`R4_2` is task 4 and waits for task 2, `J3_1_2` is task 3 and waits for 1 and 2. Any other name
(`task_...`, `MergeTask`) waits for nobody. A task of the trace is a stage here and its instances
are the stage's tasks. The trace tells one time a task, from its first instance's start to its last
one's end, so every instance of a stage takes that long, on any executor.
"""

from __future__ import annotations

import csv
import gzip
import math
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from loadmaster.envs.dag_scheduling.jobs import Job, Stage, Workload, build_workload
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.workloads.sources import data_path
from loadmaster.envs.errors import InputError

_DAG_NAME = re.compile(r"[A-Za-z]+(\d+)((?:_\w*)?)")
_NAME_CUT = 50  # the trace cuts names here; the parents beyond are lost
# Times are whole seconds, so a task that began and ended within one took less than that.
_SHORTEST_MS = 500


class _Row(NamedTuple):
    """The columns of the trace, in its order."""

    task_name: str
    instance_num: str
    job_name: str
    task_type: str
    status: str
    start_time: str
    end_time: str
    plan_cpu: str
    plan_mem: str


class _Task(NamedTuple):
    """What is known of a finished task."""

    name: str
    instances: int
    duration_ms: int
    cpu: float
    memory: float


def load(settings: DagSchedulingSettings) -> Workload:
    path = data_path(settings)
    if path.is_file():
        return _load(path)
    for folder in (path / "alibaba2018", path):
        files = sorted(folder.glob("batch_task*.csv*"))
        if len(files) > 1:
            raise InputError(f"{folder}: holds {len(files)} traces; name one as --set data=FILE")
        if files:
            return _load(files[0])
    raise InputError(f"{path}: no trace found; expected alibaba2018/batch_task_*.csv.gz in it")


@lru_cache(maxsize=2)
def _load(path: Path) -> Workload:
    jobs: dict[str, list[_Task]] = {}
    skipped: dict[str, str] = {}  # job -> why
    for line, row in _rows(path):
        task = _task(path, line, row)
        if task:
            jobs.setdefault(row.job_name, []).append(task)
        else:
            skipped[row.job_name] = "with unfinished tasks"
    usable: dict[str, list[tuple[_Task, tuple[int, ...]]]] = {}
    for name, tasks in jobs.items():
        if name not in skipped:
            parents, fault = _dependencies(tasks)
            if fault:
                skipped[name] = fault
            else:
                usable[name] = list(zip(tasks, parents, strict=True))
    reasons = Counter(skipped.values())
    told = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
    if not usable:
        raise InputError(f"{path}: no usable job ({told or 'the file is empty'}); expected some")
    kept = [task for rows in usable.values() for task, _ in rows]
    most_cpu = max(task.cpu for task in kept) or 1.0
    most_memory = max(task.memory for task in kept) or 1.0
    templates = [
        Job(name, tuple(_stage(task, parents, most_cpu, most_memory) for task, parents in rows))
        for name, rows in usable.items()
    ]
    described = f"{len(templates)} jobs of {path.name}"
    try:
        return build_workload(
            "alibaba", templates, f"{described}; left out: {told}" if told else described
        )
    except InputError as fault:  # a job that is no DAG: say also where it stands
        raise InputError(f"{path}: {fault}") from None


def _stage(task: _Task, parents: tuple[int, ...], most_cpu: float, most_memory: float) -> Stage:
    always = {1: [task.duration_ms]}
    return Stage(
        task.instances,
        parents,
        first=always,
        rest=always,
        fresh=always,
        cpu=task.cpu / most_cpu,
        memory=task.memory / most_memory,
    )


def _dependencies(tasks: list[_Task]) -> tuple[list[tuple[int, ...]], str | None]:
    """Each task's parents as positions in the list; or why the job's DAG cannot be known."""
    number_of: dict[int, int] = {}
    waits_for = []
    for position, task in enumerate(tasks):
        coded = _DAG_NAME.fullmatch(task.name)
        waits_for.append([int(n) for n in coded[2].split("_") if n.isdigit()] if coded else [])
        if coded:
            if len(task.name) >= _NAME_CUT:
                return [], f"with names cut at {_NAME_CUT} characters"
            if number_of.setdefault(int(coded[1]), position) != position:
                return [], "with two tasks of one number"
    if any(number not in number_of for numbers in waits_for for number in numbers):
        return [], "that wait for a task not in the file"
    return [tuple(number_of[n] for n in dict.fromkeys(numbers)) for numbers in waits_for], None


def _task(path: Path, line: int, row: _Row) -> _Task | None:
    """None for a task that never finished: its duration is not known."""
    if row.status != "Terminated":
        return None
    try:
        seconds = float(row.end_time) - float(row.start_time)
        instances = int(float(row.instance_num))
        cpu, memory = float(row.plan_cpu or 0), float(row.plan_mem or 0)
        if not all(map(math.isfinite, (seconds, cpu, memory))) or min(cpu, memory) < 0:
            raise ValueError
    except (ValueError, OverflowError):
        raise InputError(
            f"{path}, line {line}: expected numbers for instance_num {row.instance_num!r}, "
            f"start_time {row.start_time!r}, end_time {row.end_time!r}, "
            f"plan_cpu {row.plan_cpu!r} and plan_mem {row.plan_mem!r}"
        ) from None
    if seconds < 0:
        return None
    return _Task(row.task_name, instances, round(seconds * 1000) or _SHORTEST_MS, cpu, memory)


def _rows(path: Path) -> Iterator[tuple[int, _Row]]:
    """Line number and fields. The trace as released has no header line; samples often have."""
    opened = gzip.open if path.suffix == ".gz" else open
    columns = list(_Row._fields)
    pick = itemgetter(*range(len(columns)))
    try:
        with opened(path, "rt", newline="", encoding="utf-8") as text:
            reader = csv.reader(text)
            for number, fields in enumerate(reader):
                if number == 0 and ("task_name" in fields or "job_name" in fields):
                    columns = fields
                    missing = [column for column in _Row._fields if column not in columns]
                    if missing:
                        raise InputError(
                            f"{path}: no column {missing[0]!r}; expected {', '.join(_Row._fields)}"
                        )
                    pick = itemgetter(*map(columns.index, _Row._fields))
                elif len(fields) == len(columns):
                    yield reader.line_num, _Row._make(pick(fields))
                else:
                    raise InputError(
                        f"{path}, line {reader.line_num}: {len(fields)} fields; "
                        f"expected {len(columns)}"
                    )
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error):
        raise InputError(
            f"{path}: unreadable or damaged; expected a .csv or .csv.gz file"
        ) from None
