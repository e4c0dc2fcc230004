"""A request repeated under the same id gets the same response."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from unittest import mock

import pytest

from loadmaster.serving.http import idempotency
from loadmaster.serving.http.idempotency import KEEP_S, IdempotencyCache
from tests.serving.conftest import Start


class Work:
    """Returns the number of its calls, once `go` is set."""

    def __init__(self) -> None:
        self.times, self.now_s, self.go = 0, 0.0, asyncio.Event()
        self.go.set()

    async def __call__(self) -> bytes:
        self.times += 1
        mine = b"%d" % self.times
        await self.go.wait()
        return mine


def scripted(
    script: Callable[[IdempotencyCache, Work], Coroutine[Any, Any, None]],
) -> Callable[[], None]:
    """Make a test of a coroutine that is given a new cache, and work on the cache's clock."""

    def test() -> None:
        work = Work()
        asyncio.run(script(IdempotencyCache(lambda: work.now_s), work))

    return test


@scripted
async def test_responses_are_kept_for_a_minute(cache: IdempotencyCache, work: Work) -> None:
    for now_s, request_id, body, response in [
        (0.0, "a", b"x", b"1"),
        (KEEP_S, "a", b"x", b"1"),
        (KEEP_S, "b", b"x", b"2"),
        (KEEP_S + 1, "a", b"x", b"3"),
        (KEEP_S + 1, "a", b"y", b"4"),
        (KEEP_S + 1, "a", b"x", b"5"),  # the id refers to the latest body
    ]:
        work.now_s = now_s
        assert await cache.get_or_run(request_id, body, work) == response


@scripted
async def test_the_next_runs_if_the_first_is_cancelled(cache: IdempotencyCache, work: Work) -> None:
    work.go.clear()
    calls = [asyncio.ensure_future(cache.get_or_run("a", b"x", work)) for _ in range(5)]
    await asyncio.sleep(0.01)
    calls.pop().cancel()
    calls.pop(0).cancel()
    await asyncio.sleep(0.01)
    work.go.set()
    assert await asyncio.gather(*calls) == [b"2"] * 3
    assert await cache.get_or_run("a", b"x", work) == b"2"


@scripted
async def test_an_id_is_reused_while_the_first_runs(cache: IdempotencyCache, work: Work) -> None:
    work.go.clear()
    old = asyncio.ensure_future(cache.get_or_run("a", b"x", work))
    await asyncio.sleep(0.01)
    new = asyncio.ensure_future(cache.get_or_run("a", b"y", work))
    await asyncio.sleep(0.01)
    work.go.set()
    assert await asyncio.gather(old, new) == [b"1", b"2"]
    assert await cache.get_or_run("a", b"y", work) == b"2"
    assert cache.stored_bytes == 1


@scripted
async def test_errors_are_not_kept(cache: IdempotencyCache, work: Work) -> None:
    with pytest.raises(KeyError):
        await cache.get_or_run("a", b"x", mock.AsyncMock(side_effect=KeyError))
    assert await cache.get_or_run("a", b"x", work) == b"1"


@mock.patch.object(idempotency, "MAX_ENTRIES", 3)
@scripted
async def test_the_oldest_is_dropped_first(cache: IdempotencyCache, work: Work) -> None:
    for name in "abcd":
        await cache.get_or_run(name, b"x", work)
    assert await cache.get_or_run("d", b"x", work) == b"4"
    assert await cache.get_or_run("a", b"x", work) == b"5"


@mock.patch.object(idempotency, "MAX_BYTES", 2500)
@scripted
async def test_the_stored_bytes_are_bounded(cache: IdempotencyCache, work: Work) -> None:
    for number in range(8):
        await cache.get_or_run(str(number), b"x", mock.AsyncMock(return_value=b"x" * 1000))
        assert cache.stored_bytes == 1000 * min(number + 1, 3)
    work.now_s = 2 * KEEP_S
    await cache.get_or_run("z", b"x", work)
    assert cache.stored_bytes == 1


def test_a_repeated_request_is_decided_once(start: Start) -> None:
    here = start()
    first = here.decide(load=42, request_id="r-1")
    assert here.decide(load=42, request_id="r-1") == first  # its latency too
    assert here.status()["decisions"]["total"] == 1
    other = here.decide(load=99, request_id="r-1")
    assert other["decision"] != first["decision"]
    assert here.status()["decisions"]["total"] == 2
    assert here.request("POST", "/v1/toy/decide", {"state": {}, "request_id": "r-2"}).status == 422
    assert here.decide(load=1, request_id="r-2")["id"] == "r-2"
