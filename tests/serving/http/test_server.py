"""The HTTP listener on real sockets: addresses, ports, limits, refused bodies."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings
from loadmaster.platform.cli.main import main
from loadmaster.serving.http import server
from loadmaster.serving.http.app_factory import assemble
from loadmaster.serving.http.server import MAX_HEADER_BYTES, listen
from loadmaster.serving.settings import ServeSettings
from tests.serving import toy
from tests.serving.addresses import other_addresses, refuses
from tests.serving.conftest import LocalService, Start
from tests.serving.live import Live, free_port

STATE = b'{"state": {"load": 42, "replicas": 3}}'
OK = b"HTTP/1.1 200 OK"
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
INCOMPLETE = [(0, b""), (0, b"GET / HT"), (0, b"\r\n"), (2, b"GET"), (2, b"\r\n")]
CLOSE = b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
POST = b"POST /v1/toy/decide" + CLOSE


async def hello(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope["client"][0].encode()})


def while_listening(
    work: Callable[[int], Any], here: LocalService | None = None, host: str = "127.0.0.1"
) -> Any:
    """Call `work` with the port in another thread; the application is `hello` or the service's."""
    port = free_port()

    async def main() -> Any:
        async with listen(hello if here is None else here.service.app, host, port):
            await asyncio.sleep(0.05)
            return await asyncio.get_running_loop().run_in_executor(None, work, port)

    return asyncio.run(main()) if here is None else here.run(main())


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1"])
def test_it_listens_on_one_address_only(host: str) -> None:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        socket.create_server((host, 0), family=family).close()
    except OSError:
        pytest.skip(f"no {host} here")
    hosts = {*other_addresses(), "127.0.0.1", "127.0.0.2", host}

    def open_ones(port: int) -> tuple[int, list[str]]:
        return port, [each for each in hosts if not refuses(each, port)]

    port, found = while_listening(open_ones, host=host)
    assert found == [host]
    assert refuses(host, port)  # the port is released


@pytest.mark.slow
def test_without_tokens_only_loopback_is_open(live: Live) -> None:
    from ray import serve

    assert not refuses("127.0.0.1", live.port)
    assert [address for address in other_addresses() if not refuses(address, live.port)] == []
    assert serve.status().proxies == {}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.org"])
