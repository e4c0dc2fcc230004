"""Memory for request bodies: bounded in total, released, refused with 503 beyond."""

import asyncio
import contextlib
from typing import Any

import pytest

from loadmaster.serving.http.body import BodyMemory, HttpError
from tests.serving.asgi import Answer, send_request
from tests.serving.conftest import LocalService, Start
from tests.serving.live import GATEWAY, Live

PATH = "/v1/toy/decide"
STATE = b'{"state": {"load": 42, "replicas": 3}}'
LARGEST = 1000
LIMITS = {"largest_bytes": LARGEST, "total_bytes": 5 * LARGEST, "body_s": 0.3}
MB = 1 << 20


def test_bytes_are_counted_and_released() -> None:
    memory = BodyMemory(10)
    memory.take(6)
    memory.take(4)
    with pytest.raises(HttpError) as fault:
        memory.take(1)
    assert (fault.value.status, fault.value.headers) == (503, {"Retry-After": "1"})
    memory.release(6)
    memory.take(6)
    assert memory.used == 10


async def stalled(here: LocalService, size: int, count: int, **more: Any) -> list[Answer]:
    """Send so many bodies at once that never end."""
    app, body = here.service.app, STATE.ljust(size)
    requests = (send_request(app, "POST", PATH, body, stalls=True, **more) for _ in range(count))
    return list(await asyncio.gather(*requests))


def statuses(answers: list[Answer]) -> list[int]:
    return sorted(answer.status for answer in answers)


@pytest.mark.parametrize("declared", [{}, {"headers": {"Content-Length": str(LARGEST)}}])
def test_bodies_beyond_the_total_are_refused_at_once(start: Start, declared: Any) -> None:
    here = start(limits=LIMITS)
    for _ in range(3):  # the memory of refused and of late bodies is released
        answers = here.run(stalled(here, LARGEST, 8, **declared))
        assert statuses(answers) == [408] * 5 + [503] * 3
        refused = [one for one in answers if one.status == 503]
        assert {one.headers["retry-after"] for one in refused} == {"1"}
    assert here.decide()["source"] == "policy"


def test_bodies_that_grow_together_are_refused_until_the_rest_fits(start: Start) -> None:
    here = start(limits=LIMITS)
    answers = here.run(stalled(here, LARGEST, 50, parts=10))
    found = statuses(answers)
    assert set(found) == {408, 503}
    assert found.count(408) <= 5
    assert here.decide()["source"] == "policy"


def test_declared_bytes_that_never_arrive_take_no_memory(start: Start) -> None:
    here = start(limits=LIMITS)

    async def work() -> Answer:
        silent = asyncio.ensure_future(
            stalled(here, 1, 100, headers={"Content-Length": str(LARGEST)})
        )
        await asyncio.sleep(0.05)
        answer = await send_request(here.service.app, "POST", PATH, STATE.ljust(LARGEST))
        assert statuses(await silent) == [408] * 100
        return answer

    assert here.run(work()).status == 200


@pytest.mark.slow
def test_bytes_are_held_until_the_decision_and_released_by_every_outcome(start: Start) -> None:
    here = start("is slow", limits=LIMITS)
    bodies = [STATE.ljust(LARGEST), b"no json".ljust(LARGEST), b'{"state": {}}'.ljust(LARGEST)]

    async def work(body: bytes, count: int) -> list[int]:
        app = here.service.app
        return statuses(
            await asyncio.gather(*(send_request(app, "POST", PATH, body) for _ in range(count)))
        )

    assert here.run(work(bodies[0], 7)) == [200] * 5 + [503] * 2  # while decisions are made
    for body in bodies * 4:
        assert here.run(work(body, 1)) in ([200], [422])
    for path in ("feedback", "pause", "resume"):
        for _ in range(12):
            here.request("POST", f"/v1/toy/{path}", b" " * LARGEST)
    assert here.run(work(bodies[0], 5)) == [200] * 5


def test_requests_beyond_the_limit_are_refused_before_their_bodies(start: Start) -> None:
    here = start("is slow", limits={"waiting": 1})

    async def work() -> tuple[Answer, Answer]:
        first = asyncio.ensure_future(send_request(here.service.app, "POST", PATH, STATE))
        await asyncio.sleep(0.03)
        # It would end in 408 if its body were waited for.
        second = await send_request(here.service.app, "POST", PATH, STATE, stalls=True)
        return await first, second

    first, second = here.run(work())
    assert (first.status, second.status) == (200, 503)


@pytest.mark.slow
def test_memory_stays_bounded_under_500_unfinished_bodies(live: Live) -> None:
    """Each is sent 64 KiB at a time, all but its last byte, until it is answered."""
    gateway = live.process(GATEWAY)
    size, part, connections, total = int(7.9 * MB), b" " * (64 << 10), 500, 128 * MB
    head = f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {size}\r\n\r\n".encode()
    before = gateway.memory_info().rss
    peak, answers = before, list[bytes]()

    async def send_unfinished() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
        answer = asyncio.ensure_future(reader.readline())
        with contextlib.suppress(ConnectionError):
            writer.write(head)
            sent = 0
            while not answer.done() and sent + len(part) < size:
                writer.write(part)
                sent += len(part)
                await writer.drain()
                await asyncio.sleep(0)
        await asyncio.wait({answer}, timeout=1.0)  # body_s, which is longer, has not passed
        answers.append(answer.result() if answer.done() else b"")
        answer.cancel()
        writer.close()

    async def measure() -> None:
        nonlocal peak
        while True:
            peak = max(peak, gateway.memory_info().rss)
            await asyncio.sleep(0.05)

    async def work() -> None:
        measuring = asyncio.ensure_future(measure())
        await asyncio.gather(*(send_unfinished() for _ in range(connections)))
        measuring.cancel()

    asyncio.run(work())
    refused = [answer.split()[1] for answer in answers if answer]
    assert set(refused) == {b"503"}
    assert (connections - len(refused)) * size <= total
    # Beside the bodies: what is read ahead of each connection, and fragmentation.
    assert peak - before < total + connections * MB // 2, (before / MB, peak / MB)
    assert live.by_policy().source == "policy"
    assert gateway.is_running()
