"""A fake of Flink's REST interface: one job of four tasks with simple dynamics, and its faults.

Time is the server's own: `advance` moves it. The shapes of the answers are those of Flink 2.3.0.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NAMES = ("Source: source", "parse", "enrich", "sink: Writer")
SOURCE, PARSE, ENRICH, SINK = IDS = tuple(f"{number:032x}" for number in range(1, 5))
MOST = {SOURCE: 1, PARSE: 64, ENRICH: 64, SINK: 1}
GROUP = "e197e6eed473e68e7150331a133bb8fc"
COUNTED = ("accumulateBusyTimeMs", "accumulateIdleTimeMs", "accumulateBackPressuredTimeMs")
RESTART_S = 2.0
STACK = "\n\tat org.apache.flink.runtime.dispatcher.Dispatcher.validate(Dispatcher.java:2130)\n"


class FlinkServer:
    """The state of a cluster with one job. Public attributes are knobs of the tests."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.now_s = 1_800_000_000.0
        self.job_id, self.name, self.state = "a" * 32, "clicks", "RUNNING"
        self.other_jobs: list[dict[str, Any]] = []
        self.parallelism = {SOURCE: 1, PARSE: 2, ENRICH: 2, SINK: 1}
        self.bounds = dict(self.parallelism)
        self.slots, self.kept = 8, 0  # kept: slots that the job has left and that are not yet free
        self.rate = 800.0  # records a second that arrive
        self.capacity = {SOURCE: 1e5, PARSE: 1000.0, ENRICH: 2000.0, SINK: 1e5}  # of one instance
        self.slowdown: dict[int, float] = {}  # factor of the capacity by instances of parse
        self.pending = 0.0
        self.started_s = self.now_s - 1000.0
        self.rescale_after_s = 1.0  # from the request on; a large one: it does not happen
        self.scheduler = "Adaptive"
        self.config = {"jobmanager.adaptive-scheduler.executing.cooldown-after-rescaling": "1 s"}
        self.history = True  # of rescales
        self.vertex_metrics = False  # counted times in the answer on the job
        self.nan = False  # busy and idle time, and the counters of them, are not reported
        self.frozen = False  # counters do not move
        self.refusal: tuple[int, str] | None = None  # of PUT
        self.broken_put = False  # it is carried out, and the connection closed
        self.slow_s = 0.0
        self.down = False  # 503
        self.puts: list[dict[str, Any]] = []
        self.requests: list[str] = []
        self._requested_s: float | None = None
        self._restarting_s = 0.0
        self._rescales: list[dict[str, Any]] = []
        self.counters = {vertex: dict.fromkeys(("in", "out", *COUNTED), 0.0) for vertex in IDS}
        self.advance(20.0)

    @property
    def taken(self) -> int:
        return max(self.parallelism.values())

    def clock(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        """Move the time on; usable as a sleep."""
        with self.lock:
            end = self.now_s + seconds
            while self.now_s < end - 1e-9:
                step = min(0.5, end - self.now_s)
                self.now_s += step
                self._move(step)

    def _move(self, step: float) -> None:
        self.pending += self.rate * step
        if self._requested_s is not None and (
            self.now_s - self._requested_s >= self.rescale_after_s
        ):
            self._rescale()
        if self._restarting_s > 0:
            self._restarting_s -= step
            return
        if self.frozen or self.state != "RUNNING":
            return
        factor = self.slowdown.get(self.parallelism[PARSE], 1.0)
        most = min(self.capacity[v] * self.parallelism[v] for v in IDS) * factor
        flow = min(self.pending, most * step)
        self.pending -= flow
        held_up = flow >= 0.99 * most * step
        for vertex in IDS:
            own, counters = self.parallelism[vertex], self.counters[vertex]
            busy = min(flow / (self.capacity[vertex] * factor * step * own), 1.0)
            blocked = 1.0 - busy if vertex == SOURCE and held_up else 0.0
            counters["in"] += flow if vertex != SOURCE else 0.0
            counters["out"] += flow if vertex != SINK else 0.0
            for name, share in zip(COUNTED, (busy, 1 - busy - blocked, blocked), strict=True):
                counters[name] += 1000 * share * step * own

    def _rescale(self) -> None:
        assert self._requested_s is not None
        self.parallelism = {v: min(bound, self.slots) for v, bound in self.bounds.items()}
        self.started_s, self._restarting_s = self.now_s, RESTART_S
        self.counters = {vertex: dict.fromkeys(one, 0.0) for vertex, one in self.counters.items()}
        begin, end = round(1000 * self._requested_s), round(1000 * self.now_s)
        self._rescales.append(
            {
                "rescaleUuid": f"{len(self._rescales):032x}",
                "schedulerStates": [],
                "startTimestampInMillis": begin,
                "endTimestampInMillis": end,
                "terminalState": "COMPLETED",
                "triggerCause": "UPDATE_REQUIREMENT",
            }
        )
        self._requested_s = None

    def answer(self, method: str, target: str, body: Any) -> tuple[int, Any]:
        with self.lock:
            path, _, query = target.partition("?")
            parts = path.strip("/").split("/")
            if path == "/jobs/overview":
                return 200, {"jobs": [self._listed(), *self.other_jobs]}
            if path == "/overview":
                return 200, {
                    "slots-total": self.slots,
                    "slots-available": max(self.slots - self.kept - self.taken, 0),
                    "jobs-running": 1 + len(self.other_jobs),
                }
            if path == "/jobmanager/config":
                return 200, [{"key": k, "value": v} for k, v in self.config.items()]
            if parts[0] != "jobs" or parts[1] != self.job_id:
                return 404, self._fault(f"Job {parts[-1]} not found", "NotFoundException")
            rest = parts[2:]
            if not rest:
                return 200, self._job()
            if rest == ["resource-requirements"]:
                return self._requirements(method, body)
            if rest[0] == "rescales":
                return self._answer_rescales(rest[1:])
            if rest[0] == "vertices":
                return 200, self._metrics(rest[1], query)
            return 404, self._fault("Not found", "NotFoundException")

    def _fault(self, text: str, kind: str = "RestHandlerException") -> dict[str, Any]:
        return {"errors": [f"org.apache.flink.runtime.rest.{kind}: {text}{STACK}"]}

    def _listed(self) -> dict[str, Any]:
        return {"jid": self.job_id, "name": self.name, "state": self.state, "jobType": "STREAMING"}

    def _job(self) -> dict[str, Any]:
        running = self._restarting_s <= 0
        return {
            "jid": self.job_id,
            "name": self.name,
            "state": self.state,
            "schedulerType": self.scheduler,
            "now": round(1000 * self.now_s),
            "vertices": [
                {
                    "id": vertex,
                    "name": name,
                    "slotSharingGroupId": GROUP,
                    "maxParallelism": MOST[vertex],
                    "parallelism": self.parallelism[vertex],
                    "start-time": round(1000 * self.started_s),
                    "tasks": {"RUNNING": self.parallelism[vertex] if running else 0},
                    **({"metrics": self._accumulated(vertex)} if self.vertex_metrics else {}),
                }
                for vertex, name in zip(IDS, NAMES, strict=True)
            ],
            "plan": {
                "nodes": [
                    {"id": vertex, "inputs": [{"id": IDS[place - 1]}] if place else []}
                    for place, vertex in enumerate(IDS)
                ]
            },
        }

    def _accumulated(self, vertex: str) -> dict[str, float]:
        names = ("busy", "idle", "backpressured")
        return {
            f"accumulated-{name}-time": self.counters[vertex][counter]
            for name, counter in zip(names, COUNTED, strict=True)
        }

    def _requirements(self, method: str, body: Any) -> tuple[int, Any]:
        if method == "PUT":
            self.puts.append(body)
            if self.refusal is not None:
                status, text = self.refusal
                return status, self._fault(text)
            bounds = {v: one["parallelism"]["upperBound"] for v, one in body.items()}
            for vertex in IDS:
                if vertex not in bounds:
                    return 400, self._fault(f"missing job vertex [{vertex}]")
                if bounds[vertex] > MOST[vertex]:
                    return 400, self._fault(f"{bounds[vertex]} exceeds its maximum parallelism")
            if bounds != self.bounds:
                self.bounds, self._requested_s = bounds, self.now_s
            return 200, {}
        return 200, {
            vertex: {"parallelism": {"lowerBound": 1, "upperBound": bound}}
            for vertex, bound in self.bounds.items()
        }

    def _answer_rescales(self, parts: list[str]) -> tuple[int, Any]:
        if not self.history:
            return 404, self._fault("Not found", "NotFoundException")
        latest = self._rescales[-1] if self._rescales else None
        if parts == ["overview"]:
            return 200, {"rescalesCounts": {}, "latest": {"completed": latest}}
        return (200, latest) if latest else (404, self._fault("no such rescale"))

    def _metrics(self, vertex: str, query: str) -> list[dict[str, Any]]:
        counters, own = self.counters[vertex], self.parallelism[vertex]
        values: dict[str, Any] = {
            "numRecordsIn": counters["in"],
            "numRecordsOut": counters["out"],
            "Shuffle.Netty.Input.Buffers.inPoolUsage": 0.1,
            "Shuffle.Netty.Output.Buffers.outPoolUsage": 0.1,
            **{name: counters[name] for name in COUNTED},
            "busyTimeMsPerSecond": 1000.0 * own,
            "idleTimeMsPerSecond": 0.0,
            "backPressuredTimeMsPerSecond": 0.0,
        }
        if vertex == SOURCE:
            values["Source__source.pendingRecords"] = self.pending
        if self.nan:
            values |= dict.fromkeys((*COUNTED, "busyTimeMsPerSecond"), "NaN")
        if not query:
            return [{"id": name} for name in values]
        asked = query.removeprefix("get=").partition("&")[0].split(",")
        return [
            {"id": name, "sum": value, **_shares(value, own)}
            for name, value in values.items()
            if name in asked
        ]


def _shares(value: Any, own: int) -> dict[str, Any]:
    each = value if isinstance(value, str) else value / own
    return {"avg": each, "max": each}


@contextmanager
def serving(flink: FlinkServer) -> Iterator[str]:
    """Serve on a free port; yields the URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self._handle()

        def do_PUT(self) -> None:
            self._handle()

        def _handle(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            flink.requests.append(f"{self.command} {self.path}")
            time.sleep(flink.slow_s)
            if flink.down:
                status, found = 503, {"errors": ["Service temporarily unavailable"]}
            else:
                status, found = flink.answer(self.command, self.path, body)
            if self.command == "PUT" and flink.broken_put:
                self.close_connection = True
                return
            content = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
