"""From decay to another policy: with a made-up cluster, and a clock that is moved by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from loadmaster.serving.http import app_factory as assembly
from loadmaster.serving.jobs.job import Job
from loadmaster.serving.policies.comparison import BUNDLE, FILE
from tests.serving import toy
from tests.serving.conftest import Here, Start


class FakeCluster:
    """Runs no job. `finish` leaves what a job would have left."""

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
        import shlex

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
        toy.make_bundle(self.folder / BUNDLE, "renewed", does, extra)
        judged = {"name": "x", "version": "y", "folder": "z", "mean": 1.0, "ci95": [0.9, 1.1]}
        verdict = {
            "system": "toy", "metric": "jct", "unit": "s", "lower_is_better": True,
            "sequences": 8, "first_seed": 0, "environment": {}, "candidate": judged,
            "serving": judged, "difference_percent": -12.5, "ci95": [-15.0, -10.0],
            "better": better,
        }  # fmt: skip
        (self.folder / FILE).write_text(json.dumps(verdict))
        self.status = "succeeded"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    made = FakeCluster()
    monkeypatch.setattr(assembly, "Jobs", lambda: made)
    return made


SETTINGS: dict[str, Any] = {
    "monitor": {"lifecycle": {"window": 10, "retrain_offline": True}},
    "renewal": {"shadow_decisions": 5, "poll_s": 0.001},
    "retraining": {"cool_down_s": 0},
}


def look_after(here: Here) -> None:
    here.run(here.service.systems["toy"].look_after())


def earn(here: Here, reward: float, times: int, mode: str = "active") -> None:
    for step in range(times):
        decision = here.decide(load=40 + step % 5, mode=mode)["id"]
        told = {"id": decision, "outcome": {"reward": reward + 0.01 * (step % 3)}}
        assert here.ask("POST", "/v1/toy/feedback", told).status == 200


def decayed(start: Start) -> Here:
    """A policy that earned more than the rule, and then less."""
    here = start(toy=SETTINGS)
    earn(here, 1.0, 12, mode="shadow")
    earn(here, 2.0, 20)
    assert here.status()["acting"] == "policy"
    earn(here, 0.1, 20)
    return here


def test_a_decayed_policy_hands_over_and_is_retrained(start: Start, cluster: FakeCluster) -> None:
    here = decayed(start)
    told = here.status()
    assert (told["lifecycle"]["state"], told["acting"]) == ("OFFLINE", "fallback")
    assert here.decide()["cause"] == "lifecycle"
    look_after(here)
    assert len(cluster.submitted) == 1
    words = cluster.submitted[0]
    assert words[:2] == ["retrain", "toy"]
    load = next(word for word in words if word.startswith("environment.load="))
    assert 40 <= float(load.partition("=")[2]) <= 44
    assert here.status()["retraining"]["job"] == "job-1"

    cluster.finish(better=True, extra=2)
    look_after(here)
    told = here.status()
    assert told["policies"]["shadow"]["name"] == "renewed"
    assert told["acting"] == "fallback", "in the shadow it does not act yet"
    for _ in range(6):
        here.decide()
    here.run(settle())
    look_after(here)
    told = here.status()
    assert told["policies"]["serving"]["name"] == "renewed"
    assert (told["lifecycle"]["state"], told["acting"]) == ("SERVING", "policy")
    assert told["lifecycle"]["why"] == (
        "retrained, -12.5% jct beside the last; 6 decisions in the shadow"
    )
    assert here.decide(load=42)["decision"] == {"replicas": 7}


def test_one_that_is_no_better_stays_out_and_another_is_tried(
    start: Start, cluster: FakeCluster
) -> None:
    here = decayed(start)
    look_after(here)
    cluster.finish(better=False, extra=2)
    look_after(here)
    told = here.status()
    assert told["policies"]["shadow"] is None
    assert told["acting"] == "fallback"
    look_after(here)
    assert len(cluster.submitted) == 2


def test_one_that_fails_in_the_shadow_is_dropped(start: Start, cluster: FakeCluster) -> None:
    here = decayed(start)
    look_after(here)
    cluster.finish(better=True, extra=0, does="raises")
    look_after(here)
    for _ in range(6):
        assert here.decide()["cause"] == "lifecycle"
    here.run(settle())
    look_after(here)
    told = here.status()
    assert told["policies"]["shadow"] is None
    assert told["policies"]["serving"]["name"] == "toy"


def test_a_restart_finds_the_job_again(start: Start, cluster: FakeCluster) -> None:
    here = decayed(start)
    look_after(here)
    here.close()
    again = start(toy=SETTINGS)
    assert again.status()["retraining"]["job"] == "job-1"
    assert again.status()["acting"] == "fallback"
    cluster.finish(better=True, extra=2)
    look_after(again)
    assert again.status()["policies"]["shadow"]["name"] == "renewed"
    assert len(cluster.submitted) == 1


async def settle() -> None:
    """Those who only watch answer a little later."""
    import asyncio

    await asyncio.sleep(0.1)
