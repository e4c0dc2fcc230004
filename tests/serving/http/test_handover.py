"""Connections that move to the gateway which owns their tenant: two listeners in one event loop."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import uvloop

from loadmaster.serving.http import server
from loadmaster.serving.http.handover import FIRST_REQUESTS, Handover, requests_before_move
from loadmaster.serving.http.server import CONNECTION, listen
from tests.serving.live import free_port

REQUEST = b"POST /%d HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nbody"
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


class Owned:
    """An application that answers with its name, and notes that `owner` owns the tenant."""

    def __init__(self, name: str, owner: str) -> None:
        self.name, self.owner = name, owner

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        scope[CONNECTION].note_owner("" if self.owner == self.name else self.owner)
        body = f"{self.name} {scope['path'][1:]} {scope['client'][1]}".encode()
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class Two(NamedTuple):
    """Gateways a and b; clients connect to a."""

    port: int
    a: Owned
    b: Owned


@asynccontextmanager
async def gateways(folder: Path, owner: str = "b") -> AsyncIterator[Two]:
    two = Two(free_port(), Owned("a", owner), Owned("b", owner))
    async with (
        listen(two.a, "127.0.0.1", two.port, Handover(folder, "a")),
        listen(two.b, "127.0.0.1", free_port(), Handover(folder, "b")),
    ):
        await asyncio.sleep(0.05)
        yield two


async def answer(reader: asyncio.StreamReader) -> tuple[str, int, int]:
    """Gateway, number of the request, and the client's port."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5.0)
    assert head.startswith(b"HTTP/1.1 200")
    length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length"))
    body = await asyncio.wait_for(reader.readexactly(int(length.split()[1])), 5.0)
    name, number, port = body.decode().split()
    return name, int(number), int(port)


async def ask(streams: Any, numbers: range) -> list[str]:
    """Gateways that answered, one request after another on one connection."""
    reader, writer = streams
    found = []
    for number in numbers:
        writer.write(REQUEST % number)
        name, answered, port = await answer(reader)
        assert (answered, port) == (number, writer.get_extra_info("sockname")[1])
        found.append(name)
    return found


def run(work: Coroutine[Any, Any, None], loop: Callable[[], Any] = uvloop.new_event_loop) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(work)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_connection_moves_to_the_owner_and_stays_there(loop: Any, tmp_path: Path) -> None:
    async def work() -> None:
        async with gateways(tmp_path) as two:
            streams = await asyncio.open_connection("127.0.0.1", two.port)
            found = await ask(streams, range(40))
            moved = found.index("b")
            assert FIRST_REQUESTS <= moved <= FIRST_REQUESTS + 2, "the next request may be earlier"
            assert found == ["a"] * moved + ["b"] * (40 - moved)
            streams[1].close()

    run(work(), loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_no_request_is_lost_however_a_client_sends_them(loop: Any, tmp_path: Path) -> None:
    """Many connections; requests in parts, and several at once, also while a connection moves."""

    async def client(port: int, parts: int) -> set[str]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        data = b"".join(REQUEST % number for number in range(60))
        step, names = -(-len(data) // parts), set()

        async def send() -> None:
            for first in range(0, len(data), step):
                writer.write(data[first : first + step])
                await asyncio.sleep(0.001)

        sending = asyncio.create_task(send())
        for number in range(60):
            name, answered, _ = await answer(reader)
            assert answered == number
            names.add(name)
        await sending
        writer.close()
        return names

    async def work() -> None:
        async with gateways(tmp_path) as two:
            sizes = (1, 7, 61, 120, 200)
            found = await asyncio.gather(*(client(two.port, parts) for parts in sizes * 4))
            assert {"b"} < set().union(*found)

    run(work(), loop)


def test_it_stays_where_the_owner_cannot_be_reached(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateways(tmp_path, owner="gone") as two:
            streams = await asyncio.open_connection("127.0.0.1", two.port)
            assert set(await ask(streams, range(40))) == {"a"}
            streams[1].close()

    run(work())


def test_each_move_needs_twice_the_requests(tmp_path: Path) -> None:
    assert [requests_before_move(moves) for moves in (0, 1, 2)] == [8, 16, 32]
    assert requests_before_move(255) == requests_before_move(10)

    async def work() -> None:
        async with gateways(tmp_path) as two:
            streams = await asyncio.open_connection("127.0.0.1", two.port)
            await ask(streams, range(12))
            two.a.owner = two.b.owner = "a"
            found = await ask(streams, range(30))
            assert 16 <= found.index("a") <= 18
            streams[1].close()

    run(work())


def test_an_idle_connection_that_moved_is_kept_as_long_as_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEADER_TIMEOUT_S", 0.2)

    async def work() -> None:
        async with gateways(tmp_path) as two:
            streams = await asyncio.open_connection("127.0.0.1", two.port)
            await ask(streams, range(12))
            await asyncio.sleep(0.5)
            assert await ask(streams, range(2)) == ["b", "b"]
            streams[1].close()

    run(work())


def test_a_gateway_that_ends_closes_connections_that_were_on_their_way(tmp_path: Path) -> None:
    async def work() -> None:
        one, other = Handover(tmp_path, "one"), Handover(tmp_path, "other")
        kept: list[socket.socket] = []
        for each in (one, other):
            each.start(lambda connection, _: kept.append(connection))
        near, far = socket.socketpair()
        assert one.send(near.fileno(), "other", 1)
        near.close()
        other.close()
        far.settimeout(1.0)
        assert (far.recv(1), kept) == (b"", [])
        assert not one.send(far.fileno(), "other", 1)
        one.close()
        assert list(tmp_path.iterdir()) == []
        far.close()

    run(work())


def test_without_a_socket_nothing_is_passed(tmp_path: Path) -> None:
    async def work() -> None:
        handover = Handover(tmp_path / ("x" * 100), "one")
        handover.start(lambda *_: None)
        with socket.socket() as connection:
            assert not handover.send(connection.fileno(), "one", 1)
        handover.close()

    run(work())
