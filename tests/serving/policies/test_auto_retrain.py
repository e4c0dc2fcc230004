"""Automatic retraining of a service, with a fake cluster."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from loadmaster.serving.http import app_factory
from loadmaster.serving.jobs.job import Job
from loadmaster.serving.policies.comparison import BUNDLE_FOLDER, COMPARISON_FILE
from tests.serving import toy
from tests.serving.conftest import Here, Start


class FakeCluster:
    """Runs no job; `finish` writes the files of a finished one."""

    def __init__(self) -> None:
        self.submitted: list[list[str]] = []
        self.status = "running"

    def submit(
        self, arguments: Sequence[str], *, name: str | None = None, env: Mapping[str, str] | None
    ) -> str:
        self.submitted.append(list(arguments))
        self.status = "running"
        return f"job-{len(self.submitted)}"

    def get(self, job: str) -> Job:
        command = shlex.join(self.submitted[-1])
        return Job(job, self.status, command, "", 0.0, None, None, "")  # type: ignore[arg-type]

    def list(self) -> list[Job]:
        return []

    def stop(self, job: str) -> bool:
        return True

    @property
    def folder(self) -> Path:
        words = self.submitted[-1]
        return Path(words[words.index("--output") + 1])

    def finish(self, better: bool, extra: int, does: str = "follows") -> None:
        toy.make_bundle(self.folder / BUNDLE_FOLDER, "retrained", does, extra)
        score = {"name": "x", "version": "y", "folder": "z", "mean": 1.0, "ci95": [0.9, 1.1]}
        comparison = {
            "system": "toy", "metric": "jct", "unit": "s", "lower_is_better": True,
            "sequences": 8, "first_seed": 0, "environment": {}, "candidate": score,
            "serving": score, "difference_percent": -12.5, "ci95": [-15.0, -10.0],
            "better": better,
        }  # fmt: skip
        (self.folder / COMPARISON_FILE).write_text(json.dumps(comparison))
        self.status = "succeeded"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    made = FakeCluster()
    monkeypatch.setattr(app_factory, "Jobs", lambda: made)
    return made


SETTINGS: dict[str, Any] = {
    "monitor": {"lifecycle": {"window": 10, "retrain_offline": True}},
    "auto_retrain": {"shadow_decisions": 5, "poll_s": 0.001},
    "retraining": {"cool_down_s": 0},
}


def tick(here: Here) -> None:
    here.run(here.service.systems["toy"].tick())


def send_rewards(here: Here, reward: float, times: int, mode: str = "active") -> None:
    for step in range(times):
        decision = here.decide(load=40 + step % 5, mode=mode)["id"]
        feedback = {"id": decision, "outcome": {"reward": reward + 0.01 * (step % 3)}}
        assert here.ask("POST", "/v1/toy/feedback", feedback).status == 200


def degraded(start: Start) -> Here:
    """A service whose policy earned more than the rule, and then less."""
    here = start(toy=SETTINGS)
    send_rewards(here, 1.0, 12, mode="shadow")
    send_rewards(here, 2.0, 20)
    assert here.status()["acting"] == "policy"
    send_rewards(here, 0.1, 20)
    return here


def test_degraded_policy_is_retrained_and_replaced(start: Start, cluster: FakeCluster) -> None:
    here = degraded(start)
    status = here.status()
    assert (status["lifecycle"]["state"], status["acting"]) == ("OFFLINE", "fallback")
    assert here.decide()["cause"] == "lifecycle"
    tick(here)
    assert len(cluster.submitted) == 1
    words = cluster.submitted[0]
    assert words[:2] == ["retrain", "toy"]
    load = next(word for word in words if word.startswith("environment.load="))
    assert 40 <= float(load.partition("=")[2]) <= 44
    assert here.status()["retraining"]["job"] == "job-1"

    cluster.finish(better=True, extra=2)
    tick(here)
    status = here.status()
    assert status["policies"]["shadow"]["name"] == "retrained"
    assert status["acting"] == "fallback"
    for _ in range(6):
        here.decide()
    here.run(asyncio.sleep(0.1))  # for the shadow's decisions
    tick(here)
    status = here.status()
    assert status["policies"]["serving"]["name"] == "retrained"
    assert (status["lifecycle"]["state"], status["acting"]) == ("SERVING", "policy")
    assert "-12.5% jct" in status["lifecycle"]["why"]
    assert here.decide(load=42)["decision"] == {"replicas": 7}


def test_policy_that_is_not_better_is_not_used(start: Start, cluster: FakeCluster) -> None:
    here = degraded(start)
    tick(here)
    cluster.finish(better=False, extra=2)
    tick(here)
    status = here.status()
    assert status["policies"]["shadow"] is None
    assert status["acting"] == "fallback"
    tick(here)
    assert len(cluster.submitted) == 2


def test_policy_that_fails_in_shadow_is_dropped(start: Start, cluster: FakeCluster) -> None:
    here = degraded(start)
    tick(here)
    cluster.finish(better=True, extra=0, does="raises")
    tick(here)
    for _ in range(6):
        assert here.decide()["cause"] == "lifecycle"
    here.run(asyncio.sleep(0.1))  # for the shadow's decisions
    tick(here)
    status = here.status()
    assert status["policies"]["shadow"] is None
    assert status["policies"]["serving"]["name"] == "toy"


def test_restarted_service_finds_its_job(start: Start, cluster: FakeCluster) -> None:
    here = degraded(start)
    tick(here)
    here.close()
    again = start(toy=SETTINGS)
    assert again.status()["retraining"]["job"] == "job-1"
    assert again.status()["acting"] == "fallback"
    cluster.finish(better=True, extra=2)
    tick(again)
    assert again.status()["policies"]["shadow"]["name"] == "retrained"
    assert len(cluster.submitted) == 1
