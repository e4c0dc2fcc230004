"""What is counted reaches Prometheus, once, under the names the dashboard asks for."""

from __future__ import annotations

import contextlib
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.envs.errors import InputError
from loadmaster.serving.monitoring.metrics import (
    CAUSES,
    LATENCY_MS,
    METRICS,
    STATES,
    Board,
    Metrics,
    Series,
    export_port,
    rejected,
)


class Ledger:
    """A sink that remembers, and that can be away or break."""

    def __init__(self) -> None:
        self.is_ready = True
        self.breaks_after = -1  # calls; -1: never
        self.counts: Counter[Series] = Counter()
        self.observed: Counter[tuple[Series, float]] = Counter()
        self.gauges: dict[Series, float] = {}

    def ready(self) -> bool:
        return self.is_ready

    def _call(self) -> None:
        if self.breaks_after == 0:
            raise ConnectionError("gone")
        self.breaks_after -= 1

    def add(self, series: Series, count: int) -> None:
        self._call()
        self.counts[series] += count

    def observe(self, series: Series, value: float, count: int) -> None:
        self._call()
        self.observed[series, value] += count

    def set(self, series: Series, value: float) -> None:
        self._call()
        self.gauges[series] = value


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def board(ledger: Ledger) -> Board:
    return Board(ledger)


def test_every_word_has_its_metric(ledger: Ledger, board: Board) -> None:
    metrics = Metrics("decima", board)
    metrics.decided("policy", None, 1.2)
    metrics.decided("fallback", "timeout", 60.0)
    metrics.guarded("flap")
    metrics.drifted("queue length")
    metrics.lifecycle("SERVING")
    metrics.paused(True)
    metrics.shadow(0.75)
    metrics.reward("rule", -3.5)
    metrics.log_dropped(7)
    metrics.log_dropped(0)
    rejected(429, board)
    board.flush()
    assert ledger.counts == {
        ("loadmaster_decisions_total", ("decima", "policy")): 1,
        ("loadmaster_decisions_total", ("decima", "fallback")): 1,
        ("loadmaster_fallbacks_total", ("decima", "timeout")): 1,
        ("loadmaster_guard_actions_total", ("decima", "flap")): 1,
        ("loadmaster_drift_total", ("decima", "queue length")): 1,
        ("loadmaster_log_dropped_total", ("decima",)): 7,
        ("loadmaster_rejected_total", ("429",)): 1,
    }
    assert ledger.gauges == {
        ("loadmaster_lifecycle", ("decima",)): 2,
        ("loadmaster_paused", ("decima",)): 1,
        ("loadmaster_shadow_agreement", ("decima",)): 0.75,
        ("loadmaster_reward_mean", ("decima", "rule")): -3.5,
    }
    latency = ("loadmaster_decision_latency_ms", ("decima",))
    assert ledger.observed == {(latency, 1.5): 1, (latency, 62.5): 1}
    told = {name for name, _ in (*ledger.counts, *ledger.gauges)} | {latency[0]}
    assert told == set(METRICS)


@pytest.mark.parametrize("state", STATES)
def test_lifecycle_levels(state: str, ledger: Ledger, board: Board) -> None:
    Metrics("das", board).lifecycle(state)
    board.flush()
    expected = {"OFFLINE": 0, "ONLINE": 1, "SERVING": 2}[state]
    assert ledger.gauges == {("loadmaster_lifecycle", ("das",)): expected}


def test_gauges_are_told_again_and_can_go(ledger: Ledger, board: Board) -> None:
    metrics = Metrics("das", board)
    metrics.shadow(0.5)
    metrics.reward("policy", 1.0)
    for _ in range(2):
        ledger.gauges.clear()
        board.flush()
        assert len(ledger.gauges) == 2
    ledger.gauges.clear()
    metrics.shadow(None)
    metrics.shadow(None)
    metrics.reward("policy", None)
    board.flush()
    assert ledger.gauges == {}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda m: m.decided("oracle", "timeout", 1.0), "source 'oracle'; expected one of policy"),
        (lambda m: m.decided("fallback", "boredom", 1.0), "cause 'boredom'; expected one of time"),
        (lambda m: m.decided("policy", "timeout", 1.0), "only a fallback has one"),
        (lambda m: m.decided("fallback", None, 1.0), "only a fallback has one"),
        (lambda m: m.decided("policy", None, float("nan")), "expected a duration"),
        (lambda m: m.decided("policy", None, -1.0), "expected a duration"),
        (
            lambda m: m.lifecycle("RETIRED"),
            "lifecycle 'RETIRED'; expected one of OFFLINE",
        ),
        (lambda m: m.guarded("kick"), "action 'kick'; expected one of bounds"),
        (lambda m: m.drifted(""), "what ''; expected a short text"),
        (lambda m: m.drifted("x" * 65), "expected a short text"),
        (lambda m: m.drifted("a\nb"), "expected a short text"),
        (lambda m: m.reward("me", 1.0), "who 'me'; expected one of policy, rule"),
        (lambda m: m.reward("rule", float("inf")), "expected a finite number"),
    ],
)
def test_wrong_labels_and_values(
    wrong: Callable[[Metrics], None], message: str, board: Board
) -> None:
    with pytest.raises(ValueError, match=message):
        wrong(Metrics("decima", board))


def test_without_ray_counts_wait(ledger: Ledger, board: Board) -> None:
    ledger.is_ready = False
    for _ in range(3):
        rejected(401, board)
        board.flush()
    assert ledger.counts == {}
    ledger.is_ready = True
    board.flush()
    board.flush()
    assert ledger.counts == {("loadmaster_rejected_total", ("401",)): 3}


