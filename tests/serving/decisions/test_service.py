"""The service over HTTP, with a worker in the same process."""

import json
from pathlib import Path
from typing import Any

import pytest

from loadmaster.serving.decisions import pipeline as module
from loadmaster.serving.http import schemas
from loadmaster.serving.monitoring.log_files import DecisionRow, read_log
from loadmaster.serving.worker.worker import PolicyRunner, SystemWorker
from tests.serving import toy
from tests.serving.conftest import LocalService, Start


async def gone(*_: Any) -> bytes:
    raise ConnectionError("the replica died")


def replicas_and_cause(response: dict[str, Any]) -> tuple[float, str | None]:
    """The cause is None if the policy decided."""
    assert response["source"] == ("fallback" if response["cause"] else "policy")
    return response["decision"]["replicas"], response["cause"]


def better(here: LocalService) -> Path:
    """A bundle that adds a replica."""
    return toy.make_bundle(here.folder / "better", "better", extra=1)


def closed_log(here: LocalService) -> list[DecisionRow]:
    here.close()
    return list(read_log(here.folder / "kept" / "log" / "toy"))


def test_a_decision_is_explained(start: Start) -> None:
    response = start().decide(load=42, replicas=3)
    schemas.DecisionResponse.model_validate(response)
    assert replicas_and_cause(response) == (5, None)
    assert (response["guard"], response["shadow"]) == ([], None)
    assert "42" in response["reason"]["summary"]
    assert response["reason"]["choices"]["to"][0]["uncertainty"] == 0.5
    assert response["policy"]["name"] == "toy"
    assert response["latency_ms"] > 0


@pytest.mark.parametrize(
    ("does", "cause"),
    [("raises", "exception"), ("returns nan", "not finite"), ("asks too much", "illegal")],
)
def test_the_rule_decides_if_the_policy_fails(start: Start, does: str, cause: str) -> None:
    here = start(does)
    response = here.decide(replicas=7)
    assert replicas_and_cause(response) == (7, cause)
    assert response["policy"] == {"name": "hold", "version": ""}
    assert here.status()["decisions"]["by_cause"] == {cause: 1}


