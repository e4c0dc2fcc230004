"""Request bodies: JSON of a bounded size, and `HttpError`.

Finding what is wrong with a body can cost far more than sending it: a hundred thousand lists where
a number belongs, for example. So the number of values in a body is bounded as well.
"""

import asyncio
import contextlib
from collections.abc import Mapping

from fastapi import Request
from starlette.requests import ClientDisconnect

JSON = "application/json"
SMALL_BYTES = 256 << 10  # limit for bodies without a state
MAX_VALUES, MAX_NESTED = 400_000, 100_000  # in a body; nested: lists and objects
DRAIN_BYTES, DRAIN_S = 64 << 20, 5.0
BODY_READ = "loadmaster.read"  # in the scope of a request: its body was read to the end


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


async def read_body(request: Request, limit: int, within_s: float) -> bytes:
    """Read at most `limit` bytes of JSON.

    Raises HttpError for another content type, and for a body that is too large or late.
    """
    _check_content_type(request)
    declared = request.headers.get("content-length", "")
    is_number = declared.isascii() and declared.isdigit()
    if is_number and (len(declared) > 18 or int(declared) > limit):
        raise _too_large(limit)
    parts, size = [], 0
    request.scope[BODY_READ] = True
    try:
        async with asyncio.timeout(within_s):
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    request.scope[BODY_READ] = False
                    raise _too_large(limit)
                parts.append(part)
    except TimeoutError:
        raise HttpError(408, f"the body did not arrive within {within_s:g} s") from None
    except ClientDisconnect:
        raise HttpError(400, "the body is incomplete") from None
    raw = b"".join(parts)
    if size > MAX_NESTED and (
        raw.count(b",") > MAX_VALUES or raw.count(b"[") + raw.count(b"{") > MAX_NESTED
    ):
        raise HttpError(
            413,
            f"the body holds too many values; expected at most {MAX_VALUES:,}, of which "
            f"{MAX_NESTED:,} lists and objects",
        )
    return raw


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


def _check_content_type(request: Request) -> None:
    kind = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if kind != JSON:
        raise HttpError(415, f"content type {kind[:80]!r} is not supported; expected {JSON}")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise HttpError(415, f"content encoding {encoding[:80]!r} is not supported; expected none")


def _too_large(limit: int) -> HttpError:
    return HttpError(413, f"the body is too large; expected at most {limit:,} bytes")
