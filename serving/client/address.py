"""Where the service is, and how a request to it looks on the wire."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from functools import cached_property
from urllib.parse import urlsplit

from loadmaster.serving.client.http1 import Request

TOKEN_VARIABLE = "LOADMASTER_TOKEN"


@dataclass(frozen=True)
class Address:
    """A service's URL, taken apart; `lines` holds the token and therefore never shows."""

    url: str
    host: str
    port: int
    prefix: str  # path before /v1, where a proxy puts the service under one
    lines: bytes = field(repr=False)  # headers that every request has
    trust: ssl.SSLContext | None = field(default=None, repr=False)

    @cached_property
    def tls(self) -> ssl.SSLContext | None:
        """How to speak TLS; None where the URL is plain http."""
        if not self.url.startswith("https:"):
            return None
        return self.trust or ssl.create_default_context()

    def encode(self, request: Request) -> bytes:
        head = f"{request.method} {self.prefix}{request.target} HTTP/1.1\r\n".encode("ascii")
        if request.body is None:
            return head + self.lines + b"\r\n"
        length = len(request.body)
        kind = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % length
        return head + self.lines + kind + request.body


def address(url: str, token: str | None = None, tls: ssl.SSLContext | None = None) -> Address:
    """The address of `url`; a ValueError says in one line what is wrong with it or the token.

    Without a token, the one in the environment counts.
    """
    token = (os.environ.get(TOKEN_VARIABLE) or None) if token is None else token
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError as fault:
        raise ValueError(f"url {url!r} is none: {fault}") from None
    # A name or password in it would end up in messages; a query belongs to a request.
    odd = parts.username or parts.password or parts.query or parts.fragment
    if parts.scheme not in ("http", "https") or not host or odd or not _plain(url):
        shown = "given" if odd else repr(url)
        raise ValueError(f"the url {shown} is none of a service; expected http(s)://HOST[:PORT]")
    if token is not None and (not token or not _plain(token)):
        raise ValueError("the token is empty or has blanks or unusual signs; expected ASCII")
    lines = f"Host: {parts.netloc}\r\nAccept: application/json\r\nUser-Agent: loadmaster\r\n"
    if token is not None:
        lines += f"Authorization: Bearer {token}\r\n"
    return Address(
        url=url.rstrip("/"),
        host=host,
        port=port or (443 if parts.scheme == "https" else 80),
        prefix=parts.path.rstrip("/"),
        lines=lines.encode("ascii"),
        trust=tls,
    )


def _plain(text: str) -> bool:
    """Only signs that can stand in a header and do not end it."""
    return text.isascii() and text.isprintable() and " " not in text
