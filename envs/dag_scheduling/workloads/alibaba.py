"""Import of the Alibaba 2018 batch trace (`envs/alibaba.py`).

A task of the trace becomes a stage, and its instances the stage's tasks. The trace has one start
and one end time a task, so each instance of a stage takes that whole time, on any executor.
"""

from collections import Counter
from functools import lru_cache
from pathlib import Path

from loadmaster.envs.alibaba import COLUMNS, TraceTask, dependencies, finished_tasks
from loadmaster.envs.dag_scheduling.jobs import (
    Job,
    RecordedJob,
    Workload,
    build_workload,
    equal_tasks,
)
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.errors import InputError
from loadmaster.envs.traces import read_csv, trace_path


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
    recorded, reasons = read_jobs(path)
    description = f"{len(recorded)} jobs of {path.name}"
    if reasons:
        description += f"; left out: {reasons}"
    try:
        return build_workload("alibaba", [each.job for each in recorded], description)
    except InputError as fault:
        raise InputError(f"{path}: {fault}") from None


def read_jobs(path: Path) -> tuple[list[RecordedJob], str]:
    """Jobs of a trace in its order, each with the start of its first task; what was left out."""
    jobs, unfinished = finished_tasks(read_csv(path, COLUMNS, header_optional=True))
    skipped = dict.fromkeys(unfinished, "with unfinished tasks")  # job -> reason
    usable: dict[str, list[tuple[TraceTask, tuple[int, ...]]]] = {}
    for name, tasks in jobs.items():
        if name not in skipped:
            parents, fault = dependencies(tasks)
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
    recorded = []
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
        arrival_s = min(task.start_s for task, _ in rows)
        recorded.append(RecordedJob(arrival_s, Job(name, tuple(stages))))
    return recorded, reasons
