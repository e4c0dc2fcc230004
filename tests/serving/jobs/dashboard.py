"""A fake dashboard with the part of Ray's job API that the clients use."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Dashboard:
    """State of the dashboard, changed by tests."""

    def __init__(self, token: str | None = None) -> None:
        self.token = token
        self.jobs: dict[str, dict[str, Any]] = {}
        self.logs: dict[str, str] = {}
        self.packages: dict[str, bytes] = {}
        self.submitted: list[dict[str, Any]] = []
        self.broken: int | None = None  # status of every response
        self.address = ""

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        if self.broken is not None:
            return self.broken, "boom"
        parts = path.strip("/").split("/")
        match method, parts[1:]:
            case "GET", ["version"]:
                return 200, {"version": "4", "ray_version": "2.60.0", "ray_commit": "x"}
            case "GET", ["packages", _, name]:
                return (200, {}) if name in self.packages else (404, "no such package")
            case "PUT", ["packages", _, name]:
                self.packages[name] = body
                return 200, {}
            case "POST", ["jobs"]:
                job = json.loads(body)
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


@contextmanager
def running(dashboard: Dashboard) -> Iterator[Dashboard]:
    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            shown = self.headers.get("Authorization")
            if dashboard.token is not None and shown != f"Bearer {dashboard.token}":
                code, record = (403, "Forbidden") if shown else (401, "Unauthorized")
            else:
                code, record = dashboard.answer(self.command, self.path, body)
            content = record.encode() if isinstance(record, str) else json.dumps(record).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = handle_any  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    dashboard.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield dashboard
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
