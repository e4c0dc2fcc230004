"""A wire between gateway and worker: frames of bytes on a Unix socket.

A call through Serve takes two milliseconds, most of them a core's time in either process; on a wire
of their own the two need a twentieth of that. Serve still starts, watches and replaces the workers,
and is asked whenever there is no wire: until one is laid, and where the two run on different
machines.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
import struct
import tempfile
import threading
import uuid
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from pathlib import Path
from typing import cast

log = logging.getLogger(__name__)

DECIDE, PROPOSE, FAULT, DONE = range(4)  # kinds of frames: two questions, two answers
VISIT_S = 10.0  # how long a worker waits for somebody who asked for the way
AGAIN_S = 1.0  # until the way is asked for again
_HEAD = struct.Struct("!IBII")  # bytes that follow, kind, number of the question, parts
_SIZE = struct.Struct("!I")  # of a part


class LostError(ConnectionError):
    """The other end is gone; nobody knows how far it came."""


def frame(kind: int, number: int, parts: Sequence[bytes]) -> bytes:
    sizes = struct.pack(f"!{len(parts)}I", *map(len, parts))
    length = len(sizes) + sum(map(len, parts))
    return b"".join((_HEAD.pack(length, kind, number, len(parts)), sizes, *parts))


def parts_of(body: bytes, many: int) -> list[bytes]:
    parts, start = [], many * _SIZE.size
    for size in struct.unpack_from(f"!{many}I", body):
        parts.append(body[start : start + size])
        start += size
    return parts


Answerer = Callable[[str, str, list[bytes]], list[bytes]]


class RpcServer:
    """The worker's end. Every visitor has a thread, which reads, decides and answers: nothing is
    handed from thread to thread. A visitor's socket has a file only until he is in."""

    def __init__(self, answerers: dict[int, Answerer]) -> None:
        self._answerers = answerers
        self._name = uuid.uuid4().hex

    def open(self, known: Sequence[str]) -> tuple[str, str]:
        """Whose door it is, and where to come to within the next seconds; for those who know it
        already, nowhere."""
        if self._name in known:
            return self._name, ""
        folder = Path(tempfile.mkdtemp(prefix="lm-"))  # nobody else may enter it
        ear = socket.socket(socket.AF_UNIX)
        ear.bind(str(folder / "s"))
        ear.listen(1)
        ear.settimeout(VISIT_S)
        threading.Thread(
            target=self._receive, args=(ear, folder), name="hotline", daemon=True
        ).start()
        return self._name, str(folder / "s")

    def _receive(self, ear: socket.socket, folder: Path) -> None:
        try:
            visitor, _ = ear.accept()
        except OSError:  # nobody came
            return
        finally:
            ear.close()
            shutil.rmtree(folder, ignore_errors=True)
        visitor.setblocking(True)
        with visitor, visitor.makefile("rb") as stream:
            while len(head := stream.read(_HEAD.size)) == _HEAD.size:
                length, kind, number, many = _HEAD.unpack(head)
                if len(body := stream.read(length)) < length:
                    return
                try:
                    visitor.sendall(self._answer(kind, number, parts_of(body, many)))
                except OSError:
                    return

    def _answer(self, kind: int, number: int, parts: list[bytes]) -> bytes:
        version, folder, *raw = parts
        try:
            answers = self._answerers[kind](version.decode(), folder.decode(), raw)
            return frame(DONE, number, answers)
        except Exception as fault:
            return frame(FAULT, number, [f"{type(fault).__name__}: {fault}".encode()])


class RpcClient(asyncio.Protocol):
    """The gateway's end."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None  # None: the worker is gone
        self._numbers = count()
        self._asked: dict[int, asyncio.Future[list[bytes]]] = {}
        self._heard = bytearray()

    @classmethod
    async def to(cls, address: str) -> RpcClient:
        """OSError where nobody can be reached there."""
        loop = asyncio.get_running_loop()
        _, line = await loop.create_unix_connection(cls, address)
        return line

    @property
    def is_up(self) -> bool:
        return self._transport is not None

    @property
    def waiting(self) -> int:
        return len(self._asked)

    async def ask(self, kind: int, version: str, folder: str, raw: list[bytes]) -> list[bytes]:
        """The worker's answers; LostError where it dies over them."""
        if self._transport is None:
            raise LostError("the worker is gone")
        number = next(self._numbers) & 0xFFFFFFFF
        answer: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        self._transport.write(frame(kind, number, [version.encode(), folder.encode(), *raw]))
        try:
            return await answer
        finally:
            del self._asked[number]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        self._heard += data
        while len(self._heard) >= _HEAD.size:
            length, kind, number, many = _HEAD.unpack_from(self._heard)
            end = _HEAD.size + length
            if len(self._heard) < end:
                return
            parts = parts_of(bytes(self._heard[_HEAD.size : end]), many)
            del self._heard[:end]
            self._answered(kind, number, parts)

    def _answered(self, kind: int, number: int, parts: list[bytes]) -> None:
        answer = self._asked.get(number)
        if answer is None or answer.done():
            return  # whoever asked has given up
        if kind == DONE:
            answer.set_result(parts)
        else:
            answer.set_exception(RuntimeError(parts[0].decode(errors="replace")))

    def connection_lost(self, fault: Exception | None) -> None:
        self._transport = None
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(LostError("the worker is gone"))

    def hang_up(self) -> None:
        if self._transport is not None:
            self._transport.close()


class ConnectionPool:
    """The lines to a system's workers, laid again when one is lost."""

    def __init__(
        self, way: Callable[[list[str]], Awaitable[Sequence[str]]], workers: int = 1
    ) -> None:
        """`way` asks some worker for its door, telling which ones are known."""
        self._way, self._workers = way, workers
        self._lines: dict[str, RpcClient] = {}
        self._laying: asyncio.Future[None] | None = None

    def line(self) -> RpcClient | None:
        """To the one with least to do; None: there is none for now."""
        if not all(line.is_up for line in self._lines.values()):
            self._lines = {name: line for name, line in self._lines.items() if line.is_up}
        if len(self._lines) < self._workers and (self._laying is None or self._laying.done()):
            self._laying = asyncio.ensure_future(self._lay())
        return min(self._lines.values(), key=lambda line: line.waiting, default=None)

    async def _lay(self) -> None:
        """To whom Serve connects us; that may be one we know."""
        try:
            name, address = await self._way(list(self._lines))
            if address:
                self._lines[name] = await RpcClient.to(address)
                return
        except Exception as fault:  # it is starting, or on another machine: Serve passes calls on
            log.info("no line of our own to a worker: %r", fault)
        await asyncio.sleep(AGAIN_S)
