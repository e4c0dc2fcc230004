"""Who asks again under the same id is told the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from loadmaster.serving.http import idempotency as repeats
from loadmaster.serving.http.idempotency import KEPT_S, IdempotencyCache
from tests.serving.asgi import ask
from tests.serving.conftest import Start


class Work:
    """Answers with how often it was asked, when it is let go."""

    def __init__(self) -> None:
        self.times, self.now_s = 0, 0.0
        self.go: asyncio.Event | None = None

    async def __call__(self) -> bytes:
        self.times += 1
        mine = self.times
        if self.go is not None:
            await self.go.wait()
        return b"%d" % mine


def run(script: Callable[[IdempotencyCache, Work], Coroutine[Any, Any, None]]) -> None:
    work = Work()
    asyncio.run(script(IdempotencyCache(lambda: work.now_s), work))


def test_the_same_is_told_for_a_minute() -> None:
    async def script(repeats: IdempotencyCache, work: Work) -> None:
        assert await repeats.once("a", b"x", work) == b"1"
        work.now_s = KEPT_S
        assert await repeats.once("a", b"x", work) == b"1"
        assert await repeats.once("b", b"x", work) == b"2"
        work.now_s = KEPT_S + 1
        assert await repeats.once("a", b"x", work) == b"3"

    run(script)


def test_another_body_is_another_request() -> None:
    async def script(repeats: IdempotencyCache, work: Work) -> None:
        assert await repeats.once("a", b"x", work) == b"1"
        assert await repeats.once("a", b"y", work) == b"2"
        assert await repeats.once("a", b"y", work) == b"2"
        assert await repeats.once("a", b"x", work) == b"3", "the id stands for the latest"

    run(script)


def test_what_is_under_way_is_waited_for() -> None:
    async def script(repeats: IdempotencyCache, work: Work) -> None:
        work.go = asyncio.Event()
        asked = [asyncio.ensure_future(repeats.once("a", b"x", work)) for _ in range(5)]
        await asyncio.sleep(0.01)
        asked.pop().cancel()
        work.go.set()
        assert await asyncio.gather(*asked) == [b"1"] * 4
        assert work.times == 1

    run(script)


def test_where_the_first_gives_up_the_next_one_asks() -> None:
    async def script(repeats: IdempotencyCache, work: Work) -> None:
        work.go = asyncio.Event()
        first, *others = (asyncio.ensure_future(repeats.once("a", b"x", work)) for _ in range(4))
        await asyncio.sleep(0.01)
        first.cancel()
        await asyncio.sleep(0.01)
        work.go.set()
        assert await asyncio.gather(*others) == [b"2"] * 3
        assert await repeats.once("a", b"x", work) == b"2"

    run(script)


def test_an_id_that_is_used_anew_meanwhile() -> None:
    async def script(repeats: IdempotencyCache, work: Work) -> None:
        work.go = asyncio.Event()
        old = asyncio.ensure_future(repeats.once("a", b"x", work))
        await asyncio.sleep(0.01)
        new = asyncio.ensure_future(repeats.once("a", b"y", work))
        await asyncio.sleep(0.01)
        work.go.set()
        assert await asyncio.gather(old, new) == [b"1", b"2"]
        assert await repeats.once("a", b"y", work) == b"2"
        assert repeats._bytes == 1

    run(script)


def test_faults_are_not_kept() -> None:
    async def script(repeats: IdempotencyCache, work: Work) -> None:
        async def fail() -> bytes:
            raise KeyError("no")

        with pytest.raises(KeyError):
            await repeats.once("a", b"x", fail)
        assert await repeats.once("a", b"x", work) == b"1"

    run(script)


def test_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "MOST", 3)

    async def script(repeats: IdempotencyCache, work: Work) -> None:
        for name in "abcd":
            await repeats.once(name, b"x", work)
        assert await repeats.once("d", b"x", work) == b"4"
        assert await repeats.once("a", b"x", work) == b"5", "the oldest is forgotten first"

    run(script)


def test_few_bytes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "MOST_BYTES", 2500)

    async def script(repeats: IdempotencyCache, work: Work) -> None:
        async def long() -> bytes:
            return b"x" * 1000

        for name in "abcdefgh":
            await repeats.once(name, b"x", long)
            assert repeats._bytes <= 3500
            assert repeats._bytes == 1000 * len(repeats._held)
        work.now_s = 2 * KEPT_S
        await repeats.once("z", b"x", work)
        assert repeats._bytes == 1

    run(script)


def test_a_request_that_is_sent_again(start: Start) -> None:
    here = start()
    first = here.decide(load=42, request_id="r-1")
    assert here.decide(load=42, request_id="r-1") == first, "its latency too"
    assert here.status()["decisions"]["total"] == 1, "it is logged and counted once"
    other = here.decide(load=99, request_id="r-1")
    assert other["decision"] != first["decision"]
    assert here.status()["decisions"]["total"] == 2
    assert here.ask("POST", "/v1/toy/decide", {"state": {}, "request_id": "r-2"}).status == 422
    assert here.decide(load=1, request_id="r-2")["id"] == "r-2"


def test_a_request_that_is_sent_twice_at_once(start: Start) -> None:
    here = start("is slow")
    body = {"state": {"load": 42, "replicas": 3}, "request_id": "r-1"}

    async def both() -> list[Any]:
        app = here.service.app
        return list(
            await asyncio.gather(*(ask(app, "POST", "/v1/toy/decide", body) for _ in range(2)))
        )

    one, other = here.run(both())
    assert one == other
    assert here.status()["decisions"]["total"] == 1