def test_public_hosts_without_tokens_are_refused(
    host: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By the command and by the gateway itself."""
    monkeypatch.delenv("LOADMASTER_TOKENS", raising=False)
    system = {"endpoint": toy.REFERENCE, "bundle": str(toy.make_bundle(tmp_path / "bundle"))}
    settings = {"systems": {"toy": system}, "host": host, "folder": tmp_path}
    with pytest.raises(InputError, match=f"--host {host} "):
        assemble(build_settings(ServeSettings, settings), {})
    arguments = ["--host", host, "--port", str(free_port()), "--set", f"systems.toy={system}"]
    assert main(["serve", *arguments]) == 2
    assert f"--host {host} " in capsys.readouterr().err


def test_a_port_in_use_is_waited_for_within_a_limit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """By the gateway, as a previous replica may still have it; the command refuses at once."""
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    assert main(["serve", "--port", str(port), "--folder", str(tmp_path)]) == 2
    assert f"127.0.0.1:{port}" in capsys.readouterr().err
    monkeypatch.setattr(server, "RETRY_S", 0.05)
    monkeypatch.setattr(server, "PORT_FREE_S", 0.2)

    async def listen_once(free_after_s: float) -> None:
        asyncio.get_running_loop().call_later(free_after_s, taken.close)
        async with listen(hello, "127.0.0.1", port):
            assert taken.fileno() == -1  # closed

    with pytest.raises(OSError, match="in use"):
        asyncio.run(listen_once(free_after_s=60))
    asyncio.run(listen_once(free_after_s=0.1))


@pytest.mark.parametrize("first", [b"GET /", b"GET / HTTP/1.1\r\nX-Long: "])
def test_endless_headers_are_cut_off(first: bytes) -> None:
    def work(port: int) -> int:
        sent = 0
        with (
            socket.create_connection(("127.0.0.1", port), timeout=5) as line,
            contextlib.suppress(BrokenPipeError, ConnectionResetError),
        ):
            line.sendall(first)
            while sent < 100 * MAX_HEADER_BYTES:
                sent += line.send(b"x" * 4096)
                time.sleep(0.0005)
        return sent

    assert while_listening(work) < 100 * MAX_HEADER_BYTES


LARGE = b"X: " + b"x" * (2 * MAX_HEADER_BYTES) + b"\r\n"
MANY = b"X: y\r\n" * MAX_HEADER_BYTES
LAST_CHUNK = b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /" + CLOSE + LARGE + b"\r\n", b"431"),
        (b"GET /" + CLOSE + LARGE, b"431"),  # not complete
        (b"GET /" + CLOSE + MANY + b"\r\n", b"431"),
        (b"GET /" + b"x" * (2 * MAX_HEADER_BYTES) + CLOSE + b"\r\n", b"431"),
        (REQUEST + b"GET /" + CLOSE + LARGE + b"\r\n", b"431"),  # after another request
        (b"GET /" + CLOSE + b"X: " + b"x" * (MAX_HEADER_BYTES - 100) + b"\r\n\r\n", b"200"),
        (b"POST /" + CLOSE + b"Content-Length: 200000\r\n\r\n" + b"x" * 200_000, b"200"),
        (REQUEST * 5000 + b"GET /" + CLOSE + b"\r\n", b"200"),  # pipelined
    ],
)
def test_large_headers_are_refused_however_they_arrive(data: bytes, status: bytes) -> None:
    """Also in one large segment, which holds the beginning and the end of the headers."""

    def work(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
            threading.Thread(target=send, args=(line,)).start()
            received = b""
            while part := line.recv(1 << 16):  # until the connection is closed
                received += part
            return received

    def send(line: socket.socket) -> None:
        with contextlib.suppress(OSError):
            line.sendall(data)

    received = while_listening(work)
    assert received.rpartition(b"HTTP/1.1 ")[2].startswith(status)
    assert b" 400 " not in received


def test_endless_trailers_are_cut_off() -> None:
    """The parser keeps them as it keeps headers."""

    def work(port: int) -> int:
        sent = 0
        with (
            socket.create_connection(("127.0.0.1", port), timeout=5) as line,
            contextlib.suppress(BrokenPipeError, ConnectionResetError),
        ):
            line.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\n" + LAST_CHUNK)
            while sent < 100 * MAX_HEADER_BYTES:
                line.sendall(b"X: y\r\n" * 1000)
                sent += 6000
                time.sleep(0.0005)
        return sent

    assert while_listening(work) < 100 * MAX_HEADER_BYTES


@pytest.mark.parametrize(
    ("count", "last", "response"),
    [*((count, last, b"") for count, last in INCOMPLETE), (2, REQUEST, OK)],
)
def test_connections_are_closed_within_headers_but_not_between_requests(
    count: int, last: bytes, response: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEADER_TIMEOUT_S", 0.1)

    def work(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as line:
            for _ in range(count):
                line.sendall(REQUEST)
                received = b""
                while not received.endswith(b"0\r\n\r\n"):  # the last chunk
                    received += (part := line.recv(1000))
                    assert part, received
                assert received.startswith(OK)
                time.sleep(0.2)
            line.sendall(last)
            return line.recv(len(OK))

    assert while_listening(work) == response


def exchange(port: int, data: bytes, half_close: bool = False) -> bytes:
    """Send data on a new connection; returns what arrives until it is closed."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as line:
        line.sendall(data)
        if half_close:
            line.shutdown(socket.SHUT_WR)
        while part := line.recv(1000):
            received += part
    return received


def post(port: int, body: Any, headers: dict[str, str]) -> int:
    """Send a decide request on a new connection; returns the status."""
    with contextlib.closing(HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        connection.request("POST", "/v1/toy/decide", body, headers)
        return connection.getresponse().status


@pytest.mark.parametrize("connection", [{"Connection": "close"}, {}])
@pytest.mark.parametrize(
    ("kind", "chunked", "status"),
    [("application/json", False, 413), ("application/json", True, 413), ("text/plain", False, 415)],
)
def test_a_client_that_sends_a_refused_body_gets_the_response(
    start: Start, connection: dict[str, str], kind: str, chunked: bool, status: int
) -> None:
    """The connection is not reset while the client still sends."""
    here = start(limits={"largest_bytes": 10_000})

    def work(port: int) -> list[int]:
        pieces = [b"x" * (1 << 20)] * 30
        body: Any = iter(pieces) if chunked else b"".join(pieces)
        headers = {"Content-Type": kind, **connection}
        return [post(port, body, headers), post(port, STATE, connection)]

    assert while_listening(work, here) == [status, 200]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x00 hello\r\n\r\n", b"400"),
        (POST + b"Content-Length: 99999999\r\nExpect: 100-continue\r\n\r\n", b"413"),
        (b"HEAD /healthz" + CLOSE + b"\r\n", b"200"),
    ],
)
def test_responses_on_the_wire(start: Start, data: bytes, status: bytes) -> None:
    here = start(limits={"largest_bytes": 10_000})
    answer = while_listening(lambda port: exchange(port, data), here)
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert answer.endswith(b"\r\n\r\n") == (status == b"200")  # HEAD: no body


def test_a_body_shorter_than_declared_is_refused(start: Start) -> None:
    here = start(limits={"body_s": 0.3})
    data = POST + b"Content-Length: 500\r\n\r\n" + STATE
    late = while_listening(lambda port: exchange(port, data), here)
    closed = while_listening(lambda port: exchange(port, data, half_close=True), here)
    assert late.startswith(b"HTTP/1.1 408")
    assert closed == b"" or closed.startswith(b"HTTP/1.1 4")
    assert here.decide()["source"] == "policy"


def test_rates_ignore_addresses_in_headers(start: Start) -> None:
    here = start(limits={"rate_per_s": 0.01, "burst": 2})

    def work(port: int) -> list[int]:
        names = ("X-Forwarded-For", "X-Real-IP", "Forwarded")
        headers = [dict.fromkeys(names, f"10.0.0.{n}") for n in range(4)]
        return [post(port, STATE, one) for one in headers]

    assert while_listening(work, here) == [200, 200, 429, 429]
