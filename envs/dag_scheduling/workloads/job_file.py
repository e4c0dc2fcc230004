"""Workload `jobs`: DAGs in a file of JSON lines, one job a line, with their arrival times.

    {"name": "q3", "arrival_s": 12.5, "stages": [
        {"tasks": 8, "parents": [], "first_ms": [900, 950], "rest_ms": [400], "fresh_ms": [1500]},
        {"tasks": 2, "parents": [0], "first_ms": [300]}]}

Parents are places in the list of stages. `first_ms`, `rest_ms` and `fresh_ms` are durations of
single tasks, as in profiles; at least one of them is not empty. Optional: `rest_ms`, `fresh_ms`,
and `cpu` and `memory`, the demand of a task between 0 and 1. `loadmaster fit` writes such files.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from loadmaster.envs.dag_scheduling.jobs import Job, RecordedJob, Stage, Workload, build_workload
from loadmaster.envs.dag_scheduling.profiles import Durations, Waves
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.errors import InputError
from loadmaster.envs.traces import read_lines, trace_path

NAME = "jobs.jsonl"
LEVEL = 1  # one list serves any number of executors
WAVES = ("first_ms", "rest_ms", "fresh_ms")
_JOB_KEYS = {"name", "arrival_s", "stages"}
_STAGE_KEYS = {"tasks", "parents", "cpu", "memory", *WAVES}


def load(settings: DagSchedulingSettings) -> Workload:
    path = trace_path(settings.workload, settings.data)
    if path.is_dir():
        path = path / NAME
    if not path.is_file():
        raise InputError(f"{path}: no such file; expected jobs in JSON lines")
    return _load(path)


@lru_cache(maxsize=4)
def _load(path: Path) -> Workload:
    recorded = read_jobs(path)
    try:
        jobs = [each.job for each in recorded]
        return build_workload("jobs", jobs, f"{len(jobs)} jobs of {path.name}")
    except InputError as fault:
        raise InputError(f"{path}: {fault}") from None


def read_jobs(path: Path) -> list[RecordedJob]:
    """Jobs in the order of the file; a fault names file, line and what was expected."""
    jobs = []
    for number, line in read_lines(path):
        try:
            jobs.append(_job(json.loads(line)))
        except (ValueError, RecursionError) as fault:
            text = str(fault) if isinstance(fault, _FormatError) else "no JSON; expected a job"
            raise InputError(f"{path}, line {number}: {text}") from None
    if not jobs:
        raise InputError(f"{path}: no jobs; expected one a line")
    return jobs


def write_lines(jobs: Iterable[RecordedJob]) -> Iterator[str]:
    """The lines of a file that `read_jobs` reads."""
    for each in jobs:
        record = {
            "name": each.job.name,
            "arrival_s": round(each.arrival_s, 3),
            "stages": [_stage_record(stage) for stage in each.job.stages],
        }
        yield json.dumps(record, separators=(",", ":")) + "\n"


def one_level(durations: Durations) -> Waves:
    """Durations that serve any number of executors; no wave if there are none."""
    return {LEVEL: durations} if len(durations) else {}


def _stage_record(stage: Stage) -> dict[str, Any]:
    record: dict[str, Any] = {"tasks": stage.tasks, "parents": list(stage.parents)}
    for name, wave in zip(WAVES, (stage.first, stage.rest, stage.fresh), strict=True):
        if wave:
            record[name] = [int(ms) for ms in wave[max(wave)]]
    for name, demand in (("cpu", stage.cpu), ("memory", stage.memory)):
        if demand:
            record[name] = round(demand, 6)
    return record


class _FormatError(ValueError):
    """A line that is no job, in words."""


def _job(record: Any) -> RecordedJob:
    _check_keys(record, "a job", _JOB_KEYS, ("name", "stages"))
    if not isinstance(record["name"], str):
        raise _FormatError(f"name {record['name']!r}; expected text")
    if not isinstance(record["stages"], list) or not record["stages"]:
        raise _FormatError("no stages; expected a list of at least one")
    arrival_s = _number(record, "arrival_s", "the job")
    stages = tuple(_stage(number, each) for number, each in enumerate(record["stages"]))
    return RecordedJob(arrival_s, Job(record["name"], stages))


def _stage(number: int, record: Any) -> Stage:
    which = f"stage {number}"
    _check_keys(record, which, _STAGE_KEYS, ("tasks",))
    waves = []
    for name in WAVES:
        durations = record.get(name, [])
        known = isinstance(durations, list) and set(map(type, durations)) <= {int}
        if not known or min(durations, default=0) < 0:
            raise _FormatError(f"{which}: {name}; expected a list of durations in whole ms")
        waves.append(one_level(durations))
    parents = record.get("parents", [])
    if not isinstance(parents, list) or not set(map(type, parents)) <= {int}:
        raise _FormatError(f"{which}: parents {parents!r}; expected a list of places of stages")
    if type(record["tasks"]) is not int:
        raise _FormatError(f"{which}: tasks {record['tasks']!r}; expected a whole number")
    cpu, memory = (_number(record, name, which) for name in ("cpu", "memory"))
    first, rest, fresh = waves
    return Stage(record["tasks"], tuple(parents), first, rest, fresh, cpu, memory)


def _check_keys(record: Any, which: str, known: set[str], needed: tuple[str, ...]) -> None:
    if not isinstance(record, Mapping):
        raise _FormatError(f"{which} is no JSON object; expected one")
    if unknown := sorted(set(record) - known):
        raise _FormatError(f"{which} has {unknown[0]!r}; expected {', '.join(sorted(known))}")
    for name in needed:
        if name not in record:
            raise _FormatError(f"{which} has no {name}; expected one")


def _number(record: Mapping[str, Any], name: str, which: str) -> float:
    value = record.get(name, 0.0)
    if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
        raise _FormatError(f"{which}: {name} {value!r}; expected a number of 0 or more")
    return float(value)
