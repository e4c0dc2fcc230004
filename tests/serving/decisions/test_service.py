"""The service as a client meets it, with a worker in the same process."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from loadmaster.serving.http.schemas import DecisionAnswer, HistoryAnswer, StatusAnswer, SystemList
from loadmaster.serving.worker.worker import SystemWorker
from tests.serving import toy
from tests.serving.asgi import Answered, ask
from tests.serving.conftest import Here, Start


def crowd_of(here: Here, states: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What they are told who ask at the same moment."""

    async def crowd() -> list[Answered]:
        app, path = here.service.app, "/v1/toy/decide"
        return await asyncio.gather(*(ask(app, "POST", path, {"state": one}) for one in states))

    return [answered.json for answered in here.run(crowd())]


def test_a_decision_with_its_reason(start: Start) -> None:
    told = start().decide(load=42, replicas=3)
    DecisionAnswer.model_validate(told)
    assert told["decision"] == {"replicas": 5}
    assert (told["source"], told["cause"]) == ("policy", None)
    assert (told["guard"], told["shadow"]) == ([], None)
    assert told["reason"]["summary"] == "a load of 42 needs 5 replicas"
    assert told["reason"]["choices"]["to"][0]["uncertainty"] == 0.5
    assert told["policy"]["name"] == "toy"
    assert told["latency_ms"] > 0


@pytest.mark.parametrize(
    ("does", "cause"),
    [("raises", "exception"), ("says nan", "not finite"), ("asks too much", "illegal")],
)
def test_a_policy_that_fails_is_stood_in_for(start: Start, does: str, cause: str) -> None:
    here = start(does)
    told = here.decide(replicas=7)
    assert told["decision"] == {"replicas": 7}
    assert (told["source"], told["cause"]) == ("fallback", cause)
    assert told["policy"] == {"name": "hold", "version": ""}
    assert here.status()["decisions"]["by_cause"] == {cause: 1}


def test_a_policy_that_hangs_is_not_waited_for(start: Start) -> None:
    here = start("is slow", toy={"deadline_ms": 60})
    first = here.decide(replicas=7)
    assert (first["source"], first["cause"]) == ("fallback", "timeout")
    assert first["latency_ms"] < 160
    for _ in range(2):
        here.decide()
    assert here.status()["breaker"] == "open"
    assert here.decide()["cause"] == "breaker open"


