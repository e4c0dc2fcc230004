"""The way to a worker, and the breaker on it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from loadmaster.serving.breaker import Breaker
from loadmaster.serving.link import Link

Calls = list[tuple[str, list[bytes]]]


class Worker:
    """Echoes; notes its calls, and waits in each until it is let go."""

    def __init__(self) -> None:
        self.calls: Calls = []
        self.go = asyncio.Event()
        self.fault: Exception | None = None

    async def decide(self, version: str, folder: str, raw: list[bytes]) -> list[bytes]:
        self.calls.append((version, raw))
        await self.go.wait()
        if self.fault is not None:
            raise self.fault
        return [b"%s by %s" % (one, version.encode()) for one in raw]

    async def propose(self, version: str, folder: str, raw: list[bytes]) -> list[bytes]:
        raise NotImplementedError

    async def load(self, folder: str) -> bytes:
        raise NotImplementedError


def run(work: Callable[[Worker], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        return await work(Worker())

    return asyncio.run(main())


async def asked(link: Link, *requests: str, within_s: float = 5.0) -> list[asyncio.Task[bytes]]:
    """Requests such as "a1": the version, and a number; on their way."""
    tasks = [
        asyncio.ensure_future(link.decide(one.encode(), one[0], "folder", within_s))
        for one in requests
    ]
    for _ in range(5):
        await asyncio.sleep(0)
    return tasks


def test_the_first_goes_alone_and_a_crowd_shares_the_next_call() -> None:
    async def work(worker: Worker) -> None:
        link = Link(worker, most=3)
        tasks = await asked(link, "a1")
        assert worker.calls == [("a", [b"a1"])]
        tasks += await asked(link, "a2", "a3", "a4", "a5")
        assert len(worker.calls) == 1
        worker.go.set()
        assert await asyncio.gather(*tasks) == [b"a%d by a" % n for n in range(1, 6)]
        assert [raw for _, raw in worker.calls[1:]] == [[b"a2", b"a3", b"a4"], [b"a5"]]

    run(work)


def test_a_call_is_for_one_version() -> None:
    async def work(worker: Worker) -> None:
        tasks = await asked(Link(worker, most=10), "a1", "a2", "b3", "b4", "a5")
        worker.go.set()
        answers = await asyncio.gather(*tasks)
        assert answers == [b"a1 by a", b"a2 by a", b"b3 by b", b"b4 by b", b"a5 by a"]
        assert [version for version, _ in worker.calls] == ["a", "b", "a"]

    run(work)


def test_without_batching_everybody_has_a_call() -> None:
    async def work(worker: Worker) -> None:
        tasks = await asked(Link(worker, most=1), "a1", "a2", "a3")
        assert [raw for _, raw in worker.calls] == [[b"a1"], [b"a2"], [b"a3"]]
        worker.go.set()
        await asyncio.gather(*tasks)

    run(work)


def test_as_many_calls_at_once_as_there_are_workers() -> None:
    async def work(worker: Worker) -> None:
        tasks = await asked(Link(worker, most=10, calls=2), "a1")
        assert len(worker.calls) == 1
        worker.go.set()
        await asyncio.gather(*tasks)
        worker.go.clear()
        link = Link(worker, most=10, calls=2)
        tasks = await asked(link, "a1")
        tasks += await asked(link, "a2")
        tasks += await asked(link, "a3", "a4")
        assert [raw for _, raw in worker.calls[1:]] == [[b"a1"], [b"a2"]]
        worker.go.set()
        await asyncio.gather(*tasks)
        assert worker.calls[3][1] == [b"a3", b"a4"]

    run(work)


def test_a_fault_is_everybodys_in_the_crowd_and_nobody_elses() -> None:
    async def work(worker: Worker) -> None:
        link = Link(worker, most=10)
        tasks = await asked(link, "a1", "a2")
        worker.fault = ConnectionError("gone")
        worker.go.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(one) for one in found] == [ConnectionError] * 2
        worker.fault = None
        assert await link.decide(b"a3", "a", "folder", 5.0) == b"a3 by a"

    run(work)


def test_who_hangs_holds_up_others_for_one_deadline_at_most() -> None:
    async def work(worker: Worker) -> None:
        link = Link(worker, most=10)
        tasks = await asked(link, "a1", within_s=0.05)
        with pytest.raises(TimeoutError):
            await tasks[0]
        worker.go.set()
        assert await link.decide(b"a2", "a", "folder", 5.0) == b"a2 by a"
        assert [raw for _, raw in worker.calls] == [[b"a1"], [b"a2"]]

    run(work)


def test_who_has_given_up_is_not_passed_on() -> None:
    async def work(worker: Worker) -> None:
        link = Link(worker, most=10)
        tasks = await asked(link, "a1")
        late = await asked(link, "a2", within_s=0.01)
        with pytest.raises(TimeoutError):
            await late[0]
        tasks += await asked(link, "a3")
        worker.go.set()
        await asyncio.gather(*tasks)
        assert [raw for _, raw in worker.calls] == [[b"a1"], [b"a3"]]

    run(work)


def test_a_breaker_opens_after_failures_in_a_row() -> None:
    breaker = Breaker(failures=3, retry_s=1.0)
    for _ in range(2):
        breaker.failed(0.0)
    breaker.succeeded()
    for _ in range(2):
        breaker.failed(0.0)
    assert not breaker.is_open
    assert breaker.lets_through(0.0)
    breaker.failed(0.0)
    assert breaker.is_open


def test_an_open_breaker_tries_again_now_and_then() -> None:
    breaker = Breaker(failures=1, retry_s=1.0)
    breaker.failed(10.0)
    assert [breaker.lets_through(t) for t in (10.0, 10.9, 11.0, 11.1, 11.9, 12.0)] == [
        False, False, True, False, False, True,
    ]  # fmt: skip
    breaker.failed(12.0)
    assert not breaker.lets_through(12.5)
    assert breaker.lets_through(13.0)
    breaker.succeeded()
    assert not breaker.is_open
    assert breaker.lets_through(13.0)
