"""Episodes of tenants: steps with feedback, what a policy learns from them, bounds, restarts."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster.models.policy import EpisodeStep, Explanation, Learned, Proposal
from loadmaster.serving.decisions.episodes import MAX_WAITING, Episode, LearnReply, learn_with
from loadmaster.serving.decisions.policy_memory import (
    MAX_NUMBERS,
    MAX_STEP,
    EncodedStep,
    decode_numbers,
    encode_numbers,
    encode_step,
    read_memory,
    write_memory,
)
from loadmaster.serving.monitoring.log_files import read_log
from tests.serving import toy
from tests.serving.conftest import LocalService, Start
from tests.serving.decisions.test_policy_memory import replay


def numbers(*values: float) -> Any:
    return np.array(values, np.float32)


def step_of(value: float, version: str = "v", steps: int = 3, width: int = 2) -> EncodedStep:
    return EncodedStep("f-1", version, steps, encode_numbers(np.full(width, value, np.float32)))


def filled(*values: int) -> Episode:
    """An episode whose decisions have these ids; none has feedback."""
    episode = Episode("f-1")
    for value in values:
        episode.add(str(value), step_of(value))
    return episode


def rows_of(episode: Episode) -> list[list[float]]:
    request = json.loads(episode.request())
    found = decode_numbers(request["rows"])
    assert found is not None
    rows: list[list[float]] = found.reshape(-1, request["width"]).tolist()
    return rows


def test_steps_have_the_order_of_their_decisions() -> None:
    episode = filled(0, 1, 2, 3)
    assert [episode.add_reward(name, 0.5) for name in ("2", "0")] == [False, False]
    assert not episode.add_reward("2", 9.0), "a second feedback of a decision does not count"
    assert not episode.add_reward("unknown", 9.0)
    assert not episode.add_reward(None, 9.0)
    assert not episode.add_reward("1", 1e300), "nor a reward beyond single precision"
    assert episode.add_reward("3", 1.5)
    assert rows_of(episode) == [[0, 0, 0.5], [2, 2, 0.5], [3, 3, 1.5]]


def test_what_was_learned_from_is_dropped() -> None:
    episode = filled(0, 1, 2, 3, 4)
    for name in ("1", "2", "3"):
        episode.add_reward(name, 1.0)
    last = episode.last
    episode.add_reward("4", 2.0)
    episode.drop(last)
    assert rows_of(episode) == [[4, 4, 2]], "a step that was completed meanwhile stays"
    assert not episode.add_reward("0", 1.0), "decisions from before are not waited for"
    assert len(rows_of(episode)) == 1


def test_an_episode_that_is_not_learned_from_keeps_its_latest_steps() -> None:
    episode = filled(*range(5))
    assert [episode.add_reward(str(n), 1.0) for n in range(5)] == [False, False, True, True, True]
    assert [row[0] for row in rows_of(episode)] == [2, 3, 4]


def test_steps_of_another_format_or_size_do_not_fit() -> None:
    episode = filled(0)
    assert episode.fits(step_of(1, version="w"))
    assert not episode.fits(step_of(1, width=3))
    assert not episode.fits(step_of(1)._replace(format="f-2"))
    assert Episode("f-1").fits(step_of(1, width=7))


def test_decisions_without_feedback_are_bounded() -> None:
    episode = filled(*range(MAX_WAITING + 1))
    size = episode.memory_bytes
    for name in range(100):
        episode.add(f"more {name}", step_of(1))
    assert episode.memory_bytes == size
    assert not episode.add_reward("0", 1.0)


def test_an_episode_is_restored() -> None:
    episode = filled(0, 1, 2, 3)
    episode.learned = encode_numbers(numbers(1, 2, 3))
    episode.add_reward("1", 0.25)
    for before in (Episode("f-1"), filled(7), episode):
        record = json.loads(json.dumps(before.record()))
        after = Episode.restored(record)
        assert after is not None
        assert (after.record(), after.format) == (before.record(), "f-1")
        assert after.memory_bytes == before.memory_bytes
    assert [after.add_reward(name, 1.0) for name in ("0", "3")] == [False, True]
    assert rows_of(after) == [[0, 0, 1], [1, 1, 0.25], [3, 3, 1]]


@pytest.mark.parametrize(
    "damage",
    [
        None,
        [],
        {"format": 7},
        {"rows": "AAA"},
        {"rows": ""},
        {"steps": 0},
        {"numbers": [1, 1]},
        {"numbers": []},
        {"waiting": [["a", 9, "AAAA"]]},
        {"waiting": [["a", 9, ""]] * (MAX_WAITING + 1)},
        {"learned": "AADAfw=="},
        {"rows": encode_numbers(np.zeros(MAX_NUMBERS + 2, np.float32)), "numbers": [*range(683)]},
    ],
)
def test_a_damaged_episode_is_ignored(damage: Any) -> None:
    episode = filled(0, 1)
    episode.add_reward("0", 1.0)
    whole = episode.record() | {"numbers": [0], "waiting": []}
    assert Episode.restored(whole) is not None
    assert Episode.restored({**whole, **damage} if isinstance(damage, dict) else damage) is None


def test_an_episode_of_aware_takes_at_most_32_kb() -> None:
    width, steps, best, embedding = 33, 100, 20, 64
    episode = Episode("f-1")
    for number in range(steps - 1 + MAX_WAITING):
        episode.add(f"{number:032x}", step_of(1.5, steps=steps, width=width))
        if number < steps - 1:
            assert not episode.add_reward(f"{number:032x}", 1.5)
    episode.learned = encode_numbers(np.full(best * (1 + embedding), 1.5, np.float32))
    assert 25_000 < len(json.dumps(episode.record())) < 32_000
    assert episode.memory_bytes < 32_000


def test_steps_of_a_proposal() -> None:
    policy = toy.Learn("p", "v", "learns", 0)
    proposal = Proposal(None, Explanation(""), step=EpisodeStep(numbers(7), numbers(8)))
    for given, acts, row in (
        (proposal, True, [7, 8]),
        (proposal, False, [7, 0]),
        (proposal._replace(unknown="unlike others"), True, [7, 0]),
    ):
        found = encode_step(policy, given, acts)
        assert found is not None
        assert found[:3] == ("toy-learned", "v", 3)
        assert decode_numbers(found.row) == pytest.approx(numbers(*row))
    assert encode_step(policy, proposal._replace(step=None), True) is None
    broken = EpisodeStep(numbers(np.nan), numbers(8))
    assert encode_step(policy, proposal._replace(step=broken), True) is None
    long = EpisodeStep(np.zeros(MAX_STEP, np.float32), numbers(8))
    with pytest.raises(ValueError, match="expected at most"):
        encode_step(policy, proposal._replace(step=long), True)


def test_long_episodes_are_cut_to_what_can_be_stored() -> None:
    class Patient(toy.Learn):
        episode_steps = 10**6

    step = EpisodeStep(np.zeros(99, np.float32), np.zeros(28, np.float32))
    found = encode_step(Patient("p", "v", "", 0), Proposal(None, Explanation(""), step=step), True)
    assert found is not None
    assert found.steps == MAX_NUMBERS // 128


def test_a_worker_refuses_what_it_cannot_learn_from() -> None:
    episode = Episode("toy-learned")
    for name in ("a", "b", "c"):
        episode.add(name, step_of(1)._replace(format="toy-learned"))
        episode.add_reward(name, 2.0)
    policy = toy.Learn("p", "v", "learns", 0)
    reply = LearnReply.model_validate_json(learn_with(policy, episode.request()))
    assert reply == LearnReply(
        line=write_memory("toy-learned", numbers(6, 1, 1, 1)), episodes=encode_numbers(numbers(1))
    )
    request = json.loads(episode.request())
    for wrong in ({"format": "f-1"}, {"rows": ""}, {"rows": "AAAA"}, {"width": 4}, {"width": 0}):
        with pytest.raises(ValueError, match=r"expected|greater than"):
            learn_with(policy, json.dumps({**request, **wrong}).encode())
    with pytest.raises(ValueError, match="expected ''"):
        learn_with(toy.Hold(), episode.request())
    with pytest.raises(FloatingPointError):
        learn_with(toy.Learn("p", "v", "learns nan", 0), episode.request())

    class Wordy(toy.Learn):
        def learn(self, *given: Any) -> Learned:
            return super().learn(*given)._replace(episodes=np.zeros(MAX_NUMBERS + 1, np.float32))

    with pytest.raises(ValueError, match="expected a row of at most"):
        learn_with(Wordy("p", "v", "learns", 0), episode.request())


# The service.


def run(here: LocalService, rewards: list[float], tenant: str = "a", **options: Any) -> list[Any]:
    """Decisions with feedback; then everything is learned and written."""
    found = []
    for reward in rewards:
        made = here.decide(tenant=tenant, **options)
        body = {"id": made["id"], "tenant": tenant, "outcome": {"reward": reward}}
        assert here.post("feedback", body).status == 200
        found.append(made)
    here.run(asyncio.sleep(0.05))
    here.status()
    return found


def replicas(here: LocalService, tenant: str = "a") -> float:
    found: float = here.decide(tenant=tenant)["decision"]["replicas"]
    return found


def logged(here: LocalService) -> list[Any]:
    here.close()
    return list(read_log(here.folder / "kept" / "log" / "toy"))


def learned(row: Any) -> list[float] | None:
    found = read_memory(row.memory or "", "toy-learned")
    return None if found is None else found.tolist()


def test_a_policy_learns_from_each_episode(start: Start) -> None:
    here = start("learns")
    first = run(here, [1, 2, 3])
    assert [one["decision"]["replicas"] for one in first] == [0, 0, 0]
    assert replicas(here) == 6
    assert replicas(here, "b") == 0
    run(here, [5, 5, 5])
    assert replicas(here) == 15
    rows = logged(here)
    assert learned(rows[3]) == [6, 1, 2, 3], "the actions of the policy that acted"
    assert replay(rows, here.folder / "bundle-learns").different == 0


@pytest.mark.slow
def test_episodes_survive_a_restart_and_a_kill(start: Start) -> None:
    here = start("learns")
    run(here, [1, 2])
    here.close()
    here = start("learns")
    run(here, [3])
    assert replicas(here) == 6, "the episode goes on"
    here.status()  # waits until changes are written
    here.kill()
    here = start("learns")
    assert replicas(here) == 6
    run(here, [4, 5, 6])
    assert replicas(here) == 15


def test_episodes_leave_memory_with_their_tenant(start: Start) -> None:
    here = start("learns", tenants={"most": 2})
    for tenant in ("a", "b", "c"):
        run(here, [1, 2], tenant)
    for tenant in ("a", "b", "c"):
        run(here, [3], tenant)
        assert replicas(here, tenant) == 6


def test_the_rule_acts_with_zeros_as_actions(start: Start) -> None:
    here = start("learns", toy={"monitor": {"lifecycle": {"bootstrap": True}}})
    found = run(here, [1, 2, 3], mode="shadow")
    assert {one["source"] for one in found} == {"fallback"}
    here.decide(tenant="a", mode="shadow")
    rows = logged(here)
    assert learned(rows[3]) == [6, 0, 0, 0]


def test_policies_that_do_not_learn_have_no_episode(start: Start) -> None:
    here = start("counts")
    run(here, [1, 2, 3, 4])
    assert learned(logged(here)[3]) is None


def test_an_episode_that_cannot_be_learned_from_is_dropped(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    here = start("learns nan")
    run(here, [1, 2, 3])
    assert "an episode is dropped" in caplog.text
    assert "NaN" in caplog.text
    caplog.clear()
    run(here, [1, 2])
    assert not caplog.messages
    assert replicas(here) == 0


def test_an_episode_waits_for_a_worker(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    here = start("learns")

    async def lost(*_: Any) -> bytes:
        raise ConnectionError("no worker is up")

    with monkeypatch.context() as patch:
        patch.setattr(here.worker, "learn", lost)
        run(here, [1, 2, 3])
        assert replicas(here) == 0
    run(here, [4])
    assert replicas(here) == 9, "of the latest three steps"


def test_another_bundle_begins_a_new_episode(start: Start, tmp_path: Path) -> None:
    here = start("learns")
    run(here, [1, 2])
    toy.make_bundle(tmp_path / "next", "next", does="learns", extra=1)
    here.post("promote", {"bundle": str(tmp_path / "next"), "to": "serving"})
    run(here, [3])
    assert replicas(here) == 6, "one of the same format goes on"
    toy.make_bundle(tmp_path / "other", "other", does="counts")
    here.post("promote", {"bundle": str(tmp_path / "other"), "to": "serving"})
    run(here, [1, 1, 1])
    here.post("rollback")
    assert replicas(here) == 6


# What is given to the service.


def test_memory_is_given_to_a_tenant(start: Start) -> None:
    here = start("learns")
    version = here.status()["policies"]["serving"]["version"]
    given = {"toy-1": [5, 0.5], "toy-learned": [42.0]}
    episodes = {"format": "toy-learned", "numbers": [7.0]}
    body = {"tenant": "a", "version": version, "memory": given, "episodes": episodes}
    answer = here.post("memory", body)
    assert (answer.status, answer.json["tenant"]) == (200, "a")
    here.kill()
    here = start("learns")
    found = here.decide(tenant="a")
    assert (found["decision"]["replicas"], found["reason"]["summary"]) == (42, "6 decisions")
    assert replicas(here, "b") == 0
    run(here, [1, 2, 3])
    assert replicas(here) == 6, "it learns further"
    assert here.post("memory", {"tenant": "a", "memory": {"toy-learned": [50]}}).status == 200
    assert replicas(here) == 50


def test_memory_of_another_bundle_is_refused(start: Start) -> None:
    here = start("learns")
    body = {"tenant": "a", "version": "0" * 12, "memory": {"toy-learned": [42.0]}}
    answer = here.post("memory", body)
    assert answer.status == 409
    assert "which serves" in answer.json["error"]
    assert replicas(here) == 0


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "memory"),
        ({"memory": {}}, "memory"),
        ({"memory": {"a b": [1]}}, "memory.a b.[key]"),
        ({"memory": {"a\nb": [1]}}, "memory.a"),
        ({"memory": {"a": "1"}}, "memory.a"),
        ({"memory": {"a": [None]}}, "memory.a[0]"),
        ({"memory": {"a": [1e39]}}, "memory.a"),
        ({"memory": {"a": [0] * (MAX_NUMBERS + 1)}}, "memory.a"),
        ({"memory": {name: [1] for name in "abcde"}}, "memory"),
        ({"memory": {"a": [1]}, "episodes": {"format": "a"}}, "episodes.numbers"),
        ({"memory": {"a": [1]}, "episodes": {"format": "a", "numbers": [-1e39]}}, "episodes"),
        ({"memory": {"a": [1]}, "more": 1}, "more"),
    ],
)
def test_memory_that_is_none_is_refused(start: Start, body: Any, field: str) -> None:
    answer = start("learns").post("memory", body)
    assert answer.status == 422
    assert answer.json["field"].startswith(field)
