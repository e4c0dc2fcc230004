"""Metrics of the service for Prometheus, recorded with `ray.util.metrics`.

A call takes about 4 microseconds. Ray exports the values every ten seconds with `ray_` before each
name, and drops gauges that are not set again. Nothing is recorded while Ray is not running.
"""

import os
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, Literal, NamedTuple

from loadmaster.envs.errors import InputError
from loadmaster.serving.decisions.tenant_names import DEFAULT_TENANT

STATES: Final = ("OFFLINE", "ONLINE", "SERVING")  # values 0, 1, 2 of loadmaster_lifecycle
METRICS_PORT: Final = "LOADMASTER_METRICS_PORT"
# Upper bounds of the latency buckets; the last bucket is unbounded.
LATENCY_MS: Final = (0.5, 1, 2, 3, 4, 5, 7.5, 10, 15, 20, 30, 50, 75, 100, 200, 500, 1000)


OTHER_TENANTS: Final = "other tenants"  # no valid name of one


class Metric(NamedTuple):
    kind: Literal["counter", "gauge", "histogram"]
    description: str
    labels: tuple[str, ...] = ("system", "tenant")


METRICS: Final[Mapping[str, Metric]] = {
    "loadmaster_decisions_total": Metric(
        "counter", "Decisions, by source: policy or fallback.", ("system", "tenant", "source")
    ),
    "loadmaster_fallbacks_total": Metric(
        "counter", "Decisions made by the rule, by cause.", ("system", "tenant", "cause")
    ),
    "loadmaster_decision_latency_ms": Metric(
        "histogram", "From a request's arrival to its decision, milliseconds."
    ),
    "loadmaster_guard_actions_total": Metric(
        "counter", "Quantities changed by the guard.", ("system", "tenant", "action")
    ),
    "loadmaster_drift_total": Metric(
        "counter", "Drifts detected in rewards or in an input.", ("system", "tenant", "what")
    ),
    "loadmaster_lifecycle": Metric("gauge", "0 OFFLINE, 1 ONLINE, 2 SERVING."),
    "loadmaster_paused": Metric("gauge", "1 while an operator has paused the policy."),
    "loadmaster_shadow_agreement": Metric(
        "gauge", "Mean agreement of the shadow policy's decisions with those carried out."
    ),
    "loadmaster_reward_mean": Metric(
        "gauge", "Mean reward of the window.", ("system", "tenant", "who")
    ),
    "loadmaster_log_dropped_total": Metric(
        "counter", "Rows that the decision log dropped.", ("system",)
    ),
    "loadmaster_rejected_total": Metric(
        "counter", "Requests refused, by HTTP status.", ("status",)
    ),
}


class TenantLabels:
    """The first tenants have a label of their own, all others share one: series are never freed."""

    def __init__(self, most: int = 100) -> None:
        self._most, self._own = most, {DEFAULT_TENANT}

    def label(self, tenant: str) -> str:
        if tenant not in self._own:
            if len(self._own) >= self._most:
                return OTHER_TENANTS
            self._own.add(tenant)
        return tenant

    def has(self, tenant: str) -> bool:
        return tenant in self._own


def create_all() -> None:
    """Create the metrics, which takes too long for the first request that needs them."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        for name in METRICS:
            _ray_metric(name)


@cache
def _ray_metric(name: str) -> Any:
    from ray.util import metrics

    metric = METRICS[name]
    extra = {"boundaries": list(LATENCY_MS)} if metric.kind == "histogram" else {}
    make = getattr(metrics, metric.kind.capitalize())
    return make(name, description=metric.description, tag_keys=metric.labels, **extra)


def record(name: str, value: float, *labels: str) -> None:
    """Add to a counter, observe with a histogram, or set a gauge, of METRICS."""
    ray = sys.modules.get("ray")  # not imported by processes that do not use it
    if ray is None or not ray.is_initialized():
        return
    metric, tags = _ray_metric(name), dict(zip(METRICS[name].labels, labels, strict=True))
    match METRICS[name].kind:
        case "counter":
            metric.inc(value, tags=tags)
        case "gauge":
            metric.set(value, tags=tags)
        case "histogram":
            metric.observe(value, tags=tags)


def export_port(environment: Mapping[str, str] = os.environ) -> int | None:
    """Port of Ray's Prometheus page from LOADMASTER_METRICS_PORT; None: Ray picks one."""
    given = environment.get(METRICS_PORT, "")
    if not given:
        return None
    if not (given.isascii() and given.isdigit() and 1 <= int(given) <= 65535):
        raise InputError(f"{METRICS_PORT}={given[:40]!r}; expected a port, 1 to 65535")
    return int(given)
