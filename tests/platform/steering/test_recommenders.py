"""Recommenders: the service, rules, foreign objects, and their order."""

from collections.abc import Mapping
from typing import Any

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.platform.steering.core import SilentError
from loadmaster.platform.steering.kubernetes.engine import ENDPOINT
from loadmaster.platform.steering.recommenders import find_recommender
from loadmaster.serving.decisions.tenant_names import tenant_of
from loadmaster.serving.systems.aware.schema import EXAMPLE
from tests.platform.steering.kubernetes.api_server import Received, serving

CLOSED = "http://127.0.0.1:9"  # the port discard, which nothing listens on


class Double:
    """A recommender as another package would have it."""

    def recommend(self, state: Mapping[str, Any]) -> tuple[dict[str, float], str]:
        replicas = state["plan"]["replicas"] + 1
        return {"replicas": replicas, "cpu_m": 1.0, "memory_mib": 1.0}, "one more"


class Broken:
    def recommend(self, state: Mapping[str, Any]) -> None:
        raise ZeroDivisionError("bug")

    def feedback(self, application: str, id: str | None, outcome: Mapping[str, Any]) -> None:
        raise ZeroDivisionError("bug of feedback")


class Service:
    """The service's HTTP: decisions and feedback."""

    def __init__(self) -> None:
        self.received: list[Received] = []

    def handle(self, one: Received, token: str) -> tuple[int, dict[str, str], Any]:
        self.received.append(one)
        if one.path.endswith("/feedback"):
            return 200, {}, {"accepted": True, "reward": 1.0}
        decision = {"act": True, "replicas": 5, "cpu_m": 600.0, "memory_mib": 512.0}
        shadow = None
        if one.body["mode"] == "shadow":
            policy = {"name": "aware", "version": "8"}
            shadow = {"decision": {**decision, "replicas": 7}, "agrees": False, "policy": policy}
        return 200, {}, {
            "shadow": shadow,
            "id": "d-1", "decision": decision, "source": "policy", "cause": None,
            "reason": {"summary": "more load", "notes": ["a note"]},
            "policy": {"name": "aware", "version": "7"}, "guard": ["step: replicas from 9 to 5"],
            "tenant": "shop.cart", "latency_ms": 1.0,
        }  # fmt: skip


def find(*names: str, url: str = CLOSED, **options: Any) -> Any:
    return find_recommender(names, ENDPOINT, url, "token", deadline_s=1.0, **options)


def test_service_decides_for_the_tenant_of_the_application() -> None:
    service = Service()
    with serving(service.handle) as url:
        recommender = find("service", url=url)
        found = recommender.recommend("shop/cart", EXAMPLE)
        recommender.feedback("shop/cart", found.id, {"p99_s": 0.1, "slo_s": 0.3})
    assert found.decision["replicas"] == 5
    assert (found.reason, found.source, found.id) == ("more load", "policy aware 7", "d-1")
    assert len(found.notes) == 2
    decide, feedback = service.received
    tenant = tenant_of("shop/cart")
    assert (decide.path, decide.body["tenant"]) == ("/v1/aware/decide", tenant)
    assert decide.body["state"]["plan"] == EXAMPLE["plan"]
    assert (feedback.body["id"], feedback.body["tenant"]) == ("d-1", tenant)


def test_policy_of_the_shadow_is_recommended_in_shadow_mode() -> None:
    service = Service()
    with serving(service.handle) as url:
        found = find("service", url=url, shadow=True, tenant="mine").recommend("a", EXAMPLE)
    assert (found.decision["replicas"], found.source, found.id) == (7, "policy aware 8", None)
    assert [one.body["tenant"] for one in service.received] == ["mine"]


def test_service_that_cannot_be_reached_is_silent_and_its_feedback_no_error() -> None:
    recommender = find("service")
    with pytest.raises(SilentError) as silent:
        recommender.recommend("shop/cart", EXAMPLE)
    assert silent.value.part == "recommender"
    recommender.feedback("shop/cart", "d-1", {"p99_s": 0.1, "slo_s": 0.3})


def test_rule_decides_where_the_service_is_silent() -> None:
    found = find("service", "hpa").recommend("shop/cart", EXAMPLE)
    assert found.decision["replicas"] == 4  # 88% of the limits are used
    assert (found.source, found.id) == ("rule hpa", None)
    assert any(note.startswith("silent: service") for note in found.notes)


def test_all_silent_is_silence() -> None:
    with pytest.raises(SilentError):
        find("service", f"{__name__}:Broken").recommend("shop/cart", EXAMPLE)


def test_rule_that_cannot_read_the_state_is_silent() -> None:
    with pytest.raises(SilentError, match="slo_s"):
        find("hpa").recommend("shop/cart", {**EXAMPLE, "slo_s": 0})


def test_foreign_recommender_plugs_in() -> None:
    found = find(f"{__name__}:Double").recommend("shop/cart", EXAMPLE)
    assert (found.decision["replicas"], found.reason) == (4, "one more")
    with pytest.raises(SilentError, match="ZeroDivisionError: bug"):
        find(f"{__name__}:Broken").recommend("shop/cart", EXAMPLE)


def test_foreign_recommender_that_does_not_take_an_outcome_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    find(f"{__name__}:Broken").feedback("shop/cart", None, {})
    assert "shop/cart" in caplog.text
    assert "bug of feedback" in caplog.text


@pytest.mark.slow
def test_bundle_decides_in_this_process() -> None:
    found = find("bundle:aware").recommend("shop/cart", EXAMPLE)
    assert found.decision["replicas"] >= 1
    assert found.source.startswith("policy aware")
    with pytest.raises(InputError):
        find("bundle:awar")
    with pytest.raises(InputError):
        find("bundle:aware", foreign=False)


@pytest.mark.parametrize(
    "name", ["hpaa", "no_such_module:X", f"{__name__}:Nothing", f"{__name__}:CLOSED"]
)
def test_unknown_recommender_is_wrong_input(name: str) -> None:
    with pytest.raises(InputError):
        find(name)
