"""A service on a raw socket, which answers as a test tells it to: well, late, cut off, or not."""

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
    """A request as it came."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    connection: int  # which of the connections, from 0

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Talk:
    """What a behaviour has at hand."""

    socket: socket.socket
    seen: Seen
    over: threading.Event  # the test has ended


Behaviour = Callable[[Talk], bool]  # whether the connection goes on


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

    def behave(talk: Talk) -> bool:
        talk.socket.sendall(data)
        return headers.get("Connection") != "close"

    return behave


def raw(data: bytes) -> Behaviour:
    """Exactly these bytes, then the end of the connection."""

    def behave(talk: Talk) -> bool:
        talk.socket.sendall(data)
        return False

    return behave


def reset(talk: Talk) -> bool:
    """No answer; the other side sees the connection reset."""
    talk.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return False


def silence(talk: Talk) -> bool:
    talk.over.wait(10)
    return False


def hang_up_afterwards(talk: Talk) -> bool:
    """A good answer that says nothing of the end of the connection, which follows."""
    answer()(talk)
    return False


def dripping(talk: Talk) -> bool:
    """Never silent for long, never done."""
    with suppress(OSError):
        talk.socket.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while not talk.over.wait(0.01):
            talk.socket.sendall(b" ")
    return False


@dataclass
class FakeService:
    """Each request gets the next behaviour; the last one goes for all that follow."""

    script: list[Behaviour]
    tls: ssl.SSLContext | None = None
    largest: float = math.inf  # bytes of a body
    patient: bool = True  # with a body that is too large
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
            threading.Thread(target=self._converse, args=(accepted, number), daemon=True).start()

    def _converse(self, accepted: socket.socket, number: int) -> None:
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
        """By the headers alone; what still comes is thrown away, as a careful server does."""
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
    """Where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"
