"""AWARE in the service: the embedding of an application follows each episode of feedback."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster.envs.pod_scaling.episode import EpisodeResult, Setup, build_setup
from loadmaster.envs.pod_scaling.episode_runner import EpisodeRunner
from loadmaster.envs.pod_scaling.settings import PodScalingSettings
from loadmaster.models.aware.adaptation import Adaptation
from loadmaster.models.aware.choice import Remembered, nothing_known, unpack
from loadmaster.models.aware.policy import AwarePolicy
from loadmaster.models.aware.rule import carry_out
from loadmaster.models.bundle import load_bundle, save_bundle
from loadmaster.platform.replay.decision_log import replay_log
from loadmaster.platform.systems.aware.adaptation import by_episodes
from loadmaster.serving.decisions.policy_memory import read_memory
from loadmaster.serving.monitoring.log_files import DecisionRow, read_log
from loadmaster.serving.systems.aware.examples import state_of
from tests.models.aware.parts import SMALL, network_of
from tests.serving import toy
from tests.serving.conftest import LocalService, open_service

APPLICATION, STEPS = "webServe+S3Read", 20
SETTINGS = PodScalingSettings(application=APPLICATION, steps=STEPS)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle whose actor depends on the embedding, trained in episodes of 20 steps."""
    save_bundle(
        tmp_path / "mine",
        name="mine",
        system="aware",
        network=SMALL,
        weights=network_of(size=0.5).state_dict(),
        trained={"environment": {"application": APPLICATION, "steps": STEPS}},
        results={},
    )
    return tmp_path / "mine"


@pytest.fixture
def policy(bundle: Path) -> AwarePolicy:
    return AwarePolicy.from_bundle(load_bundle(bundle))


class Services:
    """Services of one folder, one after the other."""

    def __init__(self, bundle: Path, folder: Path) -> None:
        self._folder, self.opened = folder, list[LocalService]()
        self._systems: dict[str, Any] = {
            "toy": {
                "endpoint": toy.REFERENCE, "bundle": str(toy.make_bundle(folder / "bundle-toy")),
            },
            "aware": {"bundle": str(bundle), "deadline_ms": 60_000, "guard": {"flaps": None}},
        }  # fmt: skip

    def open(self) -> LocalService:
        self.opened.append(open_service(self._systems, self._folder))
        return self.opened[-1]


@pytest.fixture
def services(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Services]:
    monkeypatch.delenv("LOADMASTER_TOKENS", raising=False)
    made = Services(bundle, tmp_path)
    yield made
    for here in made.opened:
        here.close()


def decide(here: LocalService, runner: EpisodeRunner, **options: Any) -> Any:
    body = {"state": state_of(runner).model_dump(mode="json"), "tenant": "shop", **options}
    answer = here.request("POST", "/v1/aware/decide", body)
    assert answer.status == 200, answer
    return answer.json


def give_feedback(here: LocalService, decision_id: str, result: EpisodeResult) -> None:
    """Report the last step of an episode."""
    outcome = {
        "p99_s": float(result.p99_s[-1]), "slo_s": float(result.slo_s[-1]),
        "cpu_use": float(result.cpu_use[-1]), "memory_use": float(result.memory_use[-1]),
    }  # fmt: skip
    body = {"id": decision_id, "tenant": "shop", "outcome": outcome}
    answer = here.request("POST", "/v1/aware/feedback", body)
    assert answer.status == 200, answer
    assert answer.json["reward"] == pytest.approx(result.rewards[-1])


def run_episode(
    here: LocalService, policy: AwarePolicy, setup: Setup, known: Remembered, **options: Any
) -> list[Any]:
    """Carry out the policy's decisions; returns those of the service on the same states."""
    runner, made = EpisodeRunner(SETTINGS, setup, 3), []
    for step in policy.steps(runner, known):
        made.append(decide(here, runner, **options))
        carry_out(setup.constants, runner.episode.state, step.decision.plan)
        give_feedback(here, made[-1]["id"], runner.result("mine"))
    here.run(asyncio.sleep(0.3))  # the worker learns meanwhile
    here.status("aware", "shop")  # waits until changes are written
    return made


def logged(here: LocalService) -> list[DecisionRow]:
    here.close()
    return list(read_log(here.folder / "kept" / "log" / "aware"))


