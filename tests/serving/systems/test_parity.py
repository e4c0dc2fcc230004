"""Train/serve parity over HTTP: decisions of the service equal those of the episode."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from loadmaster.models.bundle import load_bundle
from loadmaster.models.decima.network import DecimaNetwork
from loadmaster.serving.client import AsyncClient
from loadmaster.serving.systems.das.schema import DasDecision
from loadmaster.serving.systems.decima.schema import DecimaDecision
from tests.serving.live import Live
from tests.serving.systems.das import episodes as das
from tests.serving.systems.decima import episodes as decima

pytestmark = pytest.mark.slow

STATES = 1_000
AT_ONCE = 8


class Recorded(NamedTuple):
    state: bytes
    expected: Any  # decision of the episode
    read: Callable[[Any], Any]  # a decision of the service in the same form


def decima_states(pretrained: Path) -> Iterator[Recorded]:
    """Rounds, and their first decisions."""
    network = load_bundle(pretrained / "decima-stream").build()
    assert isinstance(network, DecimaNetwork)

    def read(decision: Any) -> list[decima.Given]:
        return decima.assignments(DecimaDecision.model_validate(decision))

    for seed in range(100):
        for held in decima.rounds(decima.EPISODES["stream"], seed, decima.in_process(network)):
            yield Recorded(held.state.model_dump_json().encode(), held.given, read)
            for place, before in enumerate(held.before[:2]):
                state = before.model_copy(update={"ask": "one"}).model_dump_json().encode()
                yield Recorded(state, held.given[place : place + 1], read)


def das_states(pretrained: Path) -> Iterator[Recorded]:
    def read(before: das.Places, decision: Any) -> das.Places:
        return das.carried_out(before, DasDecision.model_validate(decision))

    for seed in range(100):
        for seen in das.Episode(pretrained / "das-small", seed, load=1.2).moments():
            state = seen.asked.model_dump_json().encode()
            yield Recorded(state, seen.after, partial(read, seen.before))


async def decide_all(url: str, system: str, recorded: list[Recorded]) -> list[str]:
    """A description of every decision that differs."""
    wrong: list[str] = []
    rest = iter(recorded)

    async def decide_some() -> None:
        async with AsyncClient(url, deadline_s=30.0) as client:
            for one in rest:
                response = await client.decide(system, one.state)
                if response.source != "policy" or one.read(response.decision) != one.expected:
                    cause = f"{response.source}, {response.cause}"
                    wrong.append(f"{cause}: {one.state!r} -> {response.decision}")

    await asyncio.gather(*(decide_some() for _ in range(AT_ONCE)))
    return wrong


@pytest.mark.parametrize(
    ("system", "states"), [("decima", decima_states), ("das", das_states)], ids=["decima", "das"]
)
def test_decisions_over_http_equal_those_of_the_episode(
    live: Live, root: Path, system: str, states: Callable[[Path], Iterator[Recorded]]
) -> None:
    recorded = list(islice(states(root / "models" / "pretrained"), STATES))
    assert len({one.state for one in recorded}) > 0.9 * STATES
    wrong = asyncio.run(decide_all(live.url, system, recorded))
    assert not wrong, f"{len(wrong)} of {STATES}, such as {wrong[0][:2000]}"
