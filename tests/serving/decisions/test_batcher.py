"""Requests on their way to the worker: who shares a call, and that nobody is forgotten."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from loadmaster.serving.decisions.batcher import RequestBatcher


class Echo:
    """Answers at once, or after as many turns of the loop as it is told."""

    def __init__(self, turns: int = 0) -> None:
        self.turns, self.crowds = turns, list[int]()

    async def decide(self, version: str, folder: str, raw: list[bytes]) -> list[bytes]:
        self.crowds.append(len(raw))
        for _ in range(self.turns):
            await asyncio.sleep(0)
        return [version.encode() + one for one in raw]

    propose: Any = None
    load: Any = None


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
@pytest.mark.parametrize("most", [1, 64])
def test_who_asks_again_at_once_is_never_forgotten(turns: int, most: int) -> None:
    """A call that has just ended takes nobody along any more; the next request starts its own."""

    async def ask_again_and_again(link: RequestBatcher, name: bytes) -> None:
        for _ in range(50):
            assert await link.decide(name, "v", "f", 1.0) == b"v" + name

    async def work() -> None:
        link = RequestBatcher(Echo(turns), most)
        for many in (1, 2, 7):
            names = [str(n).encode() for n in range(many)]
            await asyncio.gather(*(ask_again_and_again(link, name) for name in names))

    asyncio.run(work())


def test_a_crowd_shares_a_call_and_versions_do_not() -> None:
    async def work() -> None:
        worker = Echo(turns=3)
        link = RequestBatcher(worker, 4)
        asked = [link.decide(b"x", version, "f", 1.0) for version in "aaaaaabbb"]
        answers = await asyncio.gather(*asked)
        assert answers == [b"ax"] * 6 + [b"bx"] * 3
        assert worker.crowds == [4, 2, 3]

    asyncio.run(work())


def test_who_hangs_blocks_nobody_for_longer_than_a_deadline() -> None:
    async def work() -> None:
        worker = Echo()
        link = RequestBatcher(worker, 64)

        async def hang(*_: Any) -> list[bytes]:
            await asyncio.sleep(10)
            return []

        worker.decide = hang  # type: ignore[method-assign]
        with pytest.raises(TimeoutError):
            await link.decide(b"x", "v", "f", 0.02)
        del worker.decide
        assert await link.decide(b"x", "v", "f", 1.0) == b"vx"

    asyncio.run(work())


@pytest.mark.parametrize("turns", range(4))
def test_who_comes_just_as_a_call_ends_is_passed_on(turns: int) -> None:
    """Whichever turn of the loop that is."""

    async def two(later: int) -> None:
        link = RequestBatcher(Echo(turns), 8)

        async def second() -> bytes:
            for _ in range(later):
                await asyncio.sleep(0)
            return await link.decide(b"2", "v", "f", 0.25)

        assert await asyncio.gather(link.decide(b"1", "v", "f", 0.25), second()) == [b"v1", b"v2"]

    for later in range(12):
        asyncio.run(two(later))


def test_a_call_lasts_as_long_as_any_of_its_crowd_waits() -> None:
    """One who is in a hurry does not spoil it for those who are not."""

    async def work() -> None:
        worker = Echo()
        link = RequestBatcher(worker, 8)

        async def slowly(version: str, folder: str, raw: list[bytes]) -> list[bytes]:
            worker.crowds.append(len(raw))
            await asyncio.sleep(0.15)
            return raw

        worker.decide = slowly  # type: ignore[method-assign]
        hurried, patient = await asyncio.gather(
            link.decide(b"1", "v", "f", 0.01),
            link.decide(b"2", "v", "f", 5.0),
            return_exceptions=True,
        )
        assert isinstance(hurried, TimeoutError)
        assert patient == b"2"
        assert worker.crowds == [2]

    asyncio.run(work())


def test_without_batching_everybody_has_a_call() -> None:
    async def work() -> None:
        worker = Echo(turns=3)
        link = RequestBatcher(worker, 1)
        await asyncio.gather(*(link.decide(b"x", "v", "f", 1.0) for _ in range(5)))
        assert worker.crowds == [1] * 5

    asyncio.run(work())


def test_as_many_calls_at_once_as_there_are_workers() -> None:
    async def work() -> None:
        worker = Echo(turns=50)
        link = RequestBatcher(worker, 8, calls=2)
        asked = []
        for _ in range(5):
            asked.append(asyncio.ensure_future(link.decide(b"x", "v", "f", 1.0)))
            for _ in range(4):
                await asyncio.sleep(0)
        assert worker.crowds == [1, 1], "the others wait for one of them to end"
        await asyncio.gather(*asked)
        assert worker.crowds == [1, 1, 3]

    asyncio.run(work())


def test_a_fault_is_everybodys_in_the_crowd_and_nobody_elses() -> None:
    async def work() -> None:
        worker = Echo()
        link = RequestBatcher(worker, 8)

        async def gone(*_: Any) -> list[bytes]:
            raise ConnectionError("gone")

        worker.decide = gone  # type: ignore[method-assign]
        asked = [link.decide(b"x", "v", "f", 1.0) for _ in range(3)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(one) for one in found] == [ConnectionError] * 3
        del worker.decide
        assert await link.decide(b"x", "v", "f", 1.0) == b"vx"

    asyncio.run(work())


def test_who_has_given_up_is_not_passed_on() -> None:
    async def work() -> None:
        worker, go = Echo(), asyncio.Event()
        link = RequestBatcher(worker, 8)
        asked: list[list[bytes]] = []

        async def when_told(version: str, folder: str, raw: list[bytes]) -> list[bytes]:
            asked.append(raw)
            await go.wait()
            return raw

        worker.decide = when_told  # type: ignore[method-assign]
        first = asyncio.ensure_future(link.decide(b"1", "v", "f", 5.0))
        await asyncio.sleep(0.01)
        with pytest.raises(TimeoutError):
            await link.decide(b"2", "v", "f", 0.01)
        third = asyncio.ensure_future(link.decide(b"3", "v", "f", 5.0))
        await asyncio.sleep(0.01)
        go.set()
        assert await asyncio.gather(first, third) == [b"1", b"3"]
        assert asked == [[b"1"], [b"3"]]

    asyncio.run(work())
