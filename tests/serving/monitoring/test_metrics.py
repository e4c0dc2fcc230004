"""Metrics of the service: names, labels and values, also as Ray's page exports them."""

import time
import urllib.request
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.serving.decisions.request import Decided, RequestOptions
from loadmaster.serving.decisions.tenant_names import is_tenant
from loadmaster.serving.http import app_factory
from loadmaster.serving.monitoring import metrics
from loadmaster.serving.monitoring.decision_log import DecisionLog, LogSettings
from loadmaster.serving.monitoring.metrics import METRICS, OTHER_TENANTS, TenantLabels, export_port
from loadmaster.serving.monitoring.monitor import MonitorSettings
from loadmaster.serving.monitoring.recorder import DecisionRecorder
from tests.serving.conftest import Start

REJECTED, DROPPED = "loadmaster_rejected_total", "loadmaster_log_dropped_total"


def test_every_metric_has_its_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[tuple[Any, ...]] = []
    monkeypatch.setattr(metrics, "record", lambda *arguments: recorded.append(arguments))
    log = DecisionLog(tmp_path, LogSettings(queue_rows=1, flush_s=3600))
    settings, others = MonitorSettings(reward_block=1), MagicMock()
    recorder = DecisionRecorder("toy", settings, log, others, "SERVING", 0.0)
    recorder.report(paused=False)
    assert {name for name, *_ in recorded} == {"loadmaster_lifecycle", "loadmaster_paused"}
    decided = Decided(
        decision={}, reason={}, source="fallback", cause="timeout", detail="", quantities=(),
        policy={"name": "hold", "version": ""}, features={}, guarded=("bounds",),
    )  # fmt: skip
    response = {"id": "a", "decision": {}, "reason": {}, "latency_ms": 2.0}
    response["shadow"] = {"agrees": True, "agreement": 1.0, "fault": None}
    recorder.record_decision(b'{"state": {}}', RequestOptions(), response, decided, 0.0)
    for step in range(60):
        recorder.record_feedback("a", {}, "policy", 2.0 if step < 40 else 0.1, float(step))
    recorder.report(paused=True)
    log.close()
    assert {name for name, *_ in recorded} == set(METRICS) - {REJECTED, DROPPED}
    for name, _, system, tenant, *labels in recorded:
        assert (system, tenant) == ("toy", "default")
        assert 2 + len(labels) == len(METRICS[name].labels)


def test_tenants_beyond_the_bound_share_a_label() -> None:
    labels = TenantLabels(most=3)
    found = [labels.label(name) for name in ("a", "b", "c", "a", "default", "d")]
    assert found == ["a", "b", OTHER_TENANTS, "a", "default", OTHER_TENANTS]
    assert not is_tenant(OTHER_TENANTS)  # no tenant can have the name


def test_refusals_are_counted_by_status(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[tuple[Any, ...]] = []
    monkeypatch.setattr(app_factory, "record", lambda *arguments: recorded.append(arguments))
    here = start()
    here.decide()
    assert recorded == []
    assert here.request("POST", "/v1/toy/decide", {"state": {}}).status == 422
    assert here.request("GET", "/v1/none/status").status == 404
    assert recorded == [(REJECTED, 1, "422"), (REJECTED, 1, "404")]
    assert METRICS[REJECTED].labels == ("status",)


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
    found = {}
    for name, labels, value, *_ in (sample for family in families for sample in family.samples):
        if labels.get("system") == system:
            own = [labels[key] for key in ("source", "le") if key in labels]
            found[" ".join([name.removeprefix("ray_loadmaster_"), *own])] = value
    return found


@pytest.mark.slow
def test_ray_exports_counters_gauges_and_histograms(ray_session: None) -> None:
    for latency_ms in (0.4, 2.5, 2.6, 2000.0):
        metrics.record("loadmaster_decision_latency_ms", latency_ms, "test-metrics", "default")
        metrics.record("loadmaster_decisions_total", 1, "test-metrics", "default", "policy")
    buckets = {"0.5": 1, "2.0": 1, "3.0": 3, "1000.0": 3, "+Inf": 4}
    expected = {f"decision_latency_ms_bucket {most}": count for most, count in buckets.items()}
    expected |= {"decisions_total policy": 4, "shadow_agreement": 0.25}
    found, deadline = scrape("test-metrics"), time.monotonic() + 40
    while not expected.keys() <= found.keys() and time.monotonic() < deadline:
        metrics.record(
            "loadmaster_shadow_agreement", 0.25, "test-metrics", "default"
        )  # or Ray drops it
        time.sleep(0.5)
        found = scrape("test-metrics")
    assert {key: found.get(key) for key in expected} == expected
