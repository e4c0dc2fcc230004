"""Client of Flink's REST interface: parsed answers, refusals as ApiError.

Every request is safe to repeat, also the PUT of resource requirements, which states the whole plan.
What cannot be reached within the deadline, and any 5xx, is a SilentError.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from loadmaster.envs.errors import InputError
from loadmaster.platform.steering.core import SilentError
from loadmaster.serving.client import Client, ServiceError
from loadmaster.serving.client.calls import Call
from loadmaster.serving.client.http1 import Request, Response

Json = Mapping[str, Any]

NOT_FOUND = 404
ENDED = frozenset({"FINISHED", "CANCELED", "FAILED"})  # states of a job that does not run again

_FAILED = 500  # an HTTP status
_MOST_BYTES = 256 * 2**20
_DURATION = re.compile(r"\s*(\d+)\s*([a-zµ]*)\s*")
_ISO_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.I)
_UNITS_S = {
    "d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9,
}  # fmt: skip


class ApiError(ServiceError):
    """Flink refused a request."""


class FlinkCall(Call[Any]):
    """A call whose errors are Flink's: `{"errors": [...]}`, each a text with a stack trace."""

    def result(self, response: Response) -> Any:
        try:
            data = json.loads(response.body)
        except (ValueError, RecursionError):
            data = None
        if not 200 <= response.status < 300:
            raise ApiError(_error_text(data, response.status), response.status)
        if data is None:
            raise ServiceError("the answer is not JSON", response.status)
        return data


class FlinkClient:
    """Reads jobs and sets their resource requirements. Raises ApiError and SilentError."""

    def __init__(self, url: str, token_file: Path | None = None, deadline_s: float = 10.0) -> None:
        try:
            token = None if token_file is None else token_file.read_text().strip()
            self._client = Client(
                url, token, deadline_s, max_answer=_MOST_BYTES, token_variable=None
            )
        except OSError as fault:
            raise InputError(f"cannot read {token_file}: {fault.strerror}") from None
        except ValueError as fault:
            raise InputError(f"Flink: {fault}") from None
        self.url = url

    def jobs(self) -> list[Json]:
        """Streaming jobs that have not ended: `jid`, `name`, `state`."""
        found = self._get("/jobs/overview")["jobs"]
        return [
            job
            for job in found
            if job["state"] not in ENDED and job.get("jobType", "STREAMING") == "STREAMING"
        ]

    def job(self, job: str) -> Json:
        found: Json = self._get(f"/jobs/{_quoted(job)}")
        return found

    def metric_names(self, job: str, vertex: str) -> list[str]:
        """Names of the metrics of a vertex. Flink also refreshes old metrics of all jobs."""
        return [one["id"] for one in self._get(_metrics_path(job, vertex))]

    def metrics(self, job: str, vertex: str, names: str) -> list[Json]:
        """Sum, mean and maximum over the subtasks; `names` are separated by commas."""
        path = f"{_metrics_path(job, vertex)}?get={quote(names, safe=',')}&agg=sum,avg,max"
        found: list[Json] = self._get(path)
        return found

    def rescales(self, job: str) -> Json | None:
        """Overview of the rescales; None before Flink 2.3, or where it keeps no history."""
        return self._find(f"/jobs/{_quoted(job)}/rescales/overview")

    def rescale(self, job: str, rescale: str) -> Json | None:
        """A rescale with the states of the scheduler."""
        return self._find(f"/jobs/{_quoted(job)}/rescales/details/{_quoted(rescale)}")

    def requirements(self, job: str) -> dict[str, int]:
        """The upper bound of each vertex."""
        found = self._get(_requirements_path(job))
        return {
            vertex: int(required["parallelism"]["upperBound"]) for vertex, required in found.items()
        }

    def set_requirements(self, job: str, upper_bounds: Mapping[str, int]) -> None:
        """Set the upper bounds of all vertices; the lower ones are 1: no job waits for slots."""
        body = {
            vertex: {"parallelism": {"lowerBound": 1, "upperBound": bound}}
            for vertex, bound in upper_bounds.items()
        }
        self._call(Request("PUT", _requirements_path(job), json.dumps(body).encode()))

    def overview(self) -> Json:
        """Slots of the cluster, and Flink's version."""
        found: Json = self._get("/overview")
        return found

    def config(self) -> dict[str, str]:
        """Configuration of the JobManager; empty where it may not be read."""
        try:
            return {one["key"]: str(one["value"]) for one in self._get("/jobmanager/config")}
        except ApiError:
            return {}

    def close(self) -> None:
        self._client.close()

    def _find(self, path: str) -> Json | None:
        """An optional answer: Flink may refuse it, or fail where it keeps no history."""
        try:
            found: Json = self._call(Request("GET", path), _FAILED)
        except ApiError:
            return None
        return found

    def _get(self, path: str) -> Any:
        return self._call(Request("GET", path))

    def _call(self, request: Request, highest: int = _FAILED - 1) -> Any:
        """`highest`: of the statuses that are an ApiError; others make the engine silent."""
        try:
            return self._client.ask(FlinkCall(request, lambda data: data))
        except ApiError as fault:
            if fault.status is not None and fault.status <= highest:
                raise
            raise SilentError("engine", f"Flink at {self.url}: {fault}") from None
        except ServiceError as fault:
            raise SilentError("engine", f"Flink at {self.url}: {fault}") from None


def seconds(text: str) -> float:
    """A duration as Flink writes it: `30 s`, `1min`, `500` (milliseconds), `PT30S`; else 0."""
    if found := _DURATION.fullmatch(text.lower()):
        number, unit = float(found[1]), found[2]
        if not unit:
            return number / 1000
        names = {"min": "m", "sec": "s", "milli": "ms", "micro": "us", "µs": "us", "nano": "ns"}
        short = next((s for long, s in names.items() if unit.startswith(long)), unit)
        return number * _UNITS_S.get(short, _UNITS_S.get(short[:1], 0.0))
    if found := _ISO_DURATION.fullmatch(text.strip()):
        days, hours, minutes, rest = (float(part or 0) for part in found.groups())
        return 86_400 * days + 3_600 * hours + 60 * minutes + rest
    return 0.0


def _error_text(data: Any, status: int) -> str:
    """The first line of an error, without the classes of exceptions."""
    errors = data.get("errors") if isinstance(data, dict) else None
    text = str(errors[-1]) if isinstance(errors, list) and errors else f"HTTP status {status}"
    line = next((one for one in text.splitlines() if one.strip()), text).strip()
    return re.sub(r"^(?:[\w$]+\.)+[\w$]+(?:Exception|Error): ", "", line)[:300]


def _metrics_path(job: str, vertex: str) -> str:
    return f"/jobs/{_quoted(job)}/vertices/{_quoted(vertex)}/subtasks/metrics"


def _requirements_path(job: str) -> str:
    return f"/jobs/{_quoted(job)}/resource-requirements"


def _quoted(part: str) -> str:
    return quote(part, safe="")
