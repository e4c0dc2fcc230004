"""Requests on their way to the worker: who shares a call, and that nobody is forgotten."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from loadmaster.serving.link import Link


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

    async def ask_again_and_again(link: Link, name: bytes) -> None:
        for _ in range(50):
            assert await link.decide(name, "v", "f", 1.0) == b"v" + name

    async def work() -> None:
        link = Link(Echo(turns), most)
        for many in (1, 2, 7):
            names = [str(n).encode() for n in range(many)]
            await asyncio.gather(*(ask_again_and_again(link, name) for name in names))

    asyncio.run(work())


def test_a_crowd_shares_a_call_and_versions_do_not() -> None:
    async def work() -> None:
        worker = Echo(turns=3)
        link = Link(worker, 4)
        asked = [link.decide(b"x", version, "f", 1.0) for version in "aaaaaabbb"]
        answers = await asyncio.gather(*asked)
        assert answers == [b"ax"] * 6 + [b"bx"] * 3
        assert worker.crowds == [4, 2, 3]

    asyncio.run(work())


def test_who_hangs_blocks_nobody_for_longer_than_a_deadline() -> None:
    async def work() -> None:
        worker = Echo()
        link = Link(worker, 64)

        async def hang(*_: Any) -> list[bytes]:
            await asyncio.sleep(10)
            return []

        worker.decide = hang  # type: ignore[method-assign]
        with pytest.raises(TimeoutError):
            await link.decide(b"x", "v", "f", 0.02)
        del worker.decide
        assert await link.decide(b"x", "v", "f", 1.0) == b"vx"

    asyncio.run(work())
