"""HTTP/1.1 as far as this service speaks it, apart from any socket: bytes in, answers out.

The blocking client, the asyncio one and the load generator all read with this parser.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import NamedTuple

MAX_HEAD = 64 * 1024  # bytes of status line and headers
MAX_ANSWER = 16 * 2**20  # bytes of a body, unless the caller says otherwise

_HEXADECIMAL = frozenset(b"0123456789abcdefABCDEF")

Steps = Generator[None, None, bytes]  # yields where more bytes are needed


class Request(NamedTuple):
    method: str
    target: str  # path and query
    body: bytes | None = None
    repeat: bool = True  # doing it twice is as good as doing it once
    fresh: bool = False  # on a connection of its own: an old one may end just as it is used


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]  # by lower-case name
    body: bytes
    keep: bool  # the connection can be used again


class MalformedError(Exception):
    """Not HTTP, or more of it than was agreed."""


class BrokenError(Exception):
    """The connection failed; `sent`: the service may have seen the request."""

    def __init__(self, why: str, sent: bool) -> None:
        super().__init__(why)
        self.sent = sent


class ResponseParser:
    """Reads one answer."""

    def __init__(self, max_answer: int = MAX_ANSWER) -> None:
        self._limit = max_answer
        self._buffer = bytearray()
        self._ended = False
        self._steps = self._answer()

    def feed(self, data: bytes) -> Answer | None:
        """The answer, once it is complete."""
        self._buffer += data
        return self._advance()

    def end(self) -> Answer | None:
        """The connection is over: the answer, if it was one that lasts until then."""
        self._ended = True
        return self._advance()

    def _advance(self) -> Answer | None:
        try:
            next(self._steps)
        except StopIteration as done:
            answer: Answer = done.value
            return answer
        return None

    def _answer(self) -> Generator[None, None, Answer]:
        while True:
            status, version, headers = _read_head((yield from self._until(b"\r\n\r\n", MAX_HEAD)))
            if status >= 200:
                break  # those below only announce the real one
        keep = version != "HTTP/1.0" and "close" not in headers.get("connection", "").lower()
        length = headers.get("content-length")
        if status in (204, 304):
            body = b""
        elif "chunked" in headers.get("transfer-encoding", "").lower():
            body = yield from self._chunks()
        elif length is not None:
            if not (length.isascii() and length.isdigit() and len(length) < 19):
                raise MalformedError(f"Content-Length is {length[:40]!r}; expected a number")
            body = yield from self._take(int(length))
        else:
            body, keep = (yield from self._rest()), False
        # Bytes beyond the answer are nobody's: such a connection is out of step.
        return Answer(status, headers, body, keep and not self._buffer)

    def _until(self, mark: bytes, limit: int) -> Steps:
        while (at := self._buffer.find(mark)) < 0:
            if len(self._buffer) > limit:
                raise MalformedError(f"no end of a line or of the headers within {limit} bytes")
            yield
        return self._cut(at + len(mark))[: -len(mark)]

    def _take(self, count: int) -> Steps:
        self._check(count)
        while len(self._buffer) < count:
            yield
        return self._cut(count)

    def _cut(self, count: int) -> bytes:
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def _rest(self) -> Steps:
        self._check(len(self._buffer))
        while not self._ended:
            yield
            self._check(len(self._buffer))
        return self._cut(len(self._buffer))

    def _chunks(self) -> Steps:
        body = bytearray()
        while True:
            line = (yield from self._until(b"\r\n", MAX_HEAD)).partition(b";")[0].strip()
            if not line or not _HEXADECIMAL.issuperset(line):
                raise MalformedError(
                    f"a chunk of {line[:40]!r} bytes; expected a hexadecimal number"
                )
            size = int(line, 16)
            self._check(len(body) + size)
            if size == 0:
                break
            body += yield from self._take(size)
            if (yield from self._take(2)) != b"\r\n":
                raise MalformedError("a chunk is longer than announced")
        while (yield from self._until(b"\r\n", MAX_HEAD)):
            pass  # trailers
        return bytes(body)

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise MalformedError(f"the answer has more than {self._limit} bytes")


def _read_head(head: bytes) -> tuple[int, str, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    status = rest[:3]
    if not version.startswith("HTTP/1.") or not (status.isascii() and status.isdigit()):
        raise MalformedError(f"{first[:40]!r} is no HTTP/1.1")
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise MalformedError(f"{line[:40]!r} is no header")
        headers[name.strip().lower()] = value.strip()
    return int(status), version, headers
