"""Jobs of the Alibaba 2018 batch trace: one row a task, the DAG encoded in task names.

`R4_2` is task 4 with parent 2, `J3_1_2` is task 3 with parents 1 and 2. Any other name
(`task_...`, `MergeTask`) has no parents.
"""

import re
from typing import NamedTuple

import numpy as np

from loadmaster.envs.traces import CsvTable

COLUMNS = (
    "task_name", "instance_num", "job_name", "task_type", "status", "start_time", "end_time",
    "plan_cpu", "plan_mem",
)  # fmt: skip
_DAG_NAME = re.compile(r"[A-Za-z]+(\d+)((?:_\w*)?)")
_NAME_CUT = 50  # the trace cuts names here; the parents beyond are lost
_LONGEST_S = 1e12  # caps what is refused anyway, before it overflows
_SHORTEST_MS = 500  # of a task that began and ended within the same whole second


class TraceTask(NamedTuple):
    name: str
    instances: int
    duration_ms: int
    cpu: float
    memory: float
    start_s: float


def finished_tasks(
    table: CsvTable, group: str = "job_name"
) -> tuple[dict[str, list[TraceTask]], list[str]]:
    """Finished tasks by the column `group`; also the jobs that have unfinished tasks."""
    finished = np.array([status == "Terminated" for status in table.text("status")], bool)
    unfinished = table.select(~finished).text(group)
    rows = table.select(finished)
    starts = rows.numbers("start_time", least=None)
    seconds = rows.numbers("end_time", least=None) - starts
    jobs: dict[str, list[TraceTask]] = {}
    for job, name, instances, duration_s, cpu, memory, start_s in zip(
        rows.text(group),
        rows.text("task_name"),
        rows.numbers("instance_num").tolist(),
        seconds.tolist(),
        rows.numbers("plan_cpu", blank=0.0).tolist(),
        rows.numbers("plan_mem", blank=0.0).tolist(),
        starts.tolist(),
        strict=True,
    ):
        if duration_s < 0:
            unfinished.append(job)
            continue
        duration_ms = round(min(duration_s, _LONGEST_S) * 1000) or _SHORTEST_MS
        task = TraceTask(name, int(instances), duration_ms, cpu, memory, start_s)
        jobs.setdefault(job, []).append(task)
    return jobs, unfinished


def dependencies(tasks: list[TraceTask]) -> tuple[list[tuple[int, ...]], str | None]:
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
