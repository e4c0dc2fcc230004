"""The Grafana dashboard and the docs cover exactly the existing metrics."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from loadmaster.serving.monitoring.metrics import METRICS, STATES


@pytest.fixture(scope="module")
def dashboard(docker: Path) -> Any:
    return json.loads((docker / "grafana" / "dashboards" / "loadmaster.json").read_text())


def metrics_in(text: str) -> set[str]:
    """Names of metrics in a query, without Ray's prefix and the suffixes of histograms."""
    names = re.findall(r"\bray_(loadmaster_\w+)", text)
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}


def targets(dashboard: Any) -> list[dict[str, str]]:
    return [target for panel in dashboard["panels"] for target in panel["targets"]]


def test_dashboard_shows_every_metric_and_no_other(dashboard: Any) -> None:
    shown = {name for target in targets(dashboard) for name in metrics_in(target["expr"])}
    assert shown == set(METRICS)


def test_queries_use_existing_labels(dashboard: Any) -> None:
    for target in targets(dashboard):
        query = target["expr"]
        (name,) = metrics_in(query)
        metric = METRICS[name]
        known = {*metric.labels, *(["le"] if metric.kind == "histogram" else [])}
        grouped = {
            label for found in re.findall(r"by \(([^)]*)\)", query) for label in found.split(", ")
        }
        matched = set(re.findall(r"(\w+)=~?\"", query))
        shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert grouped, "sum over the labels that Ray adds"
        assert grouped | matched <= known, query
        assert shown == grouped - {"le"}, query
        for selector in re.findall(r"ray_loadmaster_\w+(\{[^}]*\})?", query):
            for label in ("system", "tenant"):
                assert (f'{label}=~"${label}"' in selector) == (label in metric.labels), query
        assert query.count("(") == query.count(")")
        if metric.kind == "gauge":  # states and means cannot be added up over tenants
            assert "rate(" not in query
            assert grouped == set(metric.labels)
        assert metric.kind != "histogram" or "_bucket{" in query


def test_dashboard_uses_the_provisioned_source(dashboard: Any, docker: Path) -> None:
    file = docker / "grafana" / "provisioning" / "datasources" / "prometheus.yaml"
    (source,) = yaml.safe_load(file.read_text())["datasources"]
    source_ref = {"type": source["type"], "uid": source["uid"]}
    variables = dashboard["templating"]["list"]
    assert all(
        each["datasource"] == source_ref
        for each in (*variables, *dashboard["panels"], *targets(dashboard))
    )


def test_variables_take_their_values_from_metrics(dashboard: Any) -> None:
    variables = {one["name"]: one for one in dashboard["templating"]["list"]}
    assert set(variables) == {"system", "tenant"}
    for label, variable in variables.items():
        (name,) = metrics_in(variable["definition"])
        assert variable["query"]["query"] == variable["definition"]
        assert variable["definition"].endswith(f", {label})")
        assert label in METRICS[name].labels
        assert variable["includeAll"]
    # "other tenants" has no gauges; a list of all names would make queries long.
    assert metrics_in(variables["tenant"]["definition"]) == {"loadmaster_decisions_total"}
    assert variables["tenant"]["allValue"] == ".*"


def test_lifecycle_panel_names_the_states(dashboard: Any) -> None:
    (panel,) = [panel for panel in dashboard["panels"] if panel["title"] == "Lifecycle"]
    (mapping,) = panel["fieldConfig"]["defaults"]["mappings"]
    names = {number: state["text"] for number, state in mapping["options"].items()}
    assert names == {str(level): state for level, state in enumerate(STATES)}


def test_docs_list_every_metric(root: Path) -> None:
    text = (root / "docs" / "operations.md").read_text()
    rows = re.findall(r"^\| `(loadmaster_\w+)` \| `?([\w, ]*)`? \|", text, flags=re.MULTILINE)
    assert {name: tuple(labels.split(", ")) for name, labels in rows} == {
        name: metric.labels for name, metric in METRICS.items()
    }
