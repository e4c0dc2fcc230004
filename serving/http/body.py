"""The bodies of requests: JSON, of a size and a shape that can be read in no time.

What is wrong with a body may cost far more to find out than the body to send: a hundred thousand
lists where a number belongs, say. So there are bounds on what is read at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from fastapi import Request
from starlette.requests import ClientDisconnect

# An answer that is not what was asked for.


class HttpError(Exception):
    """Told with that status, and with the field that is wrong where there is one."""

    def __init__(
        self,
        status: int,
        line: str,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(line)
        self.status, self.line, self.field, self.headers = status, line, field, headers or {}


JSON = "application/json"
SMALL_BYTES = 256 << 10  # of what is no state
MOST_VALUES, MOST_NESTED = 400_000, 100_000  # in a body; nested ones are lists and objects
SWALLOWED_BYTES, SWALLOWED_S = 64 << 20, 5.0
READ = "loadmaster.read"  # in the scope of a request: nothing of its body is left


class Bodies:
    """Reads them: `largest` bytes, within `within_s`."""

    def __init__(self, largest: int, within_s: float) -> None:
        self._largest, self._within_s = largest, within_s

    async def read(self, request: Request) -> bytes:
        return await self._read(request, self._largest)

    async def read_small(self, request: Request) -> bytes:
        """One that is read in the event loop."""
        return await self._read(request, min(self._largest, SMALL_BYTES))

    async def _read(self, request: Request, most: int) -> bytes:
        _check_kind(request)
        told = request.headers.get("content-length", "")
        if told.isascii() and told.isdigit() and (len(told) > 18 or int(told) > most):
            raise _too_large(most)
        parts, size = [], 0
        request.scope[READ] = True
        try:
            async with asyncio.timeout(self._within_s):
                async for part in request.stream():
                    size += len(part)
                    if size > most:
                        break
                    parts.append(part)
        except TimeoutError:
            raise HttpError(408, f"the body did not arrive within {self._within_s:g} s") from None
        except ClientDisconnect:
            raise HttpError(400, "the body was cut off") from None
        if size > most:
            request.scope[READ] = False
            raise _too_large(most)
        raw = b"".join(parts)
        if size > MOST_NESTED and _holds_too_much(raw):
            raise HttpError(
                413,
                f"the body holds too much; expected at most {MOST_VALUES:,} values, of which "
                f"{MOST_NESTED:,} lists and objects",
            )
        return raw


def _holds_too_much(raw: bytes) -> bool:
    return raw.count(b",") > MOST_VALUES or raw.count(b"[") + raw.count(b"{") > MOST_NESTED


async def swallow(request: Request) -> None:
    """The rest of a body that nobody wants, where the connection ends with the answer.

    Closed while a client still sends, it would be reset, and the answer lost. Where it stays open,
    and where the client waits to be told to go on, the server sees to that.
    """
    closes = request.headers.get("connection", "").lower() == "close"
    if request.headers.get("expect") or not (closes or request.scope["http_version"] == "1.0"):
        return
    if request.scope.get(READ):
        return
    size = 0
    try:
        async with asyncio.timeout(SWALLOWED_S):
            while size < SWALLOWED_BYTES:
                message = await request.receive()
                size += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return
    except TimeoutError:
        return


def _check_kind(request: Request) -> None:
    kind = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if kind != JSON:
        raise HttpError(415, f"content type {kind[:80]!r} is not read; expected {JSON}")
    packing = request.headers.get("content-encoding", "identity").strip().lower()
    if packing != "identity":
        raise HttpError(415, f"content encoding {packing[:80]!r} is not read; expected none")


def _too_large(most: int) -> HttpError:
    return HttpError(413, f"the body is too large; expected at most {most:,} bytes")