def embedding_of(row: DecisionRow, policy: AwarePolicy) -> Any:
    found = read_memory(row.memory or "", policy.embedding_format)
    return None if found is None else unpack(None, found, policy.settings.context).embedding


def acts(made: Any) -> bool:
    """Whether the actor has changed a margin."""
    return any(option["score"] != 0 for option in made["reason"]["choices"]["margin"])


def test_the_embedding_follows_each_episode(
    services: Services, policy: AwarePolicy, bundle: Path
) -> None:
    setup = build_setup(SETTINGS)
    expected = Adaptation.new(policy)
    expected.run_episode(SETTINGS, setup, 3)

    here = services.open()
    first = run_episode(here, policy, setup, nothing_known(policy.settings.context))
    assert {one["source"] for one in first} == {"policy"}
    assert not any(map(acts, first)), "without an embedding the rule's margins"
    here.kill()

    here = services.open()
    second = run_episode(here, policy, setup, expected.copy())
    assert all(map(acts, second))
    decide(here, EpisodeRunner(SETTINGS, setup, 3))
    rows = logged(here)
    assert len(rows) == 2 * STEPS + 1
    assert all(embedding_of(row, policy) is None for row in rows[:STEPS])
    assert expected.known.embedding.any()
    for row in rows[STEPS : 2 * STEPS]:
        found = embedding_of(row, policy)
        np.testing.assert_allclose(found, expected.known.embedding, rtol=1e-4, atol=1e-6)
    assert np.abs(embedding_of(rows[-1], policy) - expected.known.embedding).max() > 1e-5

    replayed = replay_log(rows, {"aware": bundle}, lambda _: None)
    assert (replayed.replayed, replayed.different) == (2 * STEPS + 1, 0)
    without = replay_log([row._replace(memory=None) for row in rows], {"aware": bundle}, print)
    assert without.different > 0


def test_episodes_of_the_rule_count_with_its_margins(
    services: Services, policy: AwarePolicy
) -> None:
    setup = build_setup(SETTINGS)
    here = services.open()
    known = nothing_known(policy.settings.context)
    known.embedding[:] = 0.5  # the actor acts in the episode, and the service does not know
    made = run_episode(here, policy, setup, known, mode="shadow")
    assert {one["source"] for one in made} == {"fallback"}
    decide(here, EpisodeRunner(SETTINGS, setup, 3))
    found = embedding_of(logged(here)[-1], policy)
    assert found is not None

    known = nothing_known(policy.settings.context)._replace(embedding=known.embedding)
    result, trajectory = policy.record(SETTINGS, 3, setup, known)
    assert trajectory[:, -7:-1].any()
    trajectory[:, -7:-1] = 0
    expected = Adaptation.new(policy)
    expected.add(result.reward, trajectory)
    np.testing.assert_allclose(found, expected.known.embedding, rtol=1e-4, atol=1e-6)


def test_an_adapted_application_begins_with_its_embedding(
    services: Services, policy: AwarePolicy, bundle: Path
) -> None:
    adapted = by_episodes(load_bundle(bundle), SETTINGS, 2)
    here = services.open()
    request = {**adapted.service_request(), "tenant": "shop"}
    assert here.request("POST", "/v1/aware/memory", request).status == 200
    here.kill()

    here, setup = services.open(), build_setup(SETTINGS)
    made = run_episode(here, policy, setup, adapted.found.copy())
    assert acts(made[0])
    assert not made[0]["reason"]["notes"], "it is not new"
    decide(here, EpisodeRunner(SETTINGS, setup, 3))
    rows = logged(here)
    given = adapted.found.known
    found = unpack(
        read_memory(rows[0].memory or "", policy.memory_format),
        read_memory(rows[0].memory or "", policy.embedding_format),
        policy.settings.context,
    )
    np.testing.assert_allclose(found.estimates, given.estimates, rtol=1e-12)
    np.testing.assert_allclose(found.embedding, given.embedding, rtol=1e-6)
    adapted.found.run_episode(SETTINGS, setup, 3)
    after = embedding_of(rows[-1], policy)
    assert len(adapted.found.best) == 3
    np.testing.assert_allclose(after, adapted.found.known.embedding, rtol=0.02)