def test_a_worker_that_is_gone(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    here = start()

    async def gone(*_: Any) -> list[bytes]:
        raise ConnectionError("the replica died")

    monkeypatch.setattr(here.worker, "decide", gone)
    told = here.decide(replicas=9)
    assert (told["decision"], told["cause"]) == ({"replicas": 9}, "worker down")


def test_even_the_rule_may_fail_for_one_of_a_crowd(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its neighbours have their answers; the gateway's own rule answers for it."""
    here = start("raises")
    decider = here.worker._acting
    honest = decider.by_rule

    def now_and_then(state: Any, cause: str | None, detail: str) -> dict[str, Any]:
        if state.replicas == 13:
            raise ZeroDivisionError
        return honest(state, cause, detail)

    monkeypatch.setattr(decider, "by_rule", now_and_then)

    told = crowd_of(here, [{"load": 1, "replicas": count} for count in (12, 13, 14)])
    assert [one["decision"]["replicas"] for one in told] == [12, 13, 14]
    assert [one["cause"] for one in told] == ["exception", "worker down", "exception"]


def test_a_crowd_shares_calls(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    here, sizes = start(), []
    honest = here.worker.decide

    async def counted(version: str, folder: str, raw: list[bytes]) -> list[bytes]:
        sizes.append(len(raw))
        return await honest(version, folder, raw)

    monkeypatch.setattr(here.worker, "decide", counted)

    told = crowd_of(here, [{"load": load, "replicas": 1} for load in range(40)])
    assert [one["decision"]["replicas"] for one in told] == [-(-n // 10) for n in range(40)]
    assert sum(sizes) == 40
    assert len(sizes) <= 3


def test_the_guard_holds_policy_and_rule_alike(start: Start) -> None:
    here = start(toy={"guard": {"maximum": 4}})
    told = here.decide(load=99, replicas=3)
    assert told["decision"] == {"replicas": 4}
    assert told["guard"] == ["bounds: web from 10 to 4"]
    assert told["source"] == "policy"
    assert here.status()["guard"]["bounds"] == 1


def test_shadow_mode_acts_on_the_rule_and_tells_both(start: Start) -> None:
    here = start()
    told = here.decide(load=42, replicas=3, mode="shadow")
    assert told["decision"] == {"replicas": 3}
    assert (told["source"], told["cause"]) == ("fallback", "shadow")
    assert told["shadow"]["decision"] == {"replicas": 5}
    assert told["shadow"]["agrees"] is False
    assert here.decide(load=30, replicas=3, mode="shadow")["shadow"]["agrees"] is True
    assert here.status()["shadow"] == {"decisions": 2, "agreement": 0.5, "faults": 0}


def test_pause_and_resume(start: Start) -> None:
    here = start()
    told = here.ask("POST", "/v1/toy/pause", {"reason": "maintenance"}).json
    StatusAnswer.model_validate(told)
    assert (told["paused"], told["acting"]) == (True, "fallback")
    assert told["acting_because"] == "paused: maintenance"
    assert here.decide()["cause"] == "paused"
    assert here.ask("POST", "/v1/toy/resume").json["acting"] == "policy"
    assert here.decide()["source"] == "policy"


def test_promote_and_roll_back(start: Start) -> None:
    here = start()
    better = toy.make_bundle(here.folder / "better", "better", extra=1)
    orders = {"bundle": str(better), "to": "shadow"}
    told = here.ask("POST", "/v1/toy/promote", orders).json
    assert told["policies"]["shadow"]["name"] == "better"
    assert here.decide()["decision"] == {"replicas": 5}, "a shadow does not act"
    told = here.ask("POST", "/v1/toy/promote", {}).json
    assert [told["policies"][place] and told["policies"][place]["name"] for place in
            ("serving", "shadow", "previous")] == ["better", None, "toy"]  # fmt: skip
    assert here.decide()["decision"] == {"replicas": 6}
    told = here.ask("POST", "/v1/toy/rollback", {}).json
    assert told["policies"]["serving"]["name"] == "toy"
    assert here.decide()["decision"] == {"replicas": 5}


def test_orders_that_cannot_be_followed_change_nothing(start: Start) -> None:
    here = start()
    before = here.status()["policies"]
    damaged = toy.make_bundle(here.folder / "damaged", "damaged")
    (damaged / "weights.safetensors").write_bytes(b"x")
    for verb, body, status, line in [
        ("rollback", {}, 409, "no previous bundle"),
        ("promote", {}, 409, "no shadow bundle"),
        ("promote", {"to": "shadow"}, 422, "bundle: expected one"),
        ("promote", {"bundle": "/nowhere"}, 422, "no policy bundle"),
        ("promote", {"bundle": "decima-batch"}, 422, "expected one of toy"),
        ("promote", {"bundle": str(damaged)}, 422, "damaged"),
        ("promote", {"bundle": 3}, 422, "bundle: "),
        ("pause", {"why": "x"}, 422, "why"),
        ("pause", b"no json", 422, "JSON"),
    ]:
        answered = here.ask("POST", f"/v1/toy/{verb}", body)
        assert answered.status == status, (verb, body, answered)
        assert line in answered.json["error"]
    assert here.status()["policies"] == before
    assert here.decide()["decision"] == {"replicas": 5}


def test_what_was_promoted_and_paused_survives_a_restart(start: Start) -> None:
    here = start()
    better = toy.make_bundle(here.folder / "better", "better", extra=1)
    here.ask("POST", "/v1/toy/promote", {"bundle": str(better)})
    here.decide()
    here.ask("POST", "/v1/toy/pause", {"reason": "night"})
    here.close()
    (better / "weights.safetensors").unlink()  # it was copied
    again = start()
    told = again.status()
    assert told["policies"]["serving"]["name"] == "better"
    assert told["acting_because"] == "paused: night"
    assert told["decisions"]["total"] == 1
    again.ask("POST", "/v1/toy/resume")
    assert again.decide()["decision"] == {"replicas": 6}


def test_feedback_counts_for_who_decided(start: Start) -> None:
    here = start()
    by_policy = here.decide()["id"]
    by_rule = here.decide(mode="shadow")["id"]
    for decision, reward in ((by_policy, 2.0), (by_rule, 1.0)):
        told = here.ask("POST", "/v1/toy/feedback", {"id": decision, "outcome": {"reward": reward}})
        assert told.json == {"accepted": True, "reward": reward}
    rewards = here.status()["rewards"]
    assert (rewards["policy"]["mean"], rewards["rule"]["mean"]) == (2.0, 1.0)


def test_lists_and_histories(start: Start) -> None:
    here = start()
    for load in range(5):
        here.decide(load=load, request_id=f"r-{load}")
    SystemList.model_validate(here.ask("GET", "/v1/systems").json)
    HistoryAnswer.model_validate(here.ask("GET", "/v1/toy/history").json)
    told = here.ask("GET", "/v1/toy/decisions?limit=2").json["decisions"]
    assert [one["id"] for one in told] == ["r-4", "r-3"]
    assert here.ask("GET", "/v1/toy/decisions?limit=0").status == 422
    assert here.ask("GET", "/v1/toy/example?name=large").json["load"] == 420
    assert here.ask("GET", "/v1/toy/example?name=other").status == 422


def test_decisions_are_logged_with_what_was_asked(start: Start) -> None:
    from loadmaster.serving.monitoring.log_files import read_log

    here = start()
    here.decide(load=42)
    here.decide(load=43, mode="shadow", request_id="mine")
    here.close()
    rows = list(read_log(here.folder / "kept" / "log" / "toy"))
    assert [json.loads(row.state)["load"] for row in rows] == [42, 43]
    assert [row.source for row in rows] == ["policy", "fallback"]
    assert json.loads(rows[1].shadow or "")["agrees"] is False
    assert rows[1].id == "mine"


def test_a_pause_is_the_cause_whatever_the_worker_does(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = start()
    here.ask("POST", "/v1/toy/pause")

    async def gone(*_: Any) -> list[bytes]:
        raise ConnectionError("the replica died")

    monkeypatch.setattr(here.worker, "decide", gone)
    told = here.decide(replicas=9)
    assert (told["decision"], told["cause"]) == ({"replicas": 9}, "paused")


def test_a_bundle_is_loaded_before_it_serves(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """No decision waits for that."""
    here = start()
    better = toy.make_bundle(here.folder / "better", "better", extra=1)
    here.ask("POST", "/v1/toy/promote", {"bundle": str(better)})

    def too_late(folder: str) -> Any:
        raise AssertionError(f"{folder} is loaded now")

    monkeypatch.setattr(here.worker._acting, "load", too_late)
    assert (here.decide()["source"], here.decide()["decision"]) == ("policy", {"replicas": 6})


def test_a_worker_starts_without_its_bundle(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway names a copy with every request."""
    here = start()
    anew = SystemWorker("toy", toy.REFERENCE, "hold", str(here.folder / "nowhere"))
    monkeypatch.setattr(here.worker, "decide", anew.decide)
    assert here.decide()["source"] == "policy"
