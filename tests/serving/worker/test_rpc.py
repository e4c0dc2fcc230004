"""RPC between gateway and worker: frames, faults, lost connections, and the circuit breaker."""

import asyncio
import contextlib
import math
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.serving.decisions.episodes import Episode, LearnReply
from loadmaster.serving.decisions.policy_memory import read_memory
from loadmaster.serving.decisions.request import Decided, decode_reply
from loadmaster.serving.replicas.membership import machine
from loadmaster.serving.worker import pool as pool_module
from loadmaster.serving.worker import rpc
from loadmaster.serving.worker.pool import SPILL_S, CircuitBreaker, WorkerPool
from loadmaster.serving.worker.worker import SystemWorker
from tests.serving import toy

HOST, KEY = "127.0.0.1", b"k" * 32
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
    client = await rpc.RpcClient.connect(server.listen("w", HOST, KEY), KEY)
    yield client
    client.close()
    server.close()


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
        address = rpc.RpcAddress("w", machine(), str(tmp_path / "s"), HOST, 0)
        client = await rpc.RpcClient.connect(address, KEY)
        for _ in range(2):
            with pytest.raises(rpc.LostError):
                await client.call(rpc.DECIDE, call_of(b"x" * 20))
    assert not client.is_up


@pytest.mark.anyio
async def test_the_socket_is_private_and_removed(tmp_path: Path) -> None:
    server = rpc.RpcServer({rpc.DECIDE: echo})
    path = Path(server.listen("w", HOST, KEY, tmp_path).path)
    assert path.parent.stat().st_mode & 0o777 == 0o700
    server.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.anyio
async def test_processes_of_other_machines_need_the_key() -> None:
    server = rpc.RpcServer({rpc.DECIDE: echo})
    elsewhere = server.listen("w", HOST, KEY)._replace(machine="another")
    client = await rpc.RpcClient.connect(elsewhere, KEY)
    assert await client.call(rpc.DECIDE, call_of(b"x")) == b"v in f: x"
    assert client.is_remote
    client.close()
    with pytest.raises(ConnectionError):
        await rpc.RpcClient.connect(elsewhere, b"wrong")
    silent = socket.create_connection((elsewhere.host, elsewhere.port))
    silent.sendall(rpc.frame(rpc.DECIDE, 0, call_of().encode()) + b"x" * 100)
    silent.settimeout(10)
    received = b""
    with contextlib.suppress(ConnectionError):
        while data := silent.recv(1000):
            received += data
    assert len(received) == 64  # random bytes and a digest, no decision
    silent.close()
    server.close()


CALL_S = SPILL_S / 5


def numbered_workers(
    count: int, call_s: float = CALL_S
) -> tuple[list[rpc.RpcServer], list[rpc.RpcAddress]]:
    """Workers that answer with their numbers."""

    def numbered(number: int) -> rpc.RpcServer:
        def decide(_: rpc.PolicyCall) -> bytes:
            time.sleep(call_s)
            return b"%d" % number

        return rpc.RpcServer({rpc.DECIDE: decide})

    servers = [numbered(number) for number in range(count)]
    return servers, [one.listen(f"w{n}", HOST, KEY) for n, one in enumerate(servers)]


async def decide_at_once(pool: WorkerPool, count: int) -> list[bytes]:
    calls = []
    for _ in range(count):
        calls.append(asyncio.ensure_future(pool.decide("v", "f", b"", math.inf)))
        await asyncio.sleep(0)
    return await asyncio.gather(*calls)


@pytest.mark.anyio
async def test_gateways_of_a_machine_prefer_workers_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool_module, "SPILL_S", 3 * SPILL_S)  # else a pause of 10 ms spills calls
    servers, addresses = numbered_workers(4, 3 * CALL_S)
    other = addresses[3]._replace(machine="another")
    pool = WorkerPool()
    pool.set_workers([other, *addresses[:3]], KEY)
    async with asyncio.timeout(20):
        while not pool.is_up or len(set(await decide_at_once(pool, 80))) < 4:
            await asyncio.sleep(0.005)  # until it has connected to each
        pool.prefer(0, 1)  # all workers of the machine are its own
        assert set(await decide_at_once(pool, 3)) == {b"0", b"1", b"2"}
        for rank, size, own in ((0, 3, b"0"), (2, 3, b"2"), (3, 5, b"0"), (4, 5, b"1")):
            pool.prefer(rank, size)
            assert await decide_at_once(pool, 3) == [own] * 3
        pool.prefer(1, 2)
        found = await decide_at_once(pool, 80)
        assert found[:3] == [b"1"] * 3
        first = [found.index(b"%d" % number) for number in (1, 0, 2, 3)]
        assert first == sorted(first), "the worker of another machine comes last"
    for server in servers:
        server.close()


