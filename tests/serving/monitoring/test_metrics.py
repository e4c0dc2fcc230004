"""Metrics of the service: names, labels and values, also as Ray's page exports them."""

from __future__ import annotations

import time
import urllib.request
from typing import Any

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.serving.monitoring import metrics as module
from loadmaster.serving.monitoring.metrics import METRICS, STATES, Metrics, export_port, rejected


def record_all(system: str) -> None:
    metrics = Metrics(system)
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
    rejected(418)  # a status that no other test causes


def test_every_metric_gets_its_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[tuple[Any, ...]] = []
    monkeypatch.setattr(module, "record", lambda *arguments: recorded.append(arguments))
    record_all("decima")
    assert {name for name, *_ in recorded} == set(METRICS)
    for name, _, *labels in recorded:
        assert len(labels) == len(METRICS[name].labels)
        assert labels[0] == "decima" or METRICS[name].labels == ("status",)


def test_absent_values_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[tuple[Any, ...]] = []
    monkeypatch.setattr(module, "record", lambda *arguments: recorded.append(arguments))
    metrics = Metrics("das")
    metrics.shadow(None)
    metrics.reward("policy", None)
    metrics.log_dropped(0)
    assert recorded == []
    for state in STATES:
        metrics.lifecycle(state)
    assert [value for _, value, _ in recorded] == [0, 1, 2]


def test_export_port_is_read_from_the_environment() -> None:
    assert export_port({}) is None
    assert export_port({"LOADMASTER_METRICS_PORT": ""}) is None
    assert export_port({"LOADMASTER_METRICS_PORT": "8790"}) == 8790
    for wrong in ("0", "65536", "-1", "eight", "8790 ", "٨"):
        with pytest.raises(InputError, match="LOADMASTER_METRICS_PORT"):
            export_port({"LOADMASTER_METRICS_PORT": wrong})


def scrape(system: str) -> dict[str, float]:
    """The series of a system on the node's Prometheus page, by name and own labels."""
    import ray
    from prometheus_client.parser import text_string_to_metric_families

    port = ray.nodes()[0]["MetricsExportPort"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        families = text_string_to_metric_families(page.read().decode())
    own = {label for metric in METRICS.values() for label in metric.labels} | {"le"}
    found = {}
    for sample in (sample for family in families for sample in family.samples):
        labels = {key: value for key, value in sample.labels.items() if key in own}
        if sample.name.startswith("ray_loadmaster_") and labels.get("system", system) == system:
            shown = ",".join(f"{key}={labels[key]}" for key in sorted(labels) if key != "system")
            found[f"{sample.name.removeprefix('ray_loadmaster_')}{{{shown}}}"] = sample.value
    return found


@pytest.mark.slow
def test_ray_exports_every_metric(ray_session: None) -> None:
    record_all("test-metrics")
    expected = {
        "decisions_total{source=policy}": 3,
        "decisions_total{source=fallback}": 1,
        "fallbacks_total{cause=not finite}": 1,
        "decision_latency_ms_bucket{le=0.5}": 1,
        "decision_latency_ms_bucket{le=2.0}": 1,
        "decision_latency_ms_bucket{le=3.0}": 3,
        "decision_latency_ms_bucket{le=1000.0}": 3,
        "decision_latency_ms_bucket{le=+Inf}": 4,
        "guard_actions_total{action=bounds}": 1,
        "drift_total{what=rewards}": 1,
        "lifecycle{}": 1,
        "paused{}": 0,
        "shadow_agreement{}": 0.25,
        "reward_mean{who=policy}": -4,
        "log_dropped_total{}": 2,
        "rejected_total{status=418}": 1,
    }
    deadline = time.monotonic() + 40
    while (
        not expected.keys() <= (found := scrape("test-metrics")).keys()
        and time.monotonic() < deadline
    ):
        time.sleep(0.5)
    assert {key: found.get(key) for key in expected} == expected
