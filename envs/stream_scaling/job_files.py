"""Jobs by name: generated ones, those of the Alibaba trace, or a YAML file.

A file has a list `tasks` with the fields of `jobs.Task`:

    tasks:
      - {name: clicks, duration: 1.0, partitions: 8}
      - {name: sessions, duration: 3.0, parents: [clicks], state_mb: 500}
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from loadmaster.envs.alibaba import COLUMNS, dependencies, finished_tasks
from loadmaster.envs.errors import InputError, unknown_name
from loadmaster.envs.stream_scaling.generated_jobs import SIZES, generated_job
from loadmaster.envs.stream_scaling.jobs import Job, Task, build_job
from loadmaster.envs.stream_scaling.settings import StreamScalingSettings
from loadmaster.envs.traces import read_csv, trace_path

ALIBABA = "alibaba:"
FILE = "alibaba2018/sure_like_6_jobs.csv"


def load_job(settings: StreamScalingSettings) -> Job:
    """The job of the settings; `state_mb` is that of each task behind a source without its own."""
    name = settings.job
    if name.startswith(ALIBABA):
        found = _from_trace(name.removeprefix(ALIBABA), trace_path("alibaba", settings.data))
    elif name in SIZES:
        found = generated_job(name)
    elif name.endswith((".yaml", ".yml")):
        return _from_file(Path(name).expanduser())
    else:
        raise unknown_name("job", name, [*SIZES, f"{ALIBABA}NAME", "FILE.yaml"])
    tasks = (
        replace(task, state_mb=settings.state_mb if task.parents else 0.0) for task in found.tasks
    )
    return Job(found.name, tuple(tasks))


@lru_cache(maxsize=8)
def _from_trace(name: str, path: Path) -> Job:
    file = path if path.is_file() else path / FILE
    if not file.is_file():
        raise InputError(f"{path}: no jobs found; expected {FILE} in it")
    table = read_csv(file, ("label", *COLUMNS))
    jobs, _ = finished_tasks(table, "label")
    labels = {label.lower(): label for label in jobs}
    if name.lower() not in labels:
        raise unknown_name("job", f"{ALIBABA}{name}", [f"{ALIBABA}{one}" for one in labels])
    rows = jobs[labels[name.lower()]]
    parents, fault = dependencies(rows)
    if fault:
        raise InputError(f"{file}: job {name} is one {fault}; expected a complete DAG")
    return build_job(
        f"{ALIBABA}{name.lower()}",
        [
            Task(row.name, float(row.duration_ms), tuple(rows[place].name for place in own))
            for row, own in zip(rows, parents, strict=True)
        ],
    )


def _from_file(path: Path) -> Job:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as fault:
        reason = " ".join(str(fault).split())[:120]
        raise InputError(f"job {path}: cannot be read ({reason}); expected a YAML file") from None
    tasks = content.get("tasks") if isinstance(content, Mapping) else None
    if not isinstance(tasks, list):
        raise InputError(f"job {path}: no list 'tasks'; expected one, with a mapping for each task")
    return build_job(path.stem, [_task(path, number, row) for number, row in enumerate(tasks, 1)])


_KINDS: dict[str, tuple[type, ...]] = {
    "name": (str,), "duration": (int, float), "parents": (list,), "selectivity": (list,),
    "variability": (int, float), "key_groups": (int,), "partitions": (int,), "chained": (bool,),
    "slot_group": (str,), "state_mb": (int, float),
}  # fmt: skip


def _task(path: Path, number: int, row: Any) -> Task:
    where = f"job {path}, task {number}"
    if not isinstance(row, Mapping):
        raise InputError(f"{where}: {row!r}; expected a mapping")
    known = [field.name for field in fields(Task)]
    for name, value in row.items():
        if name not in known:
            raise unknown_name(f"field of {where}", str(name), known)
        kinds = _KINDS[name]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise InputError(f"{where}: {name} is {value!r}; expected {kinds[-1].__name__}")
    for name in ("name", "duration"):
        if name not in row:
            raise InputError(f"{where}: no {name}; expected one")
    lists = {name: tuple(value) for name, value in row.items() if isinstance(value, list)}
    given: dict[str, Any] = {**row, **lists}
    return Task(**given)