@pytest.mark.anyio
async def test_a_silent_worker_is_called_last_also_when_its_callers_gave_up() -> None:
    released = threading.Event()
    silent = rpc.RpcServer({rpc.DECIDE: lambda _: b"%d" % released.wait(10)})
    (other,), (address,) = numbered_workers(1)
    pool = WorkerPool()
    pool.set_workers([silent.listen("a", HOST, KEY), address], KEY)
    pool.prefer(0, 2)
    async with asyncio.timeout(5):
        gave_up = False
        while not gave_up:  # until the silent worker is connected, and called first
            await asyncio.sleep(0.005)
            if pool.is_up:
                calls = asyncio.ensure_future(decide_at_once(pool, 1))
                _, pending = await asyncio.wait({calls}, timeout=2 * SPILL_S)
                gave_up = calls in pending
                calls.cancel()
        assert await decide_at_once(pool, 3) == [b"0"] * 3
    released.set()
    for server in (silent, other):
        server.close()


@pytest.mark.anyio
async def test_the_pool_connects_to_every_listed_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "RECONNECT_S", 0.01)
    servers, addresses = numbered_workers(2)
    absent = addresses[0]._replace(name="absent", path="/nowhere/s")
    pool = WorkerPool()
    assert not pool.is_up
    with pytest.raises(ConnectionError):
        pool.decide("v", "f", b"", 0.0)

    async def deciders() -> set[bytes]:
        """What answers more calls at once than one worker is given while another has none."""
        return set(await decide_at_once(pool, 40))

    async def until_both() -> None:
        async with asyncio.timeout(5):
            while not pool.is_up or await deciders() != {b"0", b"1"}:
                await asyncio.sleep(0.005)

    pool.set_workers([*addresses, absent], KEY)
    await until_both()
    pool.set_workers([], KEY, keep=True)  # as of a new control process
    assert await deciders() == {b"0", b"1"}
    pool.set_workers(addresses[1:], KEY)
    assert await deciders() == {b"1"}
    pool.set_workers(addresses, KEY)
    await until_both()
    for server in servers:
        server.close()


def test_the_breaker_opens_after_failures_in_a_row() -> None:
    breaker = CircuitBreaker(failures=3, retry_s=1.0)
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


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_worker_learns_from_an_episode(tmp_path: Path) -> None:
    folder = str(toy.make_bundle(tmp_path / "b", does="learns"))
    worker = SystemWorker("toy", toy.REFERENCE, "hold", folder, warm=False)
    version = toy.ENDPOINT.policy(Path(folder)).version
    pool, request = WorkerPool(), b'{"state":{"load":42,"replicas":3}}'
    with pytest.raises(ConnectionError):
        pool.learn(version, folder, b"")
    pool.set_workers([worker.rpc.listen("w", HOST, KEY)], KEY)
    async with asyncio.timeout(10):
        while not pool.is_up:
            await asyncio.sleep(0.005)
        episode = Episode("toy-learned")
        for name in ("a", "b", "c"):
            decided = decode_reply(await pool.decide(version, folder, request, math.inf))
            assert isinstance(decided, Decided)
            assert decided.step is not None
            episode.add(name, decided.step)
            episode.add_reward(name, 2.0)
        reply = await pool.learn(version, folder, episode.request())
        learned = read_memory(LearnReply.model_validate_json(reply).line, "toy-learned")
        assert learned is not None
        assert learned.tolist() == [6, 1, 1, 1]
        with pytest.raises(RuntimeError, match="LearnRequest"):
            await pool.learn(version, folder, b"{}")
    worker.rpc.close()
