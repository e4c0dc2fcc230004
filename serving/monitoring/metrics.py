"""What the service counts about itself, for Prometheus through Ray.

Ray's own metrics cost some microseconds a call and forget what was counted before Ray was up. So a
process counts on a `Board` of its own and hands the counts over every second. Ray passes them on
every ten seconds and puts `ray_` before each name.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, Protocol

from loadmaster.envs.errors import InputError
from loadmaster.serving.decisions.guard import KINDS
from loadmaster.serving.decisions.request import CAUSES, FALLBACK, POLICY

STATES: Final = ("OFFLINE", "ONLINE", "SERVING")  # of the lifecycle, told by their number
WHO: Final = ("policy", "rule")
METRICS_PORT: Final = "LOADMASTER_METRICS_PORT"
FLUSH_S: Final = 1.0
LONGEST_LABEL: Final = 64  # characters; longer ones are data that went astray
# Upper ends of the latency buckets; the last bucket has none.
LATENCY_MS: Final = (0.5, 1, 2, 3, 4, 5, 7.5, 10, 15, 20, 30, 50, 75, 100, 200, 500, 1000)


class Metric(NamedTuple):
    """A metric's kind, meaning and labels, and the values that a closed label may take."""

    kind: Literal["counter", "gauge", "histogram"]
    meaning: str
    labels: tuple[str, ...] = ("system",)
    values: tuple[str, ...] = ()  # of the last label; empty: any short text


METRICS: Final[Mapping[str, Metric]] = {
    "loadmaster_decisions_total": Metric(
        "counter", "Decisions told, by who made them.", ("system", "source"), (POLICY, FALLBACK)
    ),
    "loadmaster_fallbacks_total": Metric(
        "counter", "Decisions made by the rule, by cause.", ("system", "cause"), CAUSES
    ),
    "loadmaster_decision_latency_ms": Metric(
        "histogram", "From a request's arrival to its decision, milliseconds."
    ),
    "loadmaster_guard_actions_total": Metric(
        "counter", "Quantities the guard changed.", ("system", "action"), KINDS
    ),
    "loadmaster_drift_total": Metric(
        "counter", "Changes found in rewards or in a feature of inputs.", ("system", "what")
    ),
    "loadmaster_lifecycle": Metric("gauge", "0 OFFLINE, 1 ONLINE, 2 SERVING."),
    "loadmaster_paused": Metric("gauge", "1 while an operator has paused the policy."),
    "loadmaster_shadow_agreement": Metric(
        "gauge", "Share of decisions on which the policy in shadow agrees with the acting one."
    ),
    "loadmaster_reward_mean": Metric("gauge", "Mean reward of the window.", ("system", "who"), WHO),
    "loadmaster_log_dropped_total": Metric("counter", "Rows the decision log had to drop."),
    "loadmaster_rejected_total": Metric(
        "counter", "Requests refused, by HTTP status.", ("status",)
    ),
}

Series = tuple[str, tuple[str, ...]]  # a metric's name, its labels' values in order


class Sink(Protocol):
    """Where a board's counts go."""

    def ready(self) -> bool: ...
    def add(self, series: Series, count: int) -> None: ...
    def observe(self, series: Series, value: float, count: int) -> None: ...
    def set(self, series: Series, value: float) -> None: ...


class RaySink:
    """Ray's metrics, each made when it is first told something."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def ready(self) -> bool:
        ray = sys.modules.get("ray")  # whoever counts without Ray shall not pay for its import
        return ray is not None and bool(ray.is_initialized())

    def add(self, series: Series, count: int) -> None:
        self._metric(series).inc(count, tags=_tags(series))

    def observe(self, series: Series, value: float, count: int) -> None:
        metric, tags = self._metric(series), _tags(series)
        for _ in range(count):  # Ray takes them one by one only
            metric.observe(value, tags=tags)

    def set(self, series: Series, value: float) -> None:
        self._metric(series).set(value, tags=_tags(series))

    def _metric(self, series: Series) -> Any:
        name, _ = series
        if name not in self._made:
            from ray.util import metrics

            definition = METRICS[name]
            extra = {"boundaries": list(LATENCY_MS)} if definition.kind == "histogram" else {}
            self._made[name] = getattr(metrics, definition.kind.capitalize())(
                name, description=definition.meaning, tag_keys=definition.labels, **extra
            )
        return self._made[name]


def _tags(series: Series) -> dict[str, str]:
    name, values = series
    return dict(zip(METRICS[name].labels, values, strict=True))


class Board:
    """A process's counts, from any thread, until the sink takes them."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._counts: Counter[Series] = Counter()
        self._latencies: Counter[tuple[Series, int]] = Counter()  # by bucket
        self._gauges: dict[Series, float] = {}
        self._known: set[Series] = set()

    def add(self, name: str, *labels: str, count: int = 1) -> None:
        series = self._series(name, labels)
        with self._lock:
            self._counts[series] += count

    def observe(self, name: str, *labels: str, value: float) -> None:
        if not value >= 0:  # nor NaN
            raise ValueError(f"{name}: {value}; expected a duration")
        key = self._series(name, labels), bisect_left(LATENCY_MS, value)
        with self._lock:
            self._latencies[key] += 1

    def set(self, name: str, *labels: str, value: float | None) -> None:
        """None takes the series away."""
        if value is not None and not math.isfinite(value):
            raise ValueError(f"{name}: {value}; expected a finite number")
        series = self._series(name, labels)
        with self._lock:
            if value is None:
                self._gauges.pop(series, None)
            else:
                self._gauges[series] = value

    def flush(self) -> None:
        """Hand everything over, if the sink is ready; what it fails to take waits for next time."""
        with self._flushing:
            if not self._sink.ready():
                return
            with self._lock:
                counts, self._counts = self._counts, Counter()
                latencies, self._latencies = self._latencies, Counter()
                gauges = dict(self._gauges)
            try:
                while counts:
                    series, count = next(iter(counts.items()))
                    self._sink.add(series, count)
                    del counts[series]
                while latencies:
                    (series, bucket), count = next(iter(latencies.items()))
                    self._sink.observe(series, _middle(bucket), count)
                    del latencies[series, bucket]
                for series, value in gauges.items():  # each time: Ray forgets silent gauges
                    self._sink.set(series, value)
            finally:
                with self._lock:
                    self._counts.update(counts)
                    self._latencies.update(latencies)

    def _series(self, name: str, labels: tuple[str, ...]) -> Series:
        series = name, labels
        if series not in self._known:
            _check(series)
            self._known.add(series)
        return series


