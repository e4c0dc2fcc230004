"""The state document of an application, from PromQL queries in one table.

Series are those of cAdvisor (the kubelet), kube-state-metrics, and a latency histogram of the
application or of its ingress. `$pods` selects the target's pods, `$container` its container as
well, `$requests` the histogram's series; `$window` is the time that rates are taken over.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from string import Template
from typing import Any, NamedTuple

from loadmaster.envs.errors import InputError, unknown_name
from loadmaster.envs.pod_scaling.settings import INTERVAL_S, STEP_S
from loadmaster.platform.steering.core import SilentError
from loadmaster.platform.steering.kubernetes.resource import MpaSpec
from loadmaster.platform.steering.prometheus import Column, Prometheus

MAX_REPORTS, MAX_STEPS = 240, 60
STALE_S = 180.0  # age of the newest complete report from which on the metrics count as silent
VERSION = 1


class Application(NamedTuple):
    """What the queries of an application depend on."""

    name: str  # NAMESPACE/NAME
    spec: MpaSpec
    container: str
    plan: Mapping[str, float]
    was_measured: bool  # its series were there before: if they are missing, Prometheus is silent


class Query(NamedTuple):
    """`required`: without its series nothing can be decided; others are 0 where there is none."""

    promql: str
    required: bool = True


REPORTS: Mapping[str, Query] = {
    "pods": Query('sum(kube_pod_status_phase{$pods,phase=~"Pending|Running"})'),
    "ready": Query('sum(kube_pod_status_ready{$pods,condition="true"})'),
    "used_cpu_m": Query("1000 * sum(rate(container_cpu_usage_seconds_total{$container}[$window]))"),
    "limit_cpu_m": Query(
        '1000 * sum(kube_pod_container_resource_limits{$container,node!="",resource="cpu"})'
    ),
    "used_memory_mib": Query("sum(container_memory_working_set_bytes{$container}) / 1048576"),
    "limit_memory_mib": Query(
        'sum(kube_pod_container_resource_limits{$container,node!="",resource="memory"}) / 1048576'
    ),
    "peak_memory_mib": Query("max(container_memory_working_set_bytes{$container}) / 1048576"),
    "disk_mb_s": Query(
        "(sum(rate(container_fs_reads_bytes_total{$container}[$window]))"
        " + sum(rate(container_fs_writes_bytes_total{$container}[$window]))) / 1e6",
        required=False,
    ),
    "network_mb_s": Query(
        "(sum(rate(container_network_receive_bytes_total{$pods}[$window]))"
        " + sum(rate(container_network_transmit_bytes_total{$pods}[$window]))) / 1e6",
        required=False,
    ),
    "requests": Query(f"{INTERVAL_S} * sum(rate($latency_count{{$requests}}[$window]))"),
    "ooms": Query(
        f"{INTERVAL_S} * sum(rate(container_oom_events_total{{$container}}[$window]))",
        required=False,
    ),
}
STEPS: Mapping[str, Query] = {
    "requests": Query(f"sum(increase($latency_count{{$requests}}[{STEP_S}s]))"),
    "p99_s": Query(
        f"histogram_quantile(0.99, sum by (le) (rate($latency_bucket{{$requests}}[{STEP_S}s])))",
        required=False,
    ),
    "restarts": Query(
        f"sum(increase(kube_pod_container_status_restarts_total{{$container}}[{STEP_S}s]))",
        required=False,
    ),
}
# Names of pods, by the kind that owns them; `cart-db-...` is not a pod of `cart`.
POD_NAMES = {
    "Deployment": "{name}-[a-z0-9]{{1,10}}-[a-z0-9]{{5}}",
    "StatefulSet": "{name}-[0-9]+",
    "ReplicaSet": "{name}-[a-z0-9]{{5}}",
}


@dataclass(frozen=True)
class MetricReader:
    """Reads the columns of the state document of an application."""

    prometheus: Prometheus
    window_s: float = 2.0 * INTERVAL_S  # at least twice the scrape interval
    reports: int = MAX_REPORTS
    steps: int = MAX_STEPS

    def read(self, application: Application, now_s: float) -> tuple[dict[str, Any], list[str]]:
        """The document, and one line for each series that is missing."""
        spec = application.spec
        notes: list[str] = []
        reports = {
            column: self._column(f"reports.{column}", query, application, now_s, notes)
            for column, query in REPORTS.items()
        }
        steps = {
            column: self._column(f"steps.{column}", query, application, now_s, notes)
            for column, query in STEPS.items()
        }
        ages = [float(INTERVAL_S * back) for back in reversed(range(self.reports))]
        complete = [None not in row for row in zip(*reports.values(), strict=True)]
        if not any(complete):
            raise SilentError("metrics", f"Prometheus has no complete report of {application.name}")
        newest = ages[len(ages) - 1 - complete[::-1].index(True)]
        if newest > STALE_S:
            raise SilentError(
                "metrics",
                f"the newest report of {application.name} is {newest:g} s old; expected at most "
                f"{STALE_S:g}",
            )
        first = complete.index(True)
        begun = next((k for k, value in enumerate(steps["requests"]) if value is not None), None)
        if begun is None:
            raise SilentError("metrics", f"no requests of {application.name} by minute")
        if any(steps["requests"]) and not any(value is not None for value in steps["p99_s"]):
            query = spec.queries.get("steps.p99_s", STEPS["p99_s"].promql)
            raise _missing("steps.p99_s", query, application)
        steps["requests"] = _repeated(steps["requests"])
        bounds = {quantity: list(pair) for quantity, pair in spec.bounds().items()}
        document = {
            "version": VERSION,
            "application": application.name,
            "slo_s": spec.slo_seconds,
            "bounds": {**bounds, "replicas": [int(one) for one in bounds["replicas"]]},
            "plan": {**application.plan, "replicas": int(application.plan["replicas"])},
            "reports": {
                "age_s": ages[first:],
                **{name: _cleared(name, one, complete)[first:] for name, one in reports.items()},
            },
            "steps": {column: values[begun:] for column, values in steps.items()},
        }
        return document, notes

    def _column(
        self, label: str, query: Query, application: Application, now_s: float, notes: list[str]
    ) -> Column:
        """Evaluate a query; where its series are optional, a missing value is 0."""
        table, _, name = label.partition(".")
        step_s, count = (STEP_S, self.steps) if table == "steps" else (INTERVAL_S, self.reports)
        names = placeholders(application, self.window_s)
        promql = expand(application.spec.queries.get(label, query.promql), names)
        column = self.prometheus.column(promql, now_s, step_s, count)
        if all(value is None for value in column):
            if query.required:
                raise _missing(label, promql, application)
            if name != "p99_s":  # which idle applications do not have
                notes.append(f"no series for {label}, taken as 0")
        if name == "p99_s":
            return column
        if not query.required:
            column = [0.0 if value is None else value for value in column]
        return [None if value is None else max(value, 0.0) for value in column]


def _missing(label: str, promql: str, application: Application) -> Exception:
    """Wrong input, unless the series was there before: then Prometheus is silent about it."""
    text = f"Prometheus has no series for {label} of {application.name}: {promql}"
    if application.was_measured:
        return SilentError("metrics", text)
    return InputError(f"{text}; expected at least one sample")


def _repeated(column: Column) -> Column:
    """The column with the last value in place of a missing one: a gap is not a fall of the load."""
    last: float | None = None
    found: Column = []
    for value in column:
        last = last if value is None else value
        found.append(last)
    return found


def _cleared(name: str, column: Column, complete: list[bool]) -> Column:
    """The column without rows of which a part is missing; numbers of pods are known at once."""
    if name in ("pods", "ready"):
        return column
    return [value if whole else None for value, whole in zip(column, complete, strict=True)]


def placeholders(application: Application, window_s: float) -> dict[str, str]:
    """Values of the placeholders of the queries."""
    spec, container = application.spec, application.container
    namespace = application.name.partition("/")[0]
    kind, name = spec.target_ref.kind, spec.target_ref.name
    pattern = POD_NAMES[kind].format(name=name.replace(".", "[.]"))
    pods = f"namespace={_quoted(namespace)},pod=~{_quoted(pattern)}"
    chosen = ",".join(f"{label}={_quoted(value)}" for label, value in spec.labels.items())
    return {
        "pods": pods,
        "container": f"{pods},container={_quoted(container)}",
        "requests": chosen or pods,
        "latency_count": f"{spec.latency_metric}_count",
        "latency_bucket": f"{spec.latency_metric}_bucket",
        "window": f"{math.ceil(window_s)}s",
    }


def expand(promql: str, names: Mapping[str, str]) -> str:
    try:
        return Template(promql).substitute(names)
    except (KeyError, ValueError) as fault:
        known = ", ".join(f"${name}" for name in names)
        raise InputError(f"query {promql!r}: {fault}; expected only {known}") from None


def check_queries(spec: MpaSpec, application: str) -> None:
    """Require names of the tables in `queries`."""
    known = [*(f"reports.{name}" for name in REPORTS), *(f"steps.{name}" for name in STEPS)]
    for name in spec.queries:
        if name not in known:
            raise InputError(f"{application}: queries: {unknown_name('query', name, known)}")


def _quoted(text: str) -> str:
    """A string of PromQL, which has JSON's escapes."""
    return json.dumps(text)
