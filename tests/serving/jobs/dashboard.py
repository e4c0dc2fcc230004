"""A fake dashboard with the part of Ray's job API that the clients use."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.serving.client.fake_service import Exchange, answer, fake_service


class Dashboard:
    """State of the dashboard, changed by tests."""

    def __init__(self, token: str | None = None) -> None:
        self.token = token
        self.jobs: dict[str, dict[str, Any]] = {}
        self.logs: dict[str, str] = {}
        self.packages: dict[str, bytes] = {}
        self.submitted: list[dict[str, Any]] = []
        self.address = ""

    def answer(self, exchange: Exchange) -> tuple[int, Any]:
        match exchange.method, exchange.target.strip("/").split("/")[1:]:
            case "GET", ["version"]:
                return 200, {"version": "4", "ray_version": "2.60.0", "ray_commit": "x"}
            case "GET", ["packages", _, name]:
                return (200, {}) if name in self.packages else (404, "no such package")
            case "PUT", ["packages", _, name]:
                self.packages[name] = exchange.body
                return 200, {}
            case "POST", ["jobs"]:
                job = exchange.json
                self.submitted.append(job)
                self.add(job["submission_id"], "PENDING", job["metadata"])
                return 200, {"submission_id": job["submission_id"], "job_id": "1"}
            case "GET", ["jobs"]:
                return 200, list(self.jobs.values())
            case _, ["jobs", name, *_] if name not in self.jobs:
                return 404, f"Job {name} does not exist"
            case "GET", ["jobs", name]:
                return 200, self.jobs[name]
            case "GET", ["jobs", name, "logs"]:
                return 200, {"logs": self.logs.get(name, "")}
            case "POST", ["jobs", name, "stop"]:
                stopped = self.jobs[name]["status"] in ("PENDING", "RUNNING")
                if stopped:
                    self.jobs[name]["status"] = "STOPPED"
                return 200, {"stopped": stopped}
        return 404, "no such route"

    def add(self, name: str, status: str, metadata: dict[str, str], **more: Any) -> None:
        self.jobs[name] = {
            "type": "SUBMISSION", "submission_id": name, "status": status, "entrypoint": "python",
            "metadata": metadata, "start_time": 1000 * (len(self.jobs) + 1), **more,
        }  # fmt: skip

    def respond(self, exchange: Exchange) -> bool:
        shown = exchange.headers.get("authorization")
        if self.token is not None and shown != f"Bearer {self.token}":
            code, record = (403, "Forbidden") if shown else (401, "Unauthorized")
        else:
            code, record = self.answer(exchange)
        return answer(record.encode() if isinstance(record, str) else record, code)(exchange)


@contextmanager
def running(dashboard: Dashboard) -> Iterator[Dashboard]:
    with fake_service(dashboard.respond) as service:
        dashboard.address = service.url
        yield dashboard
