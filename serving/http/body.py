"""Request bodies of a bounded size, their content types, and `HttpError`.

Finding what is wrong with a body can cost far more than sending it: a hundred thousand lists where
a number belongs, for example. So the number of values in JSON is bounded as well. MessagePack is
read up to its first error.
"""

import asyncio
import contextlib
import re
from collections.abc import Mapping, Sequence

from fastapi import Request
from starlette.requests import ClientDisconnect

JSON = "application/json"
MSGPACK = ("application/msgpack", "application/vnd.msgpack")  # in use; registered
SMALL_BYTES = 256 << 10  # limit for bodies without a state
MAX_VALUES, MAX_NESTED = 400_000, 100_000  # in a body; nested: lists and objects
DRAIN_BYTES, DRAIN_S = 64 << 20, 5.0
BODY_READ = "loadmaster.read"  # in the scope of a request: no more of its body is to be read


RETRY_SOON = {"Retry-After": "1"}


class HttpError(Exception):
    """An error response, with the field at fault if there is one."""

    def __init__(
        self,
        status: int,
        line: str,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(line)
        self.status, self.line, self.field, self.headers = status, line, field, headers or {}


class BodyMemory:
    """Bounds the bytes of all bodies in memory, from their arrival to the end of their requests.

    Bytes count as they arrive, not as declared: a client that sends nothing takes up nothing.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self.used = limit, 0

    def take(self, size: int) -> None:
        """Count bytes; raises HttpError, and counts none, if there are too many."""
        used = self.used + size
        if used > self._limit:
            raise HttpError(503, "too many bytes of requests at once", headers=RETRY_SOON)
        self.used = used

    def release(self, size: int) -> None:
        self.used -= size


async def read_body(
    request: Request,
    limit: int,
    within_s: float,
    memory: BodyMemory,
    kinds: Sequence[str] = (JSON,),
) -> bytes:
    """Read at most `limit` bytes of one of these content types.

    The caller releases them from `memory`.

    Raises HttpError for another content type, for a body that is too large or late, and if there
    is no memory for it.
    """
    _check_content_type(request, kinds)
    declared = request.headers.get("content-length", "")
    is_number = declared.isascii() and declared.isdigit()
    if is_number:
        expected = int(declared) if len(declared) <= 18 else limit + 1
        if expected > limit:
            raise _too_large(limit)
        memory.take(expected)  # refuse at once what would be refused later
        memory.release(expected)
    parts, size, is_accepted = [], 0, False
    try:
        async with asyncio.timeout(within_s):
            async for part in request.stream():
                if part:  # the last one is empty
                    if size + len(part) > limit:
                        raise _too_large(limit)
                    memory.take(len(part))
                    size += len(part)
                    parts.append(part)
        request.scope[BODY_READ] = True
        raw = b"".join(parts)
        if content_type(request) == JSON and _holds_too_many(raw):
            raise HttpError(
                413,
                f"the body holds too many values; expected at most {MAX_VALUES:,}, of which "
                f"{MAX_NESTED:,} lists and objects",
            )
        is_accepted = True
        return raw
    except TimeoutError:
        request.scope[BODY_READ] = True  # wait no longer
        raise HttpError(408, f"the body did not arrive within {within_s:g} s") from None
    except ClientDisconnect:
        raise HttpError(400, "the body is incomplete") from None
    finally:
        if not is_accepted:
            memory.release(size)


async def drain(request: Request) -> None:
    """Read the rest of a refused body, if the connection closes after the response.

    Closing it while the client still sends would reset it, and the response would be lost. If the
    connection stays open, or the client waits for 100-continue, the server handles this itself.
    """
    closes = request.headers.get("connection", "").lower() == "close"
    if request.headers.get("expect") or not (closes or request.scope["http_version"] == "1.0"):
        return
    if request.scope.get(BODY_READ):
        return
    size, more = 0, True
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_S):
            while more and size < DRAIN_BYTES:
                message = await request.receive()
                size += len(message.get("body", b""))
                more = message.get("more_body", False)


def content_type(request: Request) -> str:
    """Content type of a body without its parameters; JSON if none is given."""
    return request.headers.get("content-type", JSON).partition(";")[0].strip().lower()


def accepts_msgpack(request: Request) -> bool:
    """Whether the Accept header names MessagePack, and JSON not or with a lower quality."""
    accepted = request.headers.get("accept", "").lower()
    if "msgpack" not in accepted:
        return False
    qualities = {}
    for part in accepted.split(","):
        kind, _, parameters = part.partition(";")
        found = re.search(r"(?:^|;)\s*q=([01](?:\.\d{0,3})?)\s*(?:;|$)", parameters)
        qualities[kind.strip()] = float(found[1]) if found else 1.0
    return max(qualities.get(kind, 0.0) for kind in MSGPACK) > qualities.get(JSON, 0.0)


def _holds_too_many(raw: bytes) -> bool:
    """Whether JSON has more values than allowed; a body with fewer bytes cannot."""
    if len(raw) <= MAX_NESTED:
        return False
    if raw.count(b"[") + raw.count(b"{") > MAX_NESTED:
        return True
    return len(raw) > MAX_VALUES and raw.count(b",") > MAX_VALUES


def _check_content_type(request: Request, kinds: Sequence[str]) -> None:
    kind = content_type(request)
    if kind not in kinds:
        expected = " or ".join(kinds)
        raise HttpError(415, f"content type {kind[:80]!r} is not supported; expected {expected}")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise HttpError(415, f"content encoding {encoding[:80]!r} is not supported; expected none")


def _too_large(limit: int) -> HttpError:
    return HttpError(413, f"the body is too large; expected at most {limit:,} bytes")
