"""RPC between gateway and worker: frames, faults, lost connections, and the circuit breaker."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.serving.worker import rpc

Handler = Callable[[rpc.PolicyCall], bytes]


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Either of the event loops that a replica may have."""
    return "asyncio", {"use_uvloop": request.param}


def echo(call: rpc.PolicyCall) -> bytes:
    return f"{call.version} in {call.folder}: ".encode() + call.request


def call_of(request: bytes = b"") -> rpc.PolicyCall:
    return rpc.PolicyCall("v", "f", request)


@asynccontextmanager
async def connected(decide: Handler, propose: Handler = echo) -> AsyncIterator[rpc.RpcClient]:
    server = rpc.RpcServer({rpc.DECIDE: decide, rpc.PROPOSE: propose})
    client = await rpc.RpcClient.connect(server.open([])[1])
    yield client
    client.close()


@given(st.text(max_size=20), st.text(max_size=20), st.binary(max_size=50), st.floats(0, 1e9))
@settings(max_examples=50)
def test_calls_survive_a_round_trip(name: str, folder: str, request: bytes, due: float) -> None:
    for call in (rpc.PolicyCall(name, folder, request, due), rpc.PolicyCall(name, folder, request)):
        assert rpc.PolicyCall.decode(call.encode()) == call


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=5), st.integers(1, 9))
@settings(max_examples=50, deadline=None)
def test_replies_are_read_however_they_are_cut(bodies: list[bytes], size: int) -> None:
    class Transport:
        def write(self, _: bytes) -> None: ...

    async def work() -> None:
        client = rpc.RpcClient()
        client.connection_made(Transport())  # type: ignore[arg-type]
        calls = [asyncio.ensure_future(client.call(rpc.DECIDE, call_of())) for _ in bodies]
        await asyncio.sleep(0)
        stream = b"".join(rpc.frame(rpc.DONE, number, body) for number, body in enumerate(bodies))
        stream += rpc.frame(rpc.DONE, 999, b"of a call that was given up") + rpc.frame(
            rpc.FAULT, 998, b""
        )
        for start in range(0, len(stream), size):
            client.data_received(stream[start : start + size])
        assert await asyncio.gather(*calls) == bodies

    asyncio.run(work())


@pytest.mark.anyio
async def test_calls_wait_and_share_a_write_while_two_are_unanswered() -> None:
    writes: list[list[int]] = []

    class Transport:
        def write(self, data: bytes) -> None:
            writes.append([number for _, number, _ in rpc.take_frames(bytearray(data))])

    def call(number: int) -> list[asyncio.Future[bytes]]:
        return [asyncio.ensure_future(client.call(rpc.DECIDE, call_of())) for _ in range(number)]

    async def reply(*numbers: int) -> None:
        client.data_received(b"".join(rpc.frame(rpc.DONE, number, b"") for number in numbers))
        await asyncio.sleep(0.01)

    client = rpc.RpcClient()
    client.connection_made(Transport())  # type: ignore[arg-type]
    calls = call(2)
    await asyncio.sleep(0.01)
    calls += call(1)
    await asyncio.sleep(0.01)
    assert writes == [[0, 1], [2]]
    calls += call(3)
    await asyncio.sleep(0.01)
    calls[4].cancel()
    await reply(0)
    assert writes[2:] == []
    await reply(1)
    assert writes[2:] == [[3, 5]]
    await reply(2, 3, 5)
    done = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(one, bytes) for one in done] == [True] * 4 + [False, True]


@pytest.mark.anyio
async def test_concurrent_calls_get_their_own_replies() -> None:
    async with connected(echo) as client:
        large = b"x" * 1_000_000
        calls = [client.call(rpc.DECIDE, call_of(b"%d" % n + large)) for n in range(10)]
        for number, reply in enumerate(await asyncio.gather(*calls)):
            assert reply == b"v in f: %d" % number + large
        assert client.waiting == 0