events = st.lists(
    st.one_of(
        st.sampled_from(CAUSES),
        st.floats(0.0, 5000.0),
        st.integers(0, 4).map(lambda after: ("the sink breaks", after)),
        st.just("flush"),
    ),
    max_size=60,
)


@given(events)
def test_nothing_is_lost_or_told_twice(happened: list[object]) -> None:
    ledger = Ledger()
    board = Board(ledger)
    metrics = Metrics("decima", board)
    causes: Counter[str] = Counter()
    latencies: Counter[float] = Counter()
    ends = (*LATENCY_MS, float("inf"))
    for event in happened:
        match event:
            case "flush":
                board.flush()
            case float():
                metrics.decided("policy", None, event)
                latencies[next(end for end in ends if event <= end)] += 1
            case str():
                metrics.decided("fallback", event, 0.1)
                causes[event] += 1
                latencies[LATENCY_MS[0]] += 1
            case (_, int(after)):
                ledger.breaks_after = after
                metrics.paused(False)
                with contextlib.suppress(ConnectionError):
                    board.flush()
                ledger.breaks_after = -1
    board.flush()
    told = {labels[1]: n for (name, labels), n in ledger.counts.items() if "fallbacks" in name}
    assert told == causes
    in_buckets: Counter[float] = Counter()
    for (_, middle), count in ledger.observed.items():
        in_buckets[next(end for end in ends if middle <= end)] += count
    assert in_buckets == latencies
    assert sum(in_buckets.values()) == sum(
        n for (name, _), n in ledger.counts.items() if name == "loadmaster_decisions_total"
    )


def test_threads_count_together(ledger: Ledger, board: Board) -> None:
    def work() -> None:
        metrics = Metrics("decima", board)
        for i in range(500):
            metrics.decided("fallback", "paused", 1.0)
            if i % 50 == 0:
                board.flush()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    board.flush()
    assert ledger.counts[("loadmaster_fallbacks_total", ("decima", "paused"))] == 2000
    assert sum(ledger.observed.values()) == 2000


def test_the_port_is_asked_for_in_the_environment() -> None:
    assert export_port({}) is None
    assert export_port({"LOADMASTER_METRICS_PORT": ""}) is None
    assert export_port({"LOADMASTER_METRICS_PORT": "8790"}) == 8790
    for wrong in ("0", "65536", "-1", "eight", "8790 ", "٨"):
        with pytest.raises(InputError, match=r"LOADMASTER_METRICS_PORT=.* expected a port"):
            export_port({"LOADMASTER_METRICS_PORT": wrong})


def scrape() -> dict[str, float]:
    """The node's Prometheus page: our series, by name and our labels."""
    import ray
    from prometheus_client.parser import text_string_to_metric_families

    port = ray.nodes()[0]["MetricsExportPort"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        families = text_string_to_metric_families(page.read().decode())
    ours = {"system", "source", "cause", "what", "action", "who", "status", "le"}
    found = {}
    for family in families:
        for sample in family.samples:
            labels = {key: value for key, value in sample.labels.items() if key in ours}
            if sample.name.startswith("ray_loadmaster_") and (
                labels.get("system", "test-metrics") == "test-metrics"
            ):
                told = ",".join(f"{key}={labels[key]}" for key in sorted(labels))
                found[f"{sample.name}{{{told}}}"] = sample.value
    return found


def test_prometheus_sees_them_on_rays_page(ray_session: None) -> None:
    """By the shared board and its thread, as in the service: nothing is flushed by hand."""
    metrics = Metrics("test-metrics")
    for latency_ms in (0.4, 2.5, 2.6):
        metrics.decided("policy", None, latency_ms)
    metrics.decided("fallback", "not finite", 2000.0)
    metrics.guarded("bounds")
    metrics.drifted("rewards")
    metrics.lifecycle("ONLINE")
    metrics.paused(False)
    metrics.shadow(0.25)
    metrics.reward("policy", -4.0)
    metrics.log_dropped(2)
    rejected(418)  # no other test is refused with that
    expected = {
        "ray_loadmaster_decisions_total{source=policy,system=test-metrics}": 3,
        "ray_loadmaster_decisions_total{source=fallback,system=test-metrics}": 1,
        "ray_loadmaster_fallbacks_total{cause=not finite,system=test-metrics}": 1,
        "ray_loadmaster_decision_latency_ms_bucket{le=0.5,system=test-metrics}": 1,
        "ray_loadmaster_decision_latency_ms_bucket{le=2.0,system=test-metrics}": 1,
        "ray_loadmaster_decision_latency_ms_bucket{le=3.0,system=test-metrics}": 3,
        "ray_loadmaster_decision_latency_ms_bucket{le=1000.0,system=test-metrics}": 3,
        "ray_loadmaster_decision_latency_ms_bucket{le=+Inf,system=test-metrics}": 4,
        "ray_loadmaster_guard_actions_total{action=bounds,system=test-metrics}": 1,
        "ray_loadmaster_drift_total{system=test-metrics,what=rewards}": 1,
        "ray_loadmaster_lifecycle{system=test-metrics}": 1,
        "ray_loadmaster_paused{system=test-metrics}": 0,
        "ray_loadmaster_shadow_agreement{system=test-metrics}": 0.25,
        "ray_loadmaster_reward_mean{system=test-metrics,who=policy}": -4,
        "ray_loadmaster_log_dropped_total{system=test-metrics}": 2,
        "ray_loadmaster_rejected_total{status=418}": 1,
    }
    deadline = time.monotonic() + 40
    while not expected.keys() <= (found := scrape()).keys() and time.monotonic() < deadline:
        time.sleep(0.5)
    assert {key: found.get(key) for key in expected} == expected
