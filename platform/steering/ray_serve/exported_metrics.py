"""Reader of the metrics that Ray's nodes export: what Serve's context lacks, by deployment.

Series are in Prometheus' text format at each node's metrics port. No Prometheus is needed: totals
of counters are kept by series and compared with those of the reading before.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from loadmaster.serving.client import Client, ServiceError
from loadmaster.serving.client.calls import Call
from loadmaster.serving.client.http1 import Request, Response

ARRIVALS = "ray_serve_num_router_requests_total"
LATENCY = "ray_serve_deployment_processing_latency_ms"
CPU_PERCENT = "ray_component_cpu_percentage"
MEMORY_MB = ("ray_component_uss_mb", "ray_component_rss_mb")  # the first that is exported
_NAMES = (ARRIVALS, LATENCY, CPU_PERCENT, *MEMORY_MB)
_STARTS = tuple(name.encode() for name in _NAMES)

_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_REPEATED_S = 0.5  # readings of several deployments in one process share an answer so new
_MOST_BYTES = 64 * 2**20

Series = Mapping[str, float]  # value by the label text of a series


class Sample(NamedTuple):
    """A line of the text format."""

    name: str
    labels: Mapping[str, str]
    value: float
    series: str  # name and labels as they are in the text, after the node's address


@dataclass
class Readings:
    """What the nodes export about one deployment, at one time."""

    at_s: float
    arrivals: dict[str, float] = field(default_factory=dict)
    done: dict[str, float] = field(default_factory=dict)
    busy_s: dict[str, float] = field(default_factory=dict)  # sums of processing times
    buckets: dict[float, dict[str, float]] = field(default_factory=dict)  # by upper bound, s
    cpu_m: float | None = None  # sum over the replicas' processes
    memory_mib: float | None = None
    nodes: frozenset[str] = frozenset()  # addresses of those that have answered


def parse_samples(body: bytes) -> list[Sample]:
    """The samples of the series that are read, of a node's whole answer."""
    found = []
    for line in body.splitlines():
        if not line.startswith(_STARTS):
            continue
        series, _, number = line.decode("utf-8", "replace").rpartition(" ")
        name, _, inside = series.partition("{")
        try:
            found.append(Sample(name, dict(_LABEL.findall(inside)), float(number), series))
        except ValueError:
            continue
    return found


def readings_of(
    samples: Sequence[Sample], application: str, deployment: str, at_s: float
) -> Readings:
    """Select the samples of one deployment."""
    found = Readings(at_s)
    component = f"ray::ServeReplica:{application}:{deployment}"
    memory: dict[str, float] = {}
    for name, labels, value, series in samples:
        if labels.get("Component") == component:
            if name == CPU_PERCENT:
                found.cpu_m = (found.cpu_m or 0.0) + 10.0 * value
            elif name in MEMORY_MB:
                memory[name] = memory.get(name, 0.0) + value / 1.048576
        if (labels.get("application"), labels.get("deployment")) != (application, deployment):
            continue
        if name == ARRIVALS:
            found.arrivals[series] = value
        elif name == f"{LATENCY}_count":
            found.done[series] = value
        elif name == f"{LATENCY}_sum":
            found.busy_s[series] = value / 1000.0
        elif name == f"{LATENCY}_bucket":
            bound_s = float(labels.get("le", "inf")) / 1000.0
            found.buckets.setdefault(bound_s, {})[series] = value
    found.memory_mib = next((memory[name] for name in MEMORY_MB if name in memory), None)
    return found


def increase(before: Series, after: Series) -> float:
    """How much the counters rose: of those that began anew, or are new, all they have.

    A series of a replica that ended is no longer exported, and counts no more.
    """
    total = 0.0
    for series, value in after.items():
        past = before.get(series, 0.0)
        total += value - past if value >= past else value
    return total


def quantile(counts: Mapping[float, float], share: float) -> float | None:
    """The quantile of a histogram, linear inside a bucket; None without samples.

    `counts` are the numbers of samples at or below each upper bound, as Prometheus has them.
    """
    bounds = sorted(counts)
    if not bounds or counts[bounds[-1]] <= 0:
        return None
    wanted, low_s, below = share * counts[bounds[-1]], 0.0, 0.0
    for bound_s in bounds:
        if counts[bound_s] >= wanted:
            if bound_s == float("inf"):
                return low_s
            inside = counts[bound_s] - below
            return low_s + (bound_s - low_s) * ((wanted - below) / inside if inside > 0 else 1.0)
        low_s, below = bound_s, counts[bound_s]
    return low_s


class NodeMetrics:
    """The latest metrics of all nodes. Threads share one; raises ServiceError."""

    def __init__(
        self, deadline_s: float = 2.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._deadline_s, self._clock, self._lock = deadline_s, clock, threading.Lock()
        self._clients: dict[str, Client] = {}
        self._at_s = 0.0
        self._samples: dict[str, list[Sample]] = {}  # by address of those that have answered
        self._addresses: frozenset[str] = frozenset()  # of all that were asked

    def read(self, addresses: Sequence[str], application: str, deployment: str) -> Readings:
        """Read from `HOST:PORT` addresses.

        Of a node that does not answer the counters stay as they were, so that its requests count
        when it answers again. Raises if none answers.
        """
        with self._lock:
            now_s = self._clock()
            if now_s - self._at_s > _REPEATED_S or self._addresses != set(addresses):
                self._samples = self._fetch_all(addresses)
                self._at_s, self._addresses = now_s, frozenset(addresses)
            samples = [one for known in self._samples.values() for one in known]
            found = readings_of(samples, application, deployment, self._at_s)
            found.nodes = frozenset(self._samples)
            return found

    def _fetch_all(self, addresses: Sequence[str]) -> dict[str, list[Sample]]:
        found: dict[str, list[Sample]] = {}
        faults = []
        for address in addresses:
            try:
                samples = self._fetch(address)
            except ServiceError as fault:
                faults.append(fault)
                if address in self._samples:
                    found[address] = self._samples[address]
            else:
                found[address] = [one._replace(series=f"{address} {one.series}") for one in samples]
        if len(faults) == len(addresses):
            raise faults[0] if faults else ServiceError("no node exports metrics")
        return found

    def _fetch(self, address: str) -> list[Sample]:
        client = self._clients.get(address)
        if client is None:
            client = Client(
                f"http://{address}",
                deadline_s=self._deadline_s,
                retries=0,
                max_answer=_MOST_BYTES,
                token_variable=None,
            )
            self._clients[address] = client
        return client.ask(_TextCall(Request("GET", "/metrics", fresh=True), parse_samples))


class _TextCall(Call[list[Sample]]):
    """A call whose answer is not JSON."""

    def result(self, response: Response) -> list[Sample]:
        if response.status != 200:
            raise ServiceError(f"HTTP status {response.status}", response.status)
        return self.decode(response.body)


SHARED = NodeMetrics()  # of all deployments that a process scales
