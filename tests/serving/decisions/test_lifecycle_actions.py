"""The lifecycle of a service: trials of new bundles, estimates, profiles, the converged reward."""

from typing import Any
from unittest.mock import MagicMock

import pytest

from loadmaster.serving.http import schemas
from loadmaster.serving.monitoring.monitor import MonitorSettings
from loadmaster.serving.monitoring.recorder import DecisionRecorder
from loadmaster.serving.system import Profile
from tests.serving import toy
from tests.serving.conftest import LocalService, Start

TEN: dict[str, Any] = {"monitor": {"lifecycle": {"window": 10}}, "auto_retrain": {"enabled": True}}
OFFLINE = {**TEN, "start": "OFFLINE"}
ESTIMATE = {"mean": 1.6, "lower": 1.4, "source": "fqe", "episodes": 40}


def send(here: LocalService, reward: float, times: int, tenant: str = "a", **more: Any) -> None:
    """Decisions and their rewards; of the rule with `mode="shadow"`, or where it acts."""
    for step in range(times):
        decided = here.decide(40 + step % 5, tenant=tenant, **more)
        outcome = {"reward": reward + 0.01 * (step % 3)}
        body = {"id": decided["id"], "outcome": outcome, "tenant": tenant}
        assert here.post("feedback", body).status == 200


def view(here: LocalService, tenant: str = "a") -> Any:
    status = here.request("GET", f"/v1/toy/status?tenant={tenant}").json
    schemas.StatusResponse.model_validate(status)
    return status


def state(here: LocalService, tenant: str = "a") -> str:
    found: str = view(here, tenant)["lifecycle"]["state"]
    return found


def serve(here: LocalService, tenant: str = "a") -> None:
    """Let a tenant's policy reach SERVING, at twice the reward of the rule."""
    send(here, 1.0, 12, tenant, mode="shadow")
    send(here, 2.0, 12, tenant)
    assert state(here, tenant) == "SERVING"


def bundle(here: LocalService, extra: int) -> str:
    return str(toy.make_bundle(here.folder / f"bundle-{extra}", f"extra-{extra}", extra=extra))


def test_a_promoted_bundle_is_on_trial_for_every_tenant(start: Start) -> None:
    here = start(toy=TEN, tenants={"most": 1})
    serve(here, "a")
    serve(here, "b")  # `a` is on disk by now
    assert view(here, "b")["rewards"]["converged"] == pytest.approx(2, abs=0.1)
    here.post("promote", {"bundle": bundle(here, 1)})
    for tenant in ("a", "b"):
        status = view(here, tenant)
        assert (status["lifecycle"]["state"], status["acting"]) == ("ONLINE", "policy")
        assert status["rewards"]["policy"]["count"] == 0
        assert status["rewards"]["rule"]["count"] == 10
        assert status["rewards"]["converged"] is None
    here.close()
    again = start(toy=TEN, tenants={"most": 1})
    assert [state(again, tenant) for tenant in ("a", "b")] == ["ONLINE", "ONLINE"]
    send(again, 2.0, 9)
    assert state(again) == "ONLINE"
    send(again, 2.0, 1)
    assert state(again) == "SERVING"
    again.post("rollback")
    assert state(again) == "ONLINE"


@pytest.mark.parametrize(("first", "then"), [("ONLINE", "ONLINE"), ("OFFLINE", "OFFLINE")])
def test_another_configured_bundle_is_on_trial(start: Start, first: str, then: str) -> None:
    here = start(toy=TEN)
    serve(here)
    other = bundle(here, 2)
    here.close()
    again = start(toy={**TEN, "bundle": other, "start": first})
    assert (state(again), view(again)["rewards"]["policy"]["count"]) == (then, 0)
    assert state(again, "new") == first


def test_serving_survives_a_restart_with_the_same_bundle(start: Start) -> None:
    here = start(toy=TEN)
    serve(here)
    here.close()
    again = start(toy=TEN)
    assert (state(again), view(again)["rewards"]["policy"]["count"]) == ("SERVING", 10)
    assert view(again)["rewards"]["converged"] == pytest.approx(2, abs=0.1)


def test_an_estimate_ends_offline(start: Start) -> None:
    here = start(toy=OFFLINE)
    assert here.post("estimate", {**ESTIMATE, "tenant": "a"}).status == 200
    assert state(here) == "OFFLINE"  # the rule's reward is not known
    send(here, 1.5, 10)
    assert state(here) == "OFFLINE"
    assert "1.4" in view(here)["lifecycle"]["evidence"]
    here.close()
    again = start(toy=OFFLINE)
    assert view(again)["lifecycle"]["estimate"] == ESTIMATE
    better = {**ESTIMATE, "lower": 1.55, "tenant": "a", "reason": "after adapt"}
    status = again.post("estimate", better).json
    assert (status["tenant"], status["lifecycle"]["state"]) == ("a", "ONLINE")
    assert "reaches" in status["lifecycle"]["why"]
    assert again.decide(tenant="a")["source"] == "policy"
    assert again.decide(tenant="b")["cause"] == "lifecycle"


