"""Import of the Alibaba 2018 batch trace: one row a task, the DAG encoded in task names.

`R4_2` is task 4 with parent 2, `J3_1_2` is task 3 with parents 1 and 2. Any other name
(`task_...`, `MergeTask`) has no parents. A task of the trace becomes a stage, and its instances
the stage's tasks. The trace has one start and one end time a task, so each instance of a stage
takes that whole time, on any executor.
"""

import re
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from loadmaster.envs.dag_scheduling.jobs import Job, Workload, build_workload, equal_tasks
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.errors import InputError
from loadmaster.envs.traces import CsvTable, read_csv, trace_path

COLUMNS = (
    "task_name", "instance_num", "job_name", "task_type", "status", "start_time", "end_time",
    "plan_cpu", "plan_mem",
)  # fmt: skip
_DAG_NAME = re.compile(r"[A-Za-z]+(\d+)((?:_\w*)?)")
_NAME_CUT = 50  # the trace cuts names here; the parents beyond are lost
_LONGEST_S = 1e12  # caps what is refused anyway, before it overflows
_SHORTEST_MS = 500  # of a task that began and ended within the same whole second


class _Task(NamedTuple):
    name: str
    instances: int
    duration_ms: int
    cpu: float
    memory: float


def load(settings: DagSchedulingSettings) -> Workload:
    path = trace_path(settings.workload, settings.data)
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
    jobs, unfinished = _finished_tasks(read_csv(path, COLUMNS, header_optional=True))
    skipped = dict.fromkeys(unfinished, "with unfinished tasks")  # job -> reason
    usable: dict[str, list[tuple[_Task, tuple[int, ...]]]] = {}
    for name, tasks in jobs.items():
        if name not in skipped:
            parents, fault = _dependencies(tasks)
            if fault:
                skipped[name] = fault
            else:
                usable[name] = list(zip(tasks, parents, strict=True))
    counts = Counter(skipped.values()).most_common()
    reasons = ", ".join(f"{count} {reason}" for reason, count in counts)
    if not usable:
        raise InputError(f"{path}: no usable job ({reasons or 'the file is empty'}); expected some")
    kept = [task for rows in usable.values() for task, _ in rows]
    most_cpu = max(task.cpu for task in kept) or 1.0
    most_memory = max(task.memory for task in kept) or 1.0
    templates = []
    for name, rows in usable.items():
        stages = (
            equal_tasks(
                task.instances,
                task.duration_ms,
                *parents,
                cpu=task.cpu / most_cpu,
                memory=task.memory / most_memory,
            )
            for task, parents in rows
        )
        templates.append(Job(name, tuple(stages)))
    description = f"{len(templates)} jobs of {path.name}"
    if reasons:
        description += f"; left out: {reasons}"
    try:
        return build_workload("alibaba", templates, description)
    except InputError as fault:
        raise InputError(f"{path}: {fault}") from None


def _finished_tasks(table: CsvTable) -> tuple[dict[str, list[_Task]], list[str]]:
    """Group the finished tasks by job; also list the jobs that have unfinished tasks."""
    finished = np.array([status == "Terminated" for status in table.text("status")], bool)
    unfinished = table.select(~finished).text("job_name")
    rows = table.select(finished)
    seconds = rows.numbers("end_time", least=None) - rows.numbers("start_time", least=None)
    jobs: dict[str, list[_Task]] = {}
    for job, name, instances, duration_s, cpu, memory in zip(
        rows.text("job_name"),
        rows.text("task_name"),
        rows.numbers("instance_num").tolist(),
        seconds.tolist(),
        rows.numbers("plan_cpu", blank=0.0).tolist(),
        rows.numbers("plan_mem", blank=0.0).tolist(),
        strict=True,
    ):
        if duration_s < 0:
            unfinished.append(job)
            continue
        duration_ms = round(min(duration_s, _LONGEST_S) * 1000) or _SHORTEST_MS
        jobs.setdefault(job, []).append(_Task(name, int(instances), duration_ms, cpu, memory))
    return jobs, unfinished


def _dependencies(tasks: list[_Task]) -> tuple[list[tuple[int, ...]], str | None]:
    """Return each task's parents as positions in the list, or why the DAG is not known."""
    number_of: dict[int, int] = {}
    parent_numbers = []
    for position, task in enumerate(tasks):
        match = _DAG_NAME.fullmatch(task.name)
        parent_numbers.append([int(n) for n in match[2].split("_") if n.isdigit()] if match else [])
        if match:
            if len(task.name) >= _NAME_CUT:
                return [], f"with names cut at {_NAME_CUT} characters"
            if number_of.setdefault(int(match[1]), position) != position:
                return [], "with two tasks of one number"
    if any(number not in number_of for numbers in parent_numbers for number in numbers):
        return [], "that wait for a task not in the file"
    return [tuple(number_of[n] for n in dict.fromkeys(numbers)) for numbers in parent_numbers], None
