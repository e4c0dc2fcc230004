"""A fake service on a raw socket with scripted behaviour: normal, late, truncated or silent."""

from __future__ import annotations

import json
import math
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
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
class Talk:
    """A request and the means to respond."""

    socket: socket.socket
    seen: Seen
    over: threading.Event  # the test has ended


Behaviour = Callable[[Talk], bool]  # returns whether the connection stays open


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

    def behave(exchange: Talk) -> bool:
        exchange.socket.sendall(data)
        return headers.get("Connection") != "close"

    return behave


def echo(exchange: Talk) -> bool:
    """Decide what the state is."""
    return answer({**DECISION, "decision": exchange.seen.json["state"]})(exchange)


def raw(data: bytes) -> Behaviour:
    """Send exactly these bytes and close."""

    def behave(exchange: Talk) -> bool:
        exchange.socket.sendall(data)
        return False

    return behave


def reset(exchange: Talk) -> bool:
    """Reset the connection without a response."""
    exchange.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return False


def silence(exchange: Talk) -> bool:
    exchange.over.wait(10)
    return False


def close_unannounced(exchange: Talk) -> bool:
    """Respond without a Connection header, then close."""
    answer()(exchange)
    return False


def trickle(exchange: Talk) -> bool:
    """Send a byte at a time without end."""
    with suppress(OSError):
        exchange.socket.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while not exchange.over.wait(0.01):
            exchange.socket.sendall(b" ")
    return False


@dataclass
class FakeService:
    """Each request gets the next behaviour of the script; the last one repeats."""

    script: list[Behaviour]
    tls: ssl.SSLContext | None = None
    largest: float = math.inf  # limit of a request body, bytes
    patient: bool = True  # reads the rest of a body that is too large
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        scheme = "http" if self.tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self.over.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(accepted)
            number, self.connections = self.connections, self.connections + 1
            threading.Thread(target=self._serve, args=(accepted, number), daemon=True).start()

    def _serve(self, accepted: socket.socket, number: int) -> None:
        with suppress(OSError), accepted:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.tls is not None:
                accepted = self.tls.wrap_socket(accepted, server_side=True)
            with accepted, accepted.makefile("rb") as reader:
                while True:
                    first = reader.readline().decode().split()
                    if not first:
                        return
                    lines = iter(reader.readline, b"\r\n")
                    pairs = (line.decode().partition(":") for line in lines)
                    headers = {name.lower(): value.strip() for name, _, value in pairs}
                    length = int(headers.get("content-length", 0))
                    if length > self.largest:
                        self._refuse(accepted, Seen(first[0], first[1], headers, b"", number))
                        return
                    body = reader.read(length)
                    seen = Seen(first[0], first[1], headers, body, number)
                    with self._lock:
                        self.seen.append(seen)
                        behave = self.script.pop(0) if len(self.script) > 1 else self.script[0]
                    if not behave(Talk(accepted, seen, self.over)):
                        return

    def _refuse(self, accepted: socket.socket, seen: Seen) -> None:
        """Respond 413 after the headers, then discard the body."""
        answer({"error": "too large"}, 413, Connection="close")(Talk(accepted, seen, self.over))
        accepted.shutdown(socket.SHUT_WR)
        self.seen.append(seen)
        while self.patient and accepted.recv(100_000):
            pass


@contextmanager
def fake_service(*script: Behaviour, tls: ssl.SSLContext | None = None) -> Iterator[FakeService]:
    service = FakeService(list(script) or [answer()], tls)
    try:
        yield service
    finally:
        service.close()


def unused_url() -> str:
    """A URL whose port is closed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"
