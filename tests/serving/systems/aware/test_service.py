"""AWARE behind HTTP: applications are tenants, whose memory stays with them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadmaster.serving.decisions.policy_memory import read_memory
from loadmaster.serving.decisions.tenant_names import is_tenant, tenant_of
from loadmaster.serving.http import schemas
from loadmaster.serving.monitoring.log_files import read_log
from loadmaster.serving.systems.aware.schema import EXAMPLE
from tests.serving import toy
from tests.serving.conftest import LocalService, open_service
from tests.serving.systems.aware import fake

LIMITS = {"kinds": {"cpu_m": {"maximum": 600}}}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalService]:
    folder = tmp_path_factory.mktemp("aware")
    systems: dict[str, Any] = {
        "toy": {"endpoint": toy.REFERENCE, "bundle": str(toy.make_bundle(folder / "toy"))},
        "aware": {
            "endpoint": fake.REFERENCE, "guard": LIMITS, "deadline_ms": 60_000,
            "bundle": str(toy.make_bundle(folder / "aware", "mine", system="aware")),
        },
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("LOADMASTER_TOKENS", raising=False)
        here = open_service(systems, folder)
    yield here
    here.close()


def decide(here: LocalService, application: str, **options: Any) -> Any:
    body = {"state": {**EXAMPLE, "application": application}, **options}
    answer = here.request("POST", "/v1/aware/decide", body)
    assert answer.status == 200, answer
    schemas.DecisionResponse.model_validate(answer.json)
    return answer.json


def test_applications_are_tenants(service: LocalService) -> None:
    for application in ("shop/cart", "shop/order"):
        found = [decide(service, application) for _ in range(3)]
        assert {one["tenant"] for one in found} == {tenant_of(application)}
        assert [one["decision"]["replicas"] for one in found] == [4, 3, 4]
        assert [one["reason"]["summary"] for one in found] == [f"decision {n}" for n in (1, 2, 3)]
        assert {one["source"] for one in found} == {"policy"}
    given = decide(service, "shop/cart", tenant="given")
    assert (given["tenant"], given["reason"]["summary"]) == ("given", "decision 1")
    assert decide(service, "plain-name")["tenant"] == "plain-name"


def test_names_of_applications_become_names_of_tenants() -> None:
    names = ["shop/cart", "shop.cart", "shop cart", "x" * 300, "x" * 301, "ж", "\ud800", "a"]
    tenants = [tenant_of(name) for name in names]
    assert all(map(is_tenant, tenants))
    assert len(set(tenants)) == len(names)
    assert tenants[0].startswith("shop.cart-")
    assert (tenants[1], tenants[-1]) == ("shop.cart", "a")


def test_the_guard_limits_a_kind(service: LocalService) -> None:
    found = decide(service, "limited")
    assert found["decision"]["cpu_m"] == 600
    assert found["guard"] == ["bounds: cpu_m from 1271 to 600"]


def test_feedback_goes_to_the_application(service: LocalService) -> None:
    made = decide(service, "fed/back")
    outcome = {"application": "fed/back", "p99_s": 0.6, "slo_s": 0.3, "cpu_use": 0.6}
    outcome |= {"memory_use": 0.4, "restarts": 0}
    body = {"id": made["id"], "outcome": outcome}
    answer = service.request("POST", "/v1/aware/feedback", body)
    assert answer.json == {"accepted": True, "reward": 1.0, "tenant": made["tenant"]}
    body["tenant"] = "other"
    assert service.request("POST", "/v1/aware/feedback", body).json["tenant"] == "other"
    del body["tenant"], outcome["application"]
    assert service.request("POST", "/v1/aware/feedback", body).json["tenant"] == "default"


def test_wrong_states_are_refused_with_their_field(service: LocalService) -> None:
    for change, field in (
        ({"application": 7}, "state.application"),
        ({"slo_s": 0}, "state.slo_s"),
        ({"bounds": {**_bounds(), "cpu_m": [9, 8]}}, "state.bounds.cpu_m"),
    ):
        body = {"state": {**EXAMPLE, **change}}
        answer = service.request("POST", "/v1/aware/decide", body)
        assert (answer.status, answer.json["field"]) == (422, field)


def _bounds() -> dict[str, Any]:
    bounds: Any = EXAMPLE["bounds"]
    return dict(bounds)


def test_memory_is_logged_with_the_decision(service: LocalService, tmp_path: Path) -> None:
    for _ in range(2):
        decide(service, "logged")
    service.close()
    log = service.folder / "kept" / "log" / "aware"
    rows = [row for row in read_log(log) if row.tenant == "logged"]
    assert rows[0].memory is None
    remembered = read_memory(rows[1].memory or "", fake.FakePolicy.memory_format)
    assert remembered is not None
    assert (len(remembered), remembered[0]) == (fake.NUMBERS, 1)
    assert {row.lifecycle for row in rows} == {"ONLINE"}
