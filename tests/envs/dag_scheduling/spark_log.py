"""Event logs in the format of Spark 3, made by hand."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Event = dict[str, Any]


def event(kind: str, **values: Any) -> Event:
    return {"Event": f"SparkListener{kind}", **values}


def application(name: str = "app-1") -> list[Event]:
    return [
        event("LogStart", **{"Spark Version": "3.5.1"}),
        event("ApplicationStart", **{"App Name": "x", "App ID": name, "Timestamp": 0}),
    ]


def executor(number: int, cores: int, time: int = 0) -> Event:
    info = {"Host": "h", "Total Cores": cores, "Log Urls": {}}
    values = {"Timestamp": time, "Executor ID": str(number), "Executor Info": info}
    return event("ExecutorAdded", **values)


def removed(number: int, time: int) -> Event:
    values = {"Timestamp": time, "Executor ID": str(number), "Removed Reason": "idle"}
    return event("ExecutorRemoved", **values)


def job_start(number: int, time: int, stages: Iterable[int], sql: int | None = None) -> Event:
    properties = {} if sql is None else {"spark.sql.execution.root.id": str(sql)}
    values = {"Job ID": number, "Submission Time": time, "Stage IDs": list(stages)}
    return event("JobStart", **values, **{"Stage Infos": [], "Properties": properties})


def job_end(number: int, time: int, result: str = "JobSucceeded") -> Event:
    values = {"Job ID": number, "Completion Time": time, "Job Result": {"Result": result}}
    return event("JobEnd", **values)


def task(stage: int, launch: int, end: int, executor: int = 1, reason: str = "Success") -> Event:
    info = {"Launch Time": launch, "Finish Time": end, "Executor ID": str(executor)}
    values = {"Stage ID": stage, "Stage Attempt ID": 0, "Task Info": info}
    return event("TaskEnd", **values, **{"Task End Reason": {"Reason": reason}})


def stage(
    number: int,
    tasks: int,
    submitted: int,
    completed: int,
    parents: Iterable[int] = (),
    rdds: Mapping[int, Iterable[int]] | None = None,
) -> Event:
    """`rdds`: RDD -> the RDDs that it reads."""
    info = {
        "Stage ID": number,
        "Stage Attempt ID": 0,
        "Stage Name": "s",
        "Number of Tasks": tasks,
        "RDD Info": [
            {"RDD ID": rdd, "Parent IDs": list(read)} for rdd, read in (rdds or {}).items()
        ],
        "Parent IDs": list(parents),
        "Submission Time": submitted,
        "Completion Time": completed,
    }
    return event("StageCompleted", **{"Stage Info": info})


def chain(number: int, time: int, sql: int | None = None) -> list[Event]:
    """A finished job: stage 2n of two tasks of 100 ms, then stage 2n + 1 of one of 50 ms."""
    first, second = 2 * number, 2 * number + 1
    return [
        job_start(number, time, (first, second), sql),
        task(first, time, time + 100),
        task(first, time + 100, time + 200),
        stage(first, 2, time, time + 200),
        task(second, time + 200, time + 250),
        stage(second, 1, time + 200, time + 250, [first]),
        job_end(number, time + 250),
    ]


def text(events: Iterable[Event]) -> str:
    return "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in events)


def write(path: Path, events: Iterable[Event]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text(events), encoding="utf-8")
    return path
