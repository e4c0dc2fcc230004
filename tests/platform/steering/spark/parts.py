"""Reports of a driver, the HTTP that it uses, and steering of what reports."""

import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from loadmaster.platform.steering.core import Mode, Recommender, StepResult
from loadmaster.platform.steering.jobs import Cadence, JobSteerer
from loadmaster.platform.steering.loop import steer
from loadmaster.platform.steering.spark.engine import connect
from loadmaster.platform.steering.spark.settings import SparkSettings


def stage(id: int, tasks: int = 4, **fields: Any) -> dict[str, Any]:
    return {"id": id, "name": f"stage {id}", "tasks": tasks, **fields}


def job(number: int, *stages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"id": f"job-{number}", "name": f"query {number}", "stages": list(stages), **fields}


def report(*jobs: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "version": 1, "application": "local-1", "name": "shop", "spark": "4.3.0", "acts": True,
        "sequence": 1, "slots": 4, "jobs": list(jobs), **fields,
    }  # fmt: skip


def two_jobs(**fields: Any) -> dict[str, Any]:
    """A long job that came first, and a short one."""
    long = job(0, stage(0, 40, mean_ms=1000.0, finished=4, started=8), age_ms=5000.0)
    short = job(1, stage(1, 4, mean_ms=100.0), stage(2, 2, parents=[1]), age_ms=1000.0)
    return report(long, short, **fields)


def post(
    url: str, body: Any, path: str = "/v1/report", token: str = "", kind: str = "application/json"
) -> tuple[int, dict[str, Any]]:
    """Status and document of the reply."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": kind}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(url + path, content, headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as fault:
        return fault.code, json.load(fault)


@contextmanager
def steering(
    recommender: Recommender, mode: Mode, seen: list[StepResult], **settings: Any
) -> Iterator[str]:
    """Steer all applications that report to the URL; `seen` gets the steps."""
    given = {"port": 0, "limit_factor": 1.0, "first_report_s": 0, **settings}
    stopped = threading.Event()
    with connect(SparkSettings(**given), (), mode) as connection:
        steerer = JobSteerer(recommender, mode, cadence=Cadence(pause_s=0.1))
        thread = threading.Thread(
            target=steer, args=(connection, steerer, seen.append, 0.1, False, stopped)
        )
        thread.start()
        try:
            yield connection.url
        finally:
            stopped.set()
            thread.join()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