def _check(series: Series) -> None:
    name, labels = series
    metric = METRICS[name]
    if len(labels) != len(metric.labels):
        raise ValueError(f"{name}: labels {labels}; expected {', '.join(metric.labels)}")
    for label, value in zip(metric.labels, labels, strict=True):
        if not (0 < len(value) <= LONGEST_LABEL and value.isprintable()):
            raise ValueError(f"{name}: {label} {value[:80]!r}; expected a short text")
    if metric.values and labels[-1] not in metric.values:
        expected = ", ".join(metric.values)
        raise ValueError(f"{name}: {metric.labels[-1]} {labels[-1]!r}; expected one of {expected}")


def _middle(bucket: int) -> float:
    """Stands for all latencies of a bucket: Ray itself keeps no more than the bucket."""
    if bucket == len(LATENCY_MS):
        return 2.0 * LATENCY_MS[-1]
    return (LATENCY_MS[bucket] + (LATENCY_MS[bucket - 1] if bucket else 0.0)) / 2.0


class _Shared:
    """The board of this process, and the thread that empties it; both from the first use on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._board: Board | None = None

    def board(self) -> Board:
        with self._lock:
            if self._board is None:
                self._board = Board(RaySink())
                threading.Thread(
                    target=self._flush_for_ever, args=(self._board,), name="metrics", daemon=True
                ).start()
            return self._board

    @staticmethod
    def _flush_for_ever(board: Board) -> None:
        pause = threading.Event()
        while True:
            pause.wait(FLUSH_S)
            try:
                board.flush()
            except Exception:  # Ray may be going down; the counts are kept
                continue


_shared = _Shared()


class Metrics:
    """What happens at a system's endpoint, in its own words."""

    def __init__(self, system: str, board: Board | None = None) -> None:
        self._system = system
        self._board = board or _shared.board()

    def decided(self, source: str, cause: str | None, latency_ms: float) -> None:
        if (source == "policy") != (cause is None):
            raise ValueError(f"source {source!r} with cause {cause!r}; only a fallback has one")
        self._board.observe("loadmaster_decision_latency_ms", self._system, value=latency_ms)
        self._board.add("loadmaster_decisions_total", self._system, source)
        if cause is not None:
            self._board.add("loadmaster_fallbacks_total", self._system, cause)

    def guarded(self, action: str) -> None:
        self._board.add("loadmaster_guard_actions_total", self._system, action)

    def drifted(self, what: str) -> None:
        """`what`: "rewards", or the feature of the inputs."""
        self._board.add("loadmaster_drift_total", self._system, what)

    def lifecycle(self, state: str) -> None:
        if state not in STATES:
            raise ValueError(f"lifecycle {state!r}; expected one of {', '.join(STATES)}")
        self._board.set("loadmaster_lifecycle", self._system, value=STATES.index(state))

    def paused(self, paused: bool) -> None:
        self._board.set("loadmaster_paused", self._system, value=float(paused))

    def shadow(self, agreement: float | None) -> None:
        """None: no policy is in shadow, or it has decided nothing yet."""
        self._board.set("loadmaster_shadow_agreement", self._system, value=agreement)

    def reward(self, who: str, mean: float | None) -> None:
        """None: the window is empty."""
        self._board.set("loadmaster_reward_mean", self._system, who, value=mean)

    def log_dropped(self, rows: int) -> None:
        if rows > 0:
            self._board.add("loadmaster_log_dropped_total", self._system, count=rows)


def rejected(status: int, board: Board | None = None) -> None:
    """A request was refused. Of the service as a whole: it may have named no system."""
    (board or _shared.board()).add("loadmaster_rejected_total", str(status))


def export_port(environment: Mapping[str, str] = os.environ) -> int | None:
    """The port of Ray's page for Prometheus that LOADMASTER_METRICS_PORT asks for, if any; for
    whoever starts Ray, which otherwise picks one."""
    given = environment.get(METRICS_PORT, "")
    if not given:
        return None
    if not (given.isascii() and given.isdigit() and 1 <= int(given) <= 65535):
        raise InputError(f"{METRICS_PORT}={given[:40]!r}; expected a port, 1 to 65535")
    return int(given)