def test_a_slow_policy_opens_the_breaker(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WARM_UP_S", 0.1)
    here = start("is slow", toy={"deadline_ms": 60})
    first, *_ = [here.decide(replicas=7) for _ in range(3)]
    assert replicas_and_cause(first) == (7, "timeout")
    assert first["latency_ms"] < 160
    assert here.status()["breaker"] == "open"
    assert here.decide()["cause"] == "breaker open"


def test_the_rule_decides_without_a_worker(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    here = start()
    monkeypatch.setattr(here.worker, "decide", gone)
    assert replicas_and_cause(here.decide(replicas=9)) == (9, "worker down")
    here.post("pause")
    assert here.decide(replicas=9)["cause"] == "paused"


def test_a_rule_that_fails_runs_in_the_gateway(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = start("raises")
    decide = PolicyRunner.decide_by_rule

    def fail_for_13(self: PolicyRunner, state: Any, *more: Any) -> Any:
        if state.replicas == 13 and more[0] == "exception":  # the gateway's has another cause
            raise ZeroDivisionError
        return decide(self, state, *more)

    monkeypatch.setattr(PolicyRunner, "decide_by_rule", fail_for_13)
    for replicas, cause in ((12, "exception"), (13, "worker down"), (14, "exception")):
        assert replicas_and_cause(here.decide(replicas=replicas)) == (replicas, cause)


# Readiness.


def test_the_first_request_after_readiness_is_decided_by_the_policy(start: Start) -> None:
    """The policy's first decisions take longer than the deadline, as if it were compiled."""
    here = start("is slow at first", toy={"deadline_ms": 300})
    assert here.request("GET", "/readyz").status == 200
    assert here.decide()["cause"] is None
    assert here.status()["decisions"]["total"] == 1  # warm-up requests are not counted
    assert len(here.request("GET", "/v1/toy/decisions").json["decisions"]) == 1
    assert len(closed_log(here)) == 1  # nor logged


def test_warm_up_skips_guard_and_breaker(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WARM_UP_S", 0.5)
    here = start("is slow", toy={"deadline_ms": 60, "guard": {"flaps": 0}})
    assert here.status()["breaker"] == "closed"
    assert here.decide(load=1, replicas=3, deadline_ms=50)["guard"] == []


def test_the_rule_decides_before_readiness(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SystemWorker, "is_up", False)
    here = start(wait=False)
    assert here.request("GET", "/readyz").status == 503
    assert here.decide()["cause"] == "worker down"


# Guard, shadow, admin actions.


def test_an_endpoint_may_grade_agreement(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def closeness(_: Any, one: toy.ToyDecision, other: toy.ToyDecision) -> float:
        return min(one.replicas, other.replicas) / max(one.replicas, other.replicas)

    monkeypatch.setattr(toy.ToyEndpoint, "agreement", closeness)
    here = start()
    for load, replicas, agreement in ((42, 3, 0.6), (30, 3, 1.0)):
        shadow = here.decide(load=load, replicas=replicas, mode="shadow")["shadow"]
        assert (shadow["agreement"], shadow["agrees"]) == (agreement, agreement == 1)
    assert here.status()["shadow"] == {"decisions": 2, "agreement": 0.8, "faults": 0}
    here.run(here.service.tick())
    here.close()
    assert start().status()["shadow"]["agreement"] == 0.8  # saved and restored


def test_the_guard_limits_the_policy(start: Start) -> None:
    here = start(toy={"guard": {"maximum": 4}})
    response = here.decide(load=99, replicas=3)
    assert replicas_and_cause(response) == (4, None)
    assert response["guard"] == ["bounds: web from 10 to 4"]
    assert here.status()["guard"]["bounds"] == 1


def test_shadow_mode_acts_on_the_rule_and_returns_both(start: Start) -> None:
    here = start()
    response = here.decide(load=42, replicas=3, mode="shadow")
    assert replicas_and_cause(response) == (3, "shadow")
    assert response["shadow"]["decision"] == {"replicas": 5}
    assert response["shadow"]["agrees"] is False
    assert here.decide(load=30, replicas=3, mode="shadow")["shadow"]["agrees"] is True
    assert here.status()["shadow"] == {"decisions": 2, "agreement": 0.5, "faults": 0}


def test_promote_and_roll_back(start: Start) -> None:
    here = start()
    for verb, body, slots, replicas in [
        ("promote", {"bundle": str(better(here)), "to": "shadow"}, ["toy", "better", None], 5),
        ("promote", {}, ["better", None, "toy"], 6),
        ("rollback", {}, ["toy", None, "better"], 5),
    ]:
        policies = here.post(verb, body).json["policies"]
        found = [policies[slot] for slot in ("serving", "shadow", "previous")]
        assert [one and one["name"] for one in found] == slots
        assert replicas_and_cause(here.decide()) == (replicas, None)


def test_failed_admin_actions_change_nothing(start: Start) -> None:
    here = start()
    before = here.status()["policies"]
    damaged = better(here)
    (damaged / "weights.safetensors").write_bytes(b"x")
    for verb, body, status in [
        ("rollback", {}, 409),
        ("promote", {}, 409),
        ("promote", {"to": "shadow"}, 422),
        ("promote", {"bundle": "/nowhere"}, 422),
        ("promote", {"bundle": "decima-batch"}, 422),
        ("promote", {"bundle": str(damaged)}, 422),
    ]:
        answer = here.post(verb, body)
        assert answer.status == status, (verb, body, answer)
        assert answer.json["field"] == ("bundle" if status == 422 else None)
    assert here.status()["policies"] == before
    assert here.decide()["decision"] == {"replicas": 5}


def test_policies_and_pause_survive_a_restart(start: Start) -> None:
    here = start()
    here.post("promote", {"bundle": str(better(here))})
    here.decide()
    here.post("pause", {"reason": "night"})
    here.close()
    (here.folder / "better" / "weights.safetensors").unlink()  # it was copied
    again = start()
    status = again.status()
    schemas.StatusResponse.model_validate(status)
    assert status["policies"]["serving"]["name"] == "better"
    assert (status["paused"], status["acting"]) == (True, "fallback")
    assert status["acting_because"] == "paused: night"
    assert status["decisions"]["total"] == 1
    assert again.decide()["cause"] == "paused"
    assert again.post("resume").json["acting"] == "policy"
    assert again.decide()["decision"] == {"replicas": 6}


def test_unsaved_state_is_reported_and_actions_take_effect(start: Start) -> None:
    here = start()
    here.post("resume")
    file = here.folder / "kept" / "toy.json"
    file.unlink()
    file.mkdir()
    assert here.post("pause").json["log"]["state"] == "Is a directory"
    assert here.decide()["cause"] == "paused"
    file.rmdir()
    assert here.post("resume").json["log"]["state"] is None


def test_feedback_counts_for_the_source_of_the_decision(start: Start) -> None:
    here = start()
    for mode, reward in (("active", 2.0), ("shadow", 1.0)):
        body = {"id": here.decide(mode=mode)["id"], "outcome": {"reward": reward}}
        accepted = {"accepted": True, "reward": reward, "tenant": "default"}
        assert here.post("feedback", body).json == accepted
    rewards = here.status()["rewards"]
    assert (rewards["policy"]["mean"], rewards["rule"]["mean"]) == (2.0, 1.0)


def test_decisions_are_listed_and_logged_with_their_states(start: Start) -> None:
    here = start()
    here.decide(load=42)
    here.decide(load=43, mode="shadow", request_id="mine")
    schemas.SystemsResponse.model_validate(here.request("GET", "/v1/systems").json)
    schemas.HistoryResponse.model_validate(here.request("GET", "/v1/toy/history").json)
    listed = here.request("GET", "/v1/toy/decisions?limit=1").json["decisions"]
    assert [one["id"] for one in listed] == ["mine"]
    assert here.state("toy", "large")["load"] == 420
    first, second = closed_log(here)
    assert [json.loads(row.state)["load"] for row in (first, second)] == [42, 43]
    assert (first.source, second.source, second.id) == ("policy", "fallback", "mine")
    assert json.loads(second.shadow or "")["agrees"] is False


def test_a_bundle_is_loaded_before_it_serves(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    here = start()
    here.post("promote", {"bundle": str(better(here))})

    def too_late(self: PolicyRunner, folder: str) -> Any:
        raise AssertionError(f"{folder} is loaded now")

    monkeypatch.setattr(PolicyRunner, "load", too_late)
    assert replicas_and_cause(here.decide()) == (6, None)


def test_a_restarted_worker_loads_the_copy(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    here = start()
    restarted = SystemWorker("toy", toy.REFERENCE, "hold", str(here.folder / "nowhere"))
    monkeypatch.setattr(here.worker, "decide", restarted.decide)
    assert here.decide()["source"] == "policy"


def test_a_worker_skips_calls_past_their_deadline(start: Start) -> None:
    here = start()
    request = b'{"state": {"load": 1, "replicas": 1}}'
    with pytest.raises(TimeoutError):
        here.run(here.worker.decide("", "", request, deadline=0.0))