def test_a_policy_that_earns_less_than_estimated_stays_offline(start: Start) -> None:
    here = start(toy=OFFLINE)
    send(here, 1.0, 10)
    here.post("estimate", {**ESTIMATE, "tenant": "a"})
    send(here, 0.5, 20)
    status = view(here)
    assert (status["lifecycle"]["state"], status["lifecycle"]["estimate"]) == ("OFFLINE", None)
    send(here, 1.0, 20)
    assert state(here) == "OFFLINE"


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"lower": 1.7}, 422, "lower"),
        ({"episodes": 0}, 422, "episodes"),
        ({"source": ""}, 422, "source"),
        ({"tenant": "a b"}, 422, "tenant"),
        ({"unknown": 1}, 422, "unknown"),
        ({"version": "0" * 12}, 409, None),
    ],
)
def test_wrong_estimates_are_refused(
    start: Start, body: dict[str, Any], status: int, field: str | None
) -> None:
    here = start(toy=OFFLINE)
    answer = here.post("estimate", {**ESTIMATE, **body})
    assert (answer.status, answer.json["field"]) == (status, field)
    assert here.status()["lifecycle"]["estimate"] is None
    serving = here.status()["policies"]["serving"]["version"]
    assert here.post("estimate", {**ESTIMATE, "version": serving}).status == 200


def test_serving_is_held_to_the_policys_own_reward(start: Start) -> None:
    here = start(toy=TEN)
    serve(here)
    send(here, 1.7, 20)
    status = view(here)
    assert (status["lifecycle"]["state"], status["acting"]) == ("ONLINE", "policy")
    assert status["retraining"]["wanted"].startswith("tenant a: ")
    assert status["rewards"]["thresholds"]["serving"] > 1.85 > status["rewards"]["policy"]["mean"]
    send(here, 2.0, 12)
    assert state(here) == "SERVING"


def test_profiles_of_the_settings_file(start: Start) -> None:
    profiles = {"shop": {"stakes": "high", "reward": 3.0}, "blog": {"bootstrap": False}}
    here = start(toy={**TEN, "profile": {"bootstrap": True}, "profiles": profiles})
    assert [state(here, name) for name in ("shop", "blog", "a", "default")] == [
        "OFFLINE",
        "ONLINE",
        "OFFLINE",
        "OFFLINE",
    ]
    send(here, 1.0, 10, "shop")
    here.decide(tenant="a")
    for lower, then in ((2.0, "OFFLINE"), (3.0, "ONLINE")):
        body = {**ESTIMATE, "mean": 4.0, "lower": lower, "tenant": "shop"}
        assert here.post("estimate", body).json["lifecycle"]["state"] == then
    here.post("promote", {"bundle": bundle(here, 1)})
    assert [state(here, name) for name in ("shop", "blog", "a")] == ["OFFLINE", "ONLINE", "ONLINE"]
    assert state(here, "new") == "OFFLINE"


def test_a_profile_by_the_api_survives_a_restart(start: Start) -> None:
    here = start(toy=TEN)
    profile = {"slo": 0.2, "utilisation": {"cpu": 0.6}, "stakes": "high"}
    status = here.post("profile", {"tenant": "a", "profile": profile}).json
    assert status["lifecycle"]["state"] == "OFFLINE"  # no decision was made for it yet
    assert here.decide(tenant="a")["cause"] == "lifecycle"
    here.close()
    again = start(toy=TEN)
    assert view(again)["lifecycle"]["profile"].items() >= profile.items()
    again.post("profile", {"tenant": "a"})
    assert view(again)["lifecycle"]["profile"]["stakes"] == "normal"
    assert state(again) == "OFFLINE"  # decisions were made: only evidence changes it now
    wrong = again.post("profile", {"tenant": "a", "profile": {"stakes": "some"}})
    assert (wrong.status, wrong.json["field"]) == (422, "profile.stakes")


def test_a_damaged_record_keeps_its_profile(caplog: pytest.LogCaptureFixture) -> None:
    """The rule acts where much is at stake, also after a fault."""

    def recorder() -> DecisionRecorder:
        return DecisionRecorder("toy", MonitorSettings(), MagicMock(), MagicMock(), "SERVING", 0.0)

    first = recorder()
    first.set_profile(Profile(stakes="high"), 1.0)
    record = {**first.record(), "state": "SERVING"}
    damaged = [{"monitor": {"format": 9}}, {"since": None}, {"state": "READY"}, {"guarded": 3}]
    for change, state in [*((one, "OFFLINE") for one in damaged), ({}, "SERVING")]:
        restored = recorder()
        restored.restore({**record, **change})
        assert (restored.state, restored.profile.stakes) == (state, "high")
        assert caplog.messages == (
            ["toy, tenant default: damaged record ignored"] if change else []
        )
        caplog.clear()
    restored = recorder()
    restored.restore({**record, "profile": {"stakes": "some"}})
    assert (restored.state, restored.profile) == ("SERVING", Profile())
    assert caplog.messages == ["toy, tenant default: damaged profile ignored"]


def test_a_reward_that_the_profile_implies(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        toy.ToyEndpoint, "profile_reward", lambda self, profile: profile.slo and 1 / profile.slo
    )
    here = start(toy={**TEN, "profiles": {"a": {"slo": 0.5}}})
    send(here, 1.0, 10, mode="shadow")
    assert view(here)["rewards"]["thresholds"]["online"] == 2.0
    here.post("profile", {"tenant": "a", "profile": {"slo": 0.25}})
    assert view(here)["rewards"]["thresholds"]["online"] == 4.0
