"""Columns of the state document: gaps, reports that are late, names of pods."""

import re
from typing import Any

import pytest

from loadmaster.platform.steering.core import SilentError
from loadmaster.platform.steering.kubernetes.queries import (
    Application,
    MetricReader,
    placeholders,
)
from loadmaster.platform.steering.kubernetes.resource import parse_spec
from loadmaster.serving.systems.aware.schema import AwareState
from tests.platform.steering.kubernetes.api_server import mpa_object

PLAN = {"replicas": 3.0, "cpu_m": 500.0, "memory_mib": 512.0}


class Columns:
    """A Prometheus whose columns are all 2, but for those whose query has a text."""

    def __init__(self, **columns: list[float | None]) -> None:
        self.columns = columns

    def column(self, query: str, end_s: float, step_s: float, count: int) -> list[float | None]:
        for text, column in self.columns.items():
            if text in query:
                return [2.0] * (count - len(column)) + column
        return [2.0] * count


def application(measured: bool = False, **spec: Any) -> Application:
    return Application("shop/cart", parse_spec(mpa_object(**spec), "a"), "app", PLAN, measured)


def read(**columns: list[float | None]) -> Any:
    prometheus: Any = Columns(**columns)
    document, _ = MetricReader(prometheus, reports=20, steps=4).read(application(), 1e9)
    AwareState.model_validate(document).check()
    return document


def test_gap_in_the_requests_is_no_fall_of_the_load() -> None:
    steps = read(increase=[9.0, None, 0.0, None])["steps"]
    assert steps["requests"] == [9, 9, 0, 0]


def test_rows_without_a_part_have_no_metrics_and_keep_their_pods() -> None:
    reports = read(container_cpu=[2.0, None, None])["reports"]
    assert reports["used_memory_mib"][-3:] == [2, None, None]
    assert reports["pods"][-3:] == [2, 2, 2]
    assert reports["age_s"][-3:] == [30, 15, 0]


def test_history_begins_with_the_first_report() -> None:
    reports = read(container_cpu=[None] * 15 + [2.0] * 5)["reports"]
    assert {len(column) for column in reports.values()} == {5}


def test_counters_that_fall_are_not_negative() -> None:
    assert read(container_oom=[-0.5])["reports"]["ooms"][-1] == 0


def test_reports_that_stop_are_silence() -> None:
    with pytest.raises(SilentError, match="195 s old"):
        read(container_cpu=[None] * 13)
    with pytest.raises(SilentError, match="no complete report"):
        read(container_cpu=[None] * 10 + [2.0] * 10, working_set=[2.0] * 10 + [None] * 10)


@pytest.mark.parametrize(
    ("kind", "own", "others"),
    [
        ("Deployment", "cart-7d9f8b6c5d-x2k4z", ["cart-db-7d9f8b6c5d-x2k4z", "cart-x2k4z", "cart"]),
        ("StatefulSet", "cart-12", ["cart-db-12", "cart-7d9f8b6c5d-x2k4z"]),
        ("ReplicaSet", "cart-x2k4z", ["cart-db-x2k4z", "my-cart-x2k4z"]),
    ],
)
def test_pods_are_selected_by_name(kind: str, own: str, others: list[str]) -> None:
    chosen = application(targetRef={"kind": kind, "name": "cart"})
    selector = placeholders(chosen, 30.0)["pods"]
    pattern = re.fullmatch(r'namespace="shop",pod=~"(.*)"', selector)
    assert pattern is not None
    assert re.fullmatch(pattern[1], own)
    assert not any(re.fullmatch(pattern[1], name) for name in others)


def test_labels_select_the_histogram_instead_and_are_quoted() -> None:
    names = placeholders(application(labels={"ingress": 'a"b'}), 30.0)
    assert names["requests"] == 'ingress="a\\"b"'
    assert names["pods"].startswith('namespace="shop"')
