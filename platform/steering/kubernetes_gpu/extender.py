"""The extender that kube-scheduler requests: a table of decisions, and its HTTP server.

kube-scheduler sends a pod and the nodes that are possible for it. `prioritize` scores the node on
which the pod should start, `filter` passes it alone. Both answer from the table in memory, whose
entries expire: a pod that the table does not have is kube-scheduler's own.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple

from loadmaster.platform.steering.loop import http_server

SCORE = 10  # the most that kube-scheduler takes
PODS_MAX = 20_000  # pods that were requested and of which the table has no entry
BODY_MAX = 256 * 2**20  # bytes: whole nodes, where nodeCacheCapable is false
CONNECTION_S = 10.0  # after it a connection without a complete request is closed
REASON_MAX = 200

Object = Mapping[str, Any]


class Entry(NamedTuple):
    """Where a pod should start, until when."""

    node: str
    until_s: float


class DecisionTable:
    """Nodes of pods that should start, and pods that should wait. Safe for several threads.

    `holds` returns whether a pod is one that decisions are made about. Times are of `clock`, which
    is monotonic: those of other machines do not matter.
    """

    def __init__(
        self,
        ttl_s: float,
        order: bool = False,
        new_s: float = 0.0,
        holds: Callable[[Object], bool] = lambda pod: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ttl_s, self._order, self._new_s = ttl_s, order, new_s
        self._holds, self._clock = holds, clock
        self._lock = threading.Lock()
        self._starts: dict[str, Entry] = {}
        self._waits: Mapping[str, str] = {}  # reason by pod
        self._renewed_until_s = float("-inf")
        self._first_s: dict[str, float] = {}  # first request about a pod
        self._held: set[str] = set()  # pods for which no node was passed
        self.reason = ""  # of the last decision

    def start(self, nodes: Mapping[str, str]) -> None:
        """Let pods start on nodes, for ttl_s."""
        until_s = self._clock() + self._ttl_s
        with self._lock:
            for uid, node in nodes.items():
                self._starts[uid] = Entry(node, until_s)

    def withdraw(self, pods: Iterable[str]) -> None:
        with self._lock:
            for uid in pods:
                self._starts.pop(uid, None)

    def renew(self, waits: Mapping[str, str]) -> None:
        """Let these pods wait that are not started, and new ones, for ttl_s."""
        with self._lock:
            self._waits, self._renewed_until_s = waits, self._clock() + self._ttl_s

    def is_due(self, waits: Mapping[str, str]) -> bool:
        with self._lock:
            left_s = self._renewed_until_s - self._clock()
            return left_s < self._ttl_s / 2 or waits != self._waits

    def clear(self) -> None:
        """Leave all pods to kube-scheduler."""
        with self._lock:
            self._starts, self._waits, self._renewed_until_s = {}, {}, float("-inf")

    def placed(self) -> dict[str, str]:
        """Nodes of pods whose start has not expired."""
        now_s = self._clock()
        with self._lock:
            self._starts = {
                uid: entry for uid, entry in self._starts.items() if entry.until_s > now_s
            }
            return {uid: entry.node for uid, entry in self._starts.items()}

    def passed_over(self) -> list[str]:
        """Pods that were held back, and would not be by now: kube-scheduler should try again."""
        with self._lock:
            held = list(self._held)
            return [uid for uid in held if not self._waits_for(uid)]

    def forget(self, pods: Iterable[str]) -> None:
        """Pods that kube-scheduler tries again, or that are gone."""
        with self._lock:
            self._held.difference_update(pods)

    def held(self) -> set[str]:
        with self._lock:
            return set(self._held)

    def counts(self) -> dict[str, Any]:
        starts = len(self.placed())
        with self._lock:
            live = self._renewed_until_s > self._clock()
            return {"starts": starts, "waits": len(self._waits) if live else 0, "live": live}

    def _entry(self, uid: str) -> Entry | None:
        entry = self._starts.get(uid)
        return entry if entry is not None and entry.until_s > self._clock() else None

    def _waits_for(self, uid: str) -> str:
        """The reason for which a pod is held back now, or nothing."""
        now_s = self._clock()
        if not self._order or now_s >= self._renewed_until_s or self._entry(uid) is not None:
            return ""
        if (reason := self._waits.get(uid)) is not None:
            return "; ".join(one for one in (reason, self.reason) if one)[:REASON_MAX]
        first_s = self._first_s.get(uid)
        if first_s is None or now_s - first_s >= self._new_s:
            return ""
        return "a decision about the pod comes soon"

    def filter(self, request: Object) -> dict[str, Any]:
        """ExtenderFilterResult of ExtenderArgs."""
        names, uid = _node_names(request), self._note(request)
        with self._lock:
            entry = self._entry(uid) if self._order else None
            reason = self._waits_for(uid)
            if entry is not None:
                reason = f"starts on {entry.node}"
                passed = [name for name in names if name == entry.node]
            else:
                passed = [] if reason else names
            if not passed and names:
                self._held.add(uid)
        kept = set(passed)
        failed = {name: f"loadmaster: {reason}" for name in names if name not in kept}
        result: dict[str, Any] = {
            "FailedNodes": failed,
            # Read since 1.21: no other pod is preempted for the sake of this one.
            "FailedAndUnresolvableNodes": failed,
            "Error": "",
        }
        if request.get("NodeNames") is not None:
            return {**result, "NodeNames": passed}
        items = [one for one in _items(request) if one["metadata"]["name"] in kept]
        return {**result, "Nodes": {"items": items}}

    def prioritize(self, request: Object) -> list[dict[str, Any]]:
        """HostPriorityList of ExtenderArgs."""
        names, uid = _node_names(request), str(request["Pod"]["metadata"].get("uid") or "")
        with self._lock:
            entry = self._entry(uid)
        wanted = None if entry is None else entry.node
        return [{"Host": name, "Score": SCORE if name == wanted else 0} for name in names]

    def _note(self, request: Object) -> str:
        """Note the first request about a pod that may be held back; its uid."""
        pod = request["Pod"]
        uid = str(pod["metadata"].get("uid") or "")
        if self._order and uid not in self._first_s and self._holds(pod):
            with self._lock:
                if len(self._first_s) >= PODS_MAX:
                    self._first_s.pop(next(iter(self._first_s)))
                self._first_s[uid] = self._clock()
        return uid


def _items(request: Object) -> list[Any]:
    return list((request.get("Nodes") or {}).get("items") or ())


def _node_names(request: Object) -> list[str]:
    """Names, or whole nodes where nodeCacheCapable is false."""
    names = request.get("NodeNames")
    if names is not None:
        return [str(one) for one in names]
    return [str(one["metadata"]["name"]) for one in _items(request)]


@contextmanager
def extender_server(table: DecisionTable, host: str, port: int) -> Iterator[int]:
    """Serve /filter, /prioritize and /healthz while the block runs; yields the port."""
    calls: dict[str, Callable[[Object], Any]] = {
        "filter": table.filter, "prioritize": table.prioritize,
    }  # fmt: skip
    connections = set[socket.socket]()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = CONNECTION_S
        wbufsize = -1  # headers and body in one packet

        def setup(self) -> None:
            super().setup()
            connections.add(self.connection)

        def finish(self) -> None:
            connections.discard(self.connection)
            super().finish()

        def do_POST(self) -> None:
            call = calls.get(self.path.rpartition("/")[2])
            try:
                length = int(self.headers.get("Content-Length") or -1)
            except ValueError:
                length = -1
            if not 0 <= length <= BODY_MAX:
                self.close_connection = True
                self._send(411 if length < 0 else 413, {"Error": "expected a Content-Length"})
                return
            body = self.rfile.read(length)
            if call is None:
                self._send(404, {"Error": "expected /filter or /prioritize"})
                return
            try:
                found = call(json.loads(body))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
                name = type(fault).__name__
                self._send(400, {"Error": f"expected ExtenderArgs: {name}: {fault}"})
                return
            self._send(200, found)

        def do_GET(self) -> None:
            found = self.path == "/healthz"
            self._send(200 if found else 404, table.counts() if found else {})

        def _send(self, code: int, document: Any) -> None:
            body = json.dumps(document).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    try:
        with http_server(Handler, host, port) as chosen:
            yield chosen
    finally:
        for one in list(connections):  # kept alive by kube-scheduler
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
