"""Train/serve parity over HTTP: a state that is sent is decided as it was in its episode."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
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

STATES = 1_000
AT_ONCE = 8


class Recorded(NamedTuple):
    state: bytes
    is_the_same: Callable[[Any], bool]  # the decision over HTTP, as the one in the episode


def decima_states(pretrained: Path) -> Iterator[Recorded]:
    """Rounds, and the single decisions they are made of."""
    network = load_bundle(pretrained / "decima-stream").build()
    assert isinstance(network, DecimaNetwork)
    for seed in range(100):
        for held in decima.rounds(decima.EPISODES["stream"], seed, decima.in_process(network)):
            yield _round(held)
            for place, before in enumerate(held.before[:2]):
                yield _one(held, place, before.model_copy(update={"ask": "one"}))


def _round(held: decima.Round) -> Recorded:
    def is_the_same(decision: Any) -> bool:
        return decima.told(DecimaDecision.model_validate(decision)) == held.given

    return Recorded(held.state.model_dump_json().encode(), is_the_same)


def _one(held: decima.Round, place: int, state: decima.DecimaState) -> Recorded:
    def is_the_same(decision: Any) -> bool:
        told = decima.told(DecimaDecision.model_validate(decision))
        return told == held.given[place : place + 1]

    return Recorded(state.model_dump_json().encode(), is_the_same)


def das_states(pretrained: Path) -> Iterator[Recorded]:
    for seed in range(100):
        for seen in das.Episode(pretrained / "das-small", seed, load=1.2).moments():
            yield _moment(seen)


def _moment(seen: das.Seen) -> Recorded:
    def is_the_same(decision: Any) -> bool:
        return das.carried_out(seen.before, DasDecision.model_validate(decision)) == seen.after

    return Recorded(seen.asked.model_dump_json().encode(), is_the_same)


async def ask_all(url: str, system: str, recorded: list[Recorded]) -> list[str]:
    """What was wrong with each answer that was not as it should be."""
    wrong: list[str] = []
    rest = iter(recorded)

    async def ask_some() -> None:
        async with AsyncClient(url, deadline_s=30.0) as client:
            for one in rest:
                told = await client.decide(system, one.state)
                if told.source != "policy" or not one.is_the_same(told.decision):
                    wrong.append(f"{told.source}, {told.cause}: {one.state!r} -> {told.decision}")

    await asyncio.gather(*(ask_some() for _ in range(AT_ONCE)))
    return wrong


@pytest.mark.parametrize(
    ("system", "states"), [("decima", decima_states), ("das", das_states)], ids=["decima", "das"]
)
def test_http_decides_as_the_episode_did(
    live: Live, root: Path, system: str, states: Callable[[Path], Iterator[Recorded]]
) -> None:
    recorded = list(islice(states(root / "models" / "pretrained"), STATES))
    assert len({one.state for one in recorded}) > 0.9 * STATES
    wrong = asyncio.run(ask_all(live.url, system, recorded))
    assert not wrong, f"{len(wrong)} of {STATES}, such as {wrong[0][:2000]}"
