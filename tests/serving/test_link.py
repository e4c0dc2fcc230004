"""The way to the worker: who shares a call, how long it is waited for, and that nobody is lost."""

from __future__ import annotations

import asyncio
import time

import pytest

from loadmaster.serving.link import Link


class Echo:
    """Answers with what it was asked, after so many turns of the loop or so many seconds."""

    def __init__(self, turns: int = 0, hangs_s: float = 0.0) -> None:
        self._turns, self._hangs_s = turns, hangs_s
        self.calls: list[tuple[str, list[bytes]]] = []

    async def decide(self, version: str, folder: str, raw: list[bytes]) -> list[bytes]:
        self.calls.append((version, raw))
        for _ in range(self._turns):
            await asyncio.sleep(0)
        if raw[0].startswith(b"slow"):
            await asyncio.sleep(self._hangs_s)
        return raw

    async def propose(self, version: str, folder: str, raw: list[bytes]) -> list[bytes]:
        raise NotImplementedError

    async def load(self, folder: str) -> bytes:
        raise NotImplementedError


@pytest.mark.parametrize("turns", range(4))
def test_nobody_is_forgotten_who_comes_as_a_call_ends(turns: int) -> None:
    """Whichever turn of the loop a request comes in, somebody passes it on."""

    async def two(later: int) -> None:
        link = Link(Echo(turns), most=8)

        async def second() -> bytes:
            for _ in range(later):
                await asyncio.sleep(0)
            return await link.decide(b"2", "v", "f", 0.25)

        answers = await asyncio.gather(link.decide(b"1", "v", "f", 0.25), second())
        assert answers == [b"1", b"2"]

    for later in range(12):
        asyncio.run(two(later))


def test_a_call_lasts_as_long_as_any_of_its_crowd_waits() -> None:
    """One who is in a hurry does not spoil it for those who are not."""

    async def crowd() -> list[bytes | BaseException]:
        worker = Echo(hangs_s=0.15)
        link = Link(worker, most=8)
        hurried = asyncio.ensure_future(link.decide(b"slow 1", "v", "f", 0.01))
        patient = asyncio.ensure_future(link.decide(b"slow 2", "v", "f", 5.0))
        answers = await asyncio.gather(hurried, patient, return_exceptions=True)
        assert len(worker.calls) == 1
        return answers

    hurried, patient = asyncio.run(crowd())
    assert isinstance(hurried, TimeoutError)
    assert patient == b"slow 2"


def test_who_hangs_is_left_when_nobody_waits_any_more() -> None:
    async def ask() -> float:
        worker = Echo(hangs_s=60.0)
        link = Link(worker, most=8)
        with pytest.raises(TimeoutError):
            await link.decide(b"slow", "v", "f", 0.05)
        began = time.monotonic()
        assert await link.decide(b"quick", "v", "f", 5.0) == b"quick"
        return time.monotonic() - began

    assert asyncio.run(ask()) < 2.0


def test_versions_do_not_share_a_call() -> None:
    async def ask() -> list[tuple[str, list[bytes]]]:
        worker = Echo()
        link = Link(worker, most=8)
        await asyncio.gather(
            *(link.decide(b"%d" % n, "old" if n < 3 else "new", "f", 5.0) for n in range(5))
        )
        return worker.calls

    assert asyncio.run(ask()) == [("old", [b"0", b"1", b"2"]), ("new", [b"3", b"4"])]