@pytest.mark.anyio
async def test_connection_stays_usable_after_a_fault_and_a_timeout() -> None:
    continues = threading.Event()

    def wait(call: rpc.PolicyCall) -> bytes:
        continues.wait(10)
        return call.request

    def fail(_: rpc.PolicyCall) -> bytes:
        raise ValueError("not today")

    async with connected(wait, fail) as client:
        with pytest.raises(RuntimeError, match="ValueError: not today"):
            await client.call(rpc.PROPOSE, call_of())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.call(rpc.DECIDE, call_of(b"first"))
        continues.set()
        assert await client.call(rpc.DECIDE, call_of(b"second")) == b"second"


@pytest.mark.anyio
async def test_the_death_of_a_worker_is_noticed_at_once(tmp_path: Path) -> None:
    async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(10)
        writer.close()

    async with await asyncio.start_unix_server(die, tmp_path / "s"):
        client = await rpc.RpcClient.connect(str(tmp_path / "s"))
        for _ in range(2):
            with pytest.raises(rpc.LostError):
                await client.call(rpc.DECIDE, call_of(b"x" * 20))
    assert not client.is_up


@pytest.mark.anyio
async def test_a_connected_server_leaves_no_file() -> None:
    server = rpc.RpcServer({rpc.DECIDE: echo})
    name, path = server.open([])
    assert Path(path).parent.stat().st_mode & 0o777 == 0o700
    client = await rpc.RpcClient.connect(path)
    await client.call(rpc.DECIDE, call_of())
    assert not Path(path).parent.exists()
    assert server.open([name]) == (name, "")  # connected already
    client.close()


def test_a_server_stops_waiting_for_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "ACCEPT_S", 0.05)
    _, path = rpc.RpcServer({}).open([])
    for thread in threading.enumerate():
        if thread.name == "rpc":
            thread.join(5)
    assert not Path(path).exists()


@pytest.mark.anyio
async def test_the_pool_connects_to_every_worker_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "RECONNECT_S", 0.01)
    servers = [rpc.RpcServer({rpc.DECIDE: lambda _, n=n: b"%d" % n}) for n in range(2)]
    calls = [0]

    async def open_server(known: list[str]) -> Sequence[str]:
        calls[0] += 1
        if calls[0] == 1:
            raise RuntimeError("the worker is starting")
        return servers[calls[0] // 3 % 2].open(known)

    async def two_clients(pool: rpc.ConnectionPool) -> tuple[rpc.RpcClient, rpc.RpcClient]:
        """Wait until the pool has two: the one without a pending call is chosen."""
        async with asyncio.timeout(5):
            while True:
                await asyncio.sleep(0.005)
                if (first := pool.connection()) is not None:
                    pending = asyncio.ensure_future(first.call(rpc.DECIDE, call_of()))
                    await asyncio.sleep(0)
                    second = pool.connection()
                    await pending
                    if second is not None and second is not first:
                        return first, second

    pool = rpc.ConnectionPool(open_server, workers=2)
    assert pool.connection() is None
    clients = await two_clients(pool)
    assert {await one.call(rpc.DECIDE, call_of()) for one in clients} == {b"0", b"1"}
    clients[0].close()
    await asyncio.sleep(0.02)
    assert pool.connection() is clients[1]
    again = await two_clients(pool)
    assert clients[0] not in again
    for one in again:
        one.close()


def test_the_breaker_opens_after_failures_in_a_row() -> None:
    breaker = rpc.CircuitBreaker(failures=3, retry_s=1.0)
    for failures in (2, 2):
        breaker.succeeded()
        for _ in range(failures):
            breaker.failed(10.0)
    assert (breaker.is_open, breaker.allows(10.0)) == (False, True)
    breaker.failed(10.0)
    assert breaker.is_open
    allowed = [breaker.allows(t) for t in (10.0, 10.9, 11.0, 11.1, 11.9, 12.0)]
    assert allowed == [False, False, True, False, False, True]
    breaker.failed(12.0)
    assert [breaker.allows(t) for t in (12.5, 13.0)] == [False, True]
    breaker.succeeded()
    assert (breaker.is_open, breaker.allows(13.0)) == (False, True)
