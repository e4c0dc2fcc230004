"""A fake service on a raw socket with scripted behaviour: normal, late, truncated or silent."""

import json
import socket
import socketserver
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.message import Message
from functools import partial
from http.server import BaseHTTPRequestHandler
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
class Exchange:
    """A received request, and the socket on which to respond."""

    method: str
    target: str
    headers: Message
    body: bytes
    connection: int  # number of the connection, from 0
    socket: socket.socket
    over: threading.Event  # the test has ended

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Behaviour = Callable[[Exchange], bool]  # returns whether the connection stays open


def raw(data: bytes, stays_open: bool = False) -> Behaviour:
    """Send exactly these bytes."""

    def behave(exchange: Exchange) -> bool:
        exchange.socket.sendall(data)
        return stays_open

    return behave


def answer(content: object = DECISION, status: int = 200, **headers: str) -> Behaviour:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    given = {**headers, "Content-Length": str(len(body))}
    head = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    data = f"HTTP/1.1 {status} Whatever\r\n{head}\r\n".encode() + body
    return raw(data, headers.get("Connection") != "close")


def echo(exchange: Exchange) -> bool:
    """Decide what the state is."""
    return answer({**DECISION, "decision": exchange.json["state"]})(exchange)


def reset(exchange: Exchange) -> bool:
    """Reset the connection without a response."""
    exchange.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return False


def silence(exchange: Exchange) -> bool:
    exchange.over.wait(10)
    return False


def close_unannounced(exchange: Exchange) -> bool:
    """Respond without a Connection header, then close."""
    return not answer()(exchange)


def trickle(exchange: Exchange) -> bool:
    """Send a byte at a time without end."""
    with suppress(OSError):
        exchange.socket.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while not exchange.over.wait(0.01):
            exchange.socket.sendall(b" ")
    return False


def refuse_unread(exchange: Exchange, drain: bool = False) -> bool:
    """Respond 413 after the headers, then read the body if `drain`, and close."""
    answer({"error": "too large"}, 413, Connection="close")(exchange)
    if drain:
        exchange.socket.shutdown(socket.SHUT_WR)
        while exchange.socket.recv(100_000):
            pass
    return False


refuse_and_drain = partial(refuse_unread, drain=True)


class FakeService(socketserver.ThreadingTCPServer):
    """Each request gets the next behaviour of the script; the last one repeats."""

    daemon_threads = True
    request_queue_size = 100

    def __init__(self, script: list[Behaviour], tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self.server_address[1]}"
        self.script, self.tls, self.connections = script, tls, 0
        self.seen: list[Exchange] = []
        self.over, self.lock = threading.Event(), threading.Lock()

    def handle_error(self, *_: Any) -> None:
        """Ignore broken connections."""


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: FakeService

    def setup(self) -> None:
        if self.server.tls is not None:
            self.request = self.server.tls.wrap_socket(self.request, server_side=True)
        super().setup()
        with self.server.lock:
            self.number = self.server.connections
            self.server.connections += 1

    def do_POST(self) -> None:
        with self.server.lock:
            script = self.server.script
            behave = script.pop(0) if len(script) > 1 else script[0]
        unread = behave in (refuse_unread, refuse_and_drain)
        body = b"" if unread else self.rfile.read(int(self.headers.get("content-length", 0)))
        seen = Exchange(
            self.command, self.path, self.headers, body, self.number, self.connection,
            self.server.over,
        )  # fmt: skip
        self.server.seen.append(seen)
        self.close_connection = not behave(seen)

    do_GET = do_PUT = do_POST  # noqa: N815

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
