"""Train/serve parity: decisions on states sent as JSON equal those of the simulated episode."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.models.bundle import load_bundle
from loadmaster.models.das.policy import DasPolicy
from loadmaster.models.decima.network import DecimaNetwork
from loadmaster.serving.client import AsyncClient
from loadmaster.serving.system import Endpoint, Policy, State
from loadmaster.serving.systems.das.system import ENDPOINT as DAS
from loadmaster.serving.systems.das.system import BundlePolicy
from loadmaster.serving.systems.decima.system import ENDPOINT as DECIMA
from tests.bundles import make_bundle
from tests.serving.live import Live
from tests.serving.systems.das import episodes as das
from tests.serving.systems.das.episodes import PRETRAINED, Episode
from tests.serving.systems.decima import episodes as decima

pytestmark = pytest.mark.slow

STATES = 1_000  # over HTTP
AT_ONCE = 8


class Recorded(NamedTuple):
    """A state of an episode and the decision taken there."""

    state: State
    kind: str
    expected: Any
    read: Any  # converts a decision to the form of `expected`


def record_das(episode: Iterable[das.Seen]) -> Iterator[Recorded]:
    for seen in episode:
        read = partial(das.outcome, seen.before)
        yield Recorded(seen.asked, seen.kind, (seen.after, seen.ranks), read)


def record_decima(episode: str, decide: decima.Decide) -> Iterator[Recorded]:
    """Rounds of many episodes, and the decisions of each."""
    episodes = (decima.rounds(decima.EPISODES[episode], seed, decide) for seed in range(11, 99))
    for held in chain.from_iterable(episodes):
        free = sum(group.free for group in held.before[0].executors)
        idle = free - sum(executors for _, _, executors, _ in held.given)
        yield Recorded(held.before[0], "round", (held.given, idle, 0), decima.whole)
        for place, before in enumerate(held.before):
            state = before.model_copy(update={"ask": "one"})
            yield Recorded(state, "one", held.given[place : place + 1], decima.assignments)


def compare(
    endpoint: Endpoint[Any, Any, Any], policy: Policy, recorded: Iterator[Recorded], count: int
) -> Counter[str]:
    """Compare the policy's decisions with those of the episode; return how many of each kind."""
    kinds = Counter[str]()
    for one in islice(recorded, count):
        state = endpoint.state.model_validate_json(one.state.model_dump_json())
        decision = policy.decide(state).decision
        assert endpoint.validate_decision(state, decision) is None
        assert one.read(decision) == one.expected, one
        kinds[one.kind] += 1
    assert kinds.total() == count
    return kinds


def trained_network(bundle: str) -> decima.Decide:
    network = load_bundle(PRETRAINED / bundle).build()
    assert isinstance(network, DecimaNetwork)
    return decima.in_process(network)


@pytest.mark.parametrize(
    ("bundle", "episode"),
    [
        ("decima", "stream"),
        ("decima", "no estimates"),
        ("decima-stream", "stream"),
        ("decima-batch", "batch"),
        ("decima-classes", "classes"),
        ("decima-stream", "classes, stream"),
        ("decima-makespan", "no estimates"),
    ],
)
def test_decima_network_equals_episode(bundle: str, episode: str) -> None:
    recorded = record_decima(episode, trained_network(bundle))
    kinds = compare(DECIMA, DECIMA.policy(PRETRAINED / bundle), recorded, 400)
    assert kinds["one"] >= 200  # of seven cases: 1,400


@pytest.mark.parametrize("episode", ["batch", "stream", "classes, stream"])
@pytest.mark.parametrize("rule", DECIMA.rules)
def test_decima_rule_equals_episode(rule: str, episode: str) -> None:
    recorded = record_decima(episode, decima.by_rule(rule))
    assert compare(DECIMA, DECIMA.rule(rule), recorded, 160)["one"] >= 80


PHASES = ("placing", "reconsidering", "placing again")
EVENTS = (", ".join(PHASES), ", ".join(PHASES[1:]))
GUIDED, REPLANS = PHASES[:2], PHASES[1:2]  # of a policy that corrects a rule


