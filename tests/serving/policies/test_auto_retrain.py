"""Automatic retraining of a service, with a fake cluster."""

import asyncio
from typing import Any

import pytest

from loadmaster.serving.replicas import system_control
from tests.serving.conftest import LocalService, Start
from tests.serving.policies.conftest import FakeCluster

SETTINGS: dict[str, Any] = {
    "monitor": {"lifecycle": {"window": 10, "retrain_offline": True}},
    "auto_retrain": {"shadow_decisions": 5, "poll_s": 0.001},
    "retraining": {"cool_down_s": 0},
}


def tick(here: LocalService) -> None:
    here.run(asyncio.sleep(0.05))  # for decisions in the shadow
    here.run(here.service.tick())


def send_rewards(here: LocalService, reward: float, times: int, mode: str = "active") -> None:
    for step in range(times):
        decision = here.decide(load=40 + step % 5, mode=mode)["id"]
        feedback = {"id": decision, "outcome": {"reward": reward + 0.01 * (step % 3)}}
        assert here.post("feedback", feedback).status == 200


@pytest.fixture
def degraded(start: Start, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> LocalService:
    """A service whose policy earned more than the rule, and then less; a job is submitted."""
    monkeypatch.setattr(system_control, "Jobs", lambda: cluster)
    here = start(toy=SETTINGS)
    send_rewards(here, 1.0, 12, mode="shadow")
    send_rewards(here, 2.0, 20)
    assert here.status()["acting"] == "policy"
    send_rewards(here, 0.1, 20)
    status = here.status()
    assert (status["lifecycle"]["state"], status["acting"]) == ("OFFLINE", "fallback")
    tick(here)
    return here


def test_degraded_policy_is_replaced(degraded: LocalService, cluster: FakeCluster) -> None:
    assert degraded.decide()["cause"] == "lifecycle"
    assert len(cluster.jobs) == 1
    assert cluster.words()[:2] == ["retrain", "toy"]
    load = next(word for word in cluster.words() if word.startswith("environment.load="))
    assert 40 <= float(load.partition("=")[2]) <= 44
    assert degraded.status()["retraining"]["job"] == "retrain-toy-1"

    cluster.finish(extra=2)
    tick(degraded)
    status = degraded.status()
    assert (status["policies"]["shadow"]["name"], status["acting"]) == ("retrained", "fallback")
    for _ in range(6):
        degraded.decide()
    tick(degraded)
    status = degraded.status()
    assert status["policies"]["serving"]["name"] == "retrained"
    assert (status["lifecycle"]["state"], status["acting"]) == ("ONLINE", "policy")  # on trial
    assert "-12.5% jct" in status["lifecycle"]["why"]
    assert degraded.decide(load=42)["decision"] == {"replicas": 7}


def test_policy_no_better_is_not_used(degraded: LocalService, cluster: FakeCluster) -> None:
    cluster.finish(better=False)
    tick(degraded)
    status = degraded.status()
    assert (status["policies"]["shadow"], status["acting"]) == (None, "fallback")
    tick(degraded)
    assert len(cluster.jobs) == 2


def test_policy_failing_in_shadow_is_dropped(degraded: LocalService, cluster: FakeCluster) -> None:
    cluster.finish(does="raises")
    tick(degraded)
    for _ in range(6):
        assert degraded.decide()["cause"] == "lifecycle"
    tick(degraded)
    policies = degraded.status()["policies"]
    assert (policies["shadow"], policies["serving"]["name"]) == (None, "toy")


def test_restarted_service_finds_its_job(
    degraded: LocalService, start: Start, cluster: FakeCluster
) -> None:
    degraded.close()
    again = start(toy=SETTINGS)
    status = again.status()
    assert (status["retraining"]["job"], status["acting"]) == ("retrain-toy-1", "fallback")
    cluster.finish()
    tick(again)
    assert again.status()["policies"]["shadow"]["name"] == "retrained"
    assert len(cluster.jobs) == 1
