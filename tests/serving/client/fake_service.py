"""A fake service on a raw socket with scripted behaviour: normal, late, truncated or silent."""

from __future__ import annotations

import json
import socket
import socketserver
import ssl
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

DECISION: dict[str, Any] = {
    "id": "d-1",
    "decision": {"stage": 3, "limit": 8},
    "source": "policy",
    "cause": None,
    "reason": {
        "summary": "stage 3 of job 17 is next on its critical path",
        "choices": {
            "stage": [
                {"name": "job 17, stage 3", "score": 1.5, "uncertainty": None, "probability": 0.75},
                {"name": "job 4, stage 0", "score": 0.5, "uncertainty": 0.25, "probability": None},
            ]
        },
    },
    "policy": {"name": "decima-stream", "version": "0123456789ab"},
    "guard": ["bounds: job 17 from 12 to 8"],
    "shadow": None,
    "latency_ms": 1.25,
}


@dataclass
class Seen:
    """A received request."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    connection: int  # number of the connection, from 0

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Exchange:
    """A request and the means to respond."""

    socket: socket.socket
    seen: Seen
    over: threading.Event  # the test has ended


Behaviour = Callable[[Exchange], bool]  # returns whether the connection stays open


def answer(
    content: object = DECISION, status: int = 200, chunked: bool = False, **headers: str
) -> Behaviour:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    head = f"HTTP/1.1 {status} Whatever\r\nContent-Type: application/json\r\n"
    head += "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    if chunked:
        pieces = [body[at : at + 50] for at in range(0, len(body), 50)]
        coded = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
        data = head.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + coded + b"0\r\n\r\n"
    else:
        data = head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body

    def behave(exchange: Exchange) -> bool:
        exchange.socket.sendall(data)
        return headers.get("Connection") != "close"

    return behave


def echo(exchange: Exchange) -> bool:
    """Decide what the state is."""
    return answer({**DECISION, "decision": exchange.seen.json["state"]})(exchange)


def raw(data: bytes) -> Behaviour:
    """Send exactly these bytes and close."""

    def behave(exchange: Exchange) -> bool:
        exchange.socket.sendall(data)
        return False

    return behave


def reset(exchange: Exchange) -> bool:
    """Reset the connection without a response."""
    exchange.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return False


def silence(exchange: Exchange) -> bool:
    exchange.over.wait(10)
    return False


def close_unannounced(exchange: Exchange) -> bool:
    """Respond without a Connection header, then close."""
    answer()(exchange)
    return False


def trickle(exchange: Exchange) -> bool:
    """Send a byte at a time without end."""
    with suppress(OSError):
        exchange.socket.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while not exchange.over.wait(0.01):
            exchange.socket.sendall(b" ")
    return False


def refuse_unread(exchange: Exchange) -> bool:
    """Respond 413 after the headers, and close."""
    answer({"error": "too large"}, 413, Connection="close")(exchange)
    return False


def refuse_and_drain(exchange: Exchange) -> bool:
    """Respond 413 after the headers, then read the body."""
    refuse_unread(exchange)
    exchange.socket.shutdown(socket.SHUT_WR)
    while exchange.socket.recv(100_000):
        pass
    return False


class FakeService(socketserver.ThreadingTCPServer):
    """Each request gets the next behaviour of the script; the last one repeats."""

    daemon_threads = True
    request_queue_size = 100

    def __init__(self, script: list[Behaviour], tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self.server_address[1]}"
        self.script, self.tls, self.connections = script, tls, 0
        self.seen: list[Seen] = []
        self.over, self.lock = threading.Event(), threading.Lock()

    def handle_error(self, *_: Any) -> None:
        """Ignore broken connections."""


class _Connection(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True
    server: FakeService

    def setup(self) -> None:
        if self.server.tls is not None:
            self.request = self.server.tls.wrap_socket(self.request, server_side=True)
        super().setup()

    def handle(self) -> None:
        with self.server.lock:
            number, self.server.connections = self.server.connections, self.server.connections + 1
        stays_open = True
        while stays_open and (first := self.rfile.readline().decode().split()):
            lines = iter(self.rfile.readline, b"\r\n")
            pairs = (line.decode().partition(":") for line in lines)
            headers = {name.lower(): value.strip() for name, _, value in pairs}
            with self.server.lock:
                script = self.server.script
                behave = script.pop(0) if len(script) > 1 else script[0]
            unread = behave in (refuse_unread, refuse_and_drain)
            body = b"" if unread else self.rfile.read(int(headers.get("content-length", 0)))
            seen = Seen(first[0], first[1], headers, body, number)
            self.server.seen.append(seen)
            stays_open = behave(Exchange(self.connection, seen, self.server.over))

    def finish(self) -> None:
        super().finish()
        self.connection.close()  # before the server's shutdown, which would precede a reset


@contextmanager
def fake_service(*script: Behaviour, tls: ssl.SSLContext | None = None) -> Iterator[FakeService]:
    with FakeService(list(script) or [answer()], tls) as service:
        threading.Thread(target=service.serve_forever, args=(0.005,), daemon=True).start()
        yield service
        service.over.set()
        service.shutdown()


def unused_url() -> str:
    """A URL whose port is closed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"
