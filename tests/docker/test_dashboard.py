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
        assert ('system=~"$system"' in query) == ("system" in metric.labels), query
        assert query.count("(") == query.count(")")
        assert metric.kind != "gauge" or "rate(" not in query
        assert metric.kind != "histogram" or "_bucket{" in query


def test_dashboard_uses_the_provisioned_source(dashboard: Any, docker: Path) -> None:
    file = docker / "grafana" / "provisioning" / "datasources" / "prometheus.yaml"
    (source,) = yaml.safe_load(file.read_text())["datasources"]
    source_ref = {"type": source["type"], "uid": source["uid"]}
    (variable,) = dashboard["templating"]["list"]
    assert variable["name"] == "system"
    assert metrics_in(variable["definition"]) <= set(METRICS)
    assert all(
        each["datasource"] == source_ref
        for each in (variable, *dashboard["panels"], *targets(dashboard))
    )


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