@pytest.mark.parametrize(
    ("name", "episode", "skipped", "count", "kinds"),
    [
        ("das", {"seed": 1, "load": 1.2}, 0, 690, GUIDED),
        ("das", {"seed": 1, "load": 1.5, "backfill": False}, 0, 300, GUIDED),
        ("das", {"seed": 1, "load": 1.2, "cluster": "medium"}, 150, 300, GUIDED),
        ("das", {"seed": 1, "load": 4.0, "cluster": "large"}, 450, 60, GUIDED),
        ("das", {"seed": 3, "load": 1.2}, 0, 300, REPLANS),
        ("das-small", {"seed": 1, "load": 1.2}, 0, 690, PHASES),
        ("das-medium", {"seed": 1, "load": 1.5}, 150, 400, PHASES),
        ("das-large", {"seed": 1, "load": 4.0}, 450, 60, PHASES[:2]),
        # Without runtime noise, which a state does not contain for jobs that just started.
        ("das-small", {"seed": 3, "load": 1.2, "stragglers": 0.0}, 0, 300, EVENTS),
        ("das-medium", {"seed": 3, "load": 1.5, "stragglers": 0.0}, 400, 150, EVENTS),
    ],
)
def test_das_network_equals_episode(
    name: str, episode: dict[str, Any], skipped: int, count: int, kinds: tuple[str, ...]
) -> None:
    run = Episode(PRETRAINED / name, **episode).skip(skipped)
    recorded = record_das(run.events() if kinds in (EVENTS, REPLANS) else run.moments())
    found = compare(DAS, DAS.policy(PRETRAINED / name), recorded, count)
    assert min(found[kind] for kind in kinds) > 5, found


@pytest.mark.parametrize(
    ("network", "settings"),
    [
        ({"exact_up_to": 4, "cells": 3}, {"preempt": True}),  # in torch, with cells
        ({"process": False, "opening": "nothing"}, {"durations": "known", "backfill": False}),
    ],
    ids=["in torch", "a plain network in a strict queue"],
)
def test_other_das_networks_equal_episode(network: Any, settings: Any, tmp_path: Path) -> None:
    """With more jobs than the policy observes."""
    settings = {"max_queue": 12, "history": 3, **settings}
    network = {"system": "das", "width": 16, "heads": 2, **network}
    folder = make_bundle(tmp_path / "other", environment=settings, **network)
    policy, without_noise = DAS.policy(folder), Episode(folder, seed=2, stragglers=0.0)
    phases = compare(DAS, policy, record_das(Episode(folder, seed=2).moments()), 120)
    assert phases["placing"] > 5, phases
    compare(DAS, policy, record_das(without_noise.events()), 80)


@pytest.mark.parametrize("asks", ["moments", "events"])
def test_corrected_rule_equals_episode_with_more_jobs_than_it_observes(asks: str) -> None:
    trained = DasPolicy.load(PRETRAINED / "das")
    observes = trained.trained_in.model_copy(update={"max_queue": 12})
    run = Episode(PRETRAINED / "das", seed=5, load=1.5, max_queue=12).skip(100)
    recorded = record_das(run.moments() if asks == "moments" else run.events())
    kept = list(islice(recorded, 200))
    compare(DAS, BundlePolicy(DasPolicy(trained.network, observes)), iter(kept), 200)
    crowded = sum(len(one.state.jobs) > 12 and len(one.state.ranks) > 12 for one in kept)
    assert crowded > 50


@pytest.mark.parametrize("rule", DAS.rules)
@pytest.mark.parametrize("backfill", [True, False], ids=["backfill", "strict"])
def test_das_rule_equals_episode(rule: str, backfill: bool) -> None:
    settings = GpuSchedulingSettings(backfill=backfill, require_types=True, oversized="skip")
    episode = record_das(das.under_rule(rule, settings, seed=4))
    kinds = compare(DAS, DAS.rule(rule), episode, 250)
    assert kinds["placing"] > 20
    assert (kinds["event"] > 20) == rule.startswith(("las", "predicted"))


async def decide_all(url: str, endpoint: Any, recorded: list[Recorded]) -> list[str]:
    """Send all states; a description of every decision that differs."""
    wrong: list[str] = []
    rest = iter(recorded)

    async def decide_some() -> None:
        async with AsyncClient(url, deadline_s=30.0) as client:
            for one in rest:
                state = one.state.model_dump_json().encode()
                found = await client.decide(endpoint.system, state)
                decision = endpoint.decision.model_validate(found.decision)
                if found.source != "policy" or one.read(decision) != one.expected:
                    wrong.append(f"{found.source}, {found.cause}: {state!r} -> {found.decision}")

    await asyncio.gather(*(decide_some() for _ in range(AT_ONCE)))
    return wrong


@pytest.mark.parametrize("endpoint", [DECIMA, DAS], ids=["decima", "das"])
def test_decisions_over_http_equal_episode(live: Live, endpoint: Endpoint[Any, Any, Any]) -> None:
    if endpoint is DAS:
        bundle = PRETRAINED / DAS.pretrained
        moments = (Episode(bundle, n, load=1.2).moments() for n in range(100))
        states = record_das(chain.from_iterable(moments))
    else:
        states = record_decima("stream", trained_network(DECIMA.pretrained))
    recorded = list(islice(states, STATES))
    assert len({one.state.model_dump_json() for one in recorded}) > 0.9 * STATES
    first = recorded[0].state.model_dump_json().encode()  # an earlier test may have killed workers
    live.until(lambda: live.admin.decide(endpoint.system, first).source == "policy")
    wrong = asyncio.run(decide_all(live.url, endpoint, recorded))
    assert not wrong, f"{len(wrong)} of {STATES}, such as {wrong[0][:2000]}"
