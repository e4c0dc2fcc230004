"""Requests to an ASGI application without a network."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def send_request(
    app: Any,
    method: str,
    path: str,
    body: Any = None,
    headers: Mapping[str, str] | Sequence[tuple[str, str]] = (),
    parts: int = 1,
    stalls: bool = False,
    address: str = "127.0.0.1",
    host: str | None = "127.0.0.1",
) -> Answer:
    """Send `body` as JSON, or unchanged if it is bytes, in that many parts.

    With `stalls` the body never ends. `address` is the client's. `host` is sent unless `headers`
    has a Host; None: no Host at all.
    """
    path, _, query = path.partition("?")
    raw = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    size = max(1, -(-len(raw) // parts))
    pieces = [raw[start : start + size] for start in range(0, len(raw), size)] or [b""]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if not pieces and stalls:
            await asyncio.sleep(60)
        if not pieces:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces) or stalls}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
    if host is not None and not any(name.lower() == "host" for name, _ in pairs):
        pairs.append(("Host", host))
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http",
        "method": method, "path": path, "raw_path": path.encode(), "root_path": "",
        "query_string": query.encode(), "client": (address, 1), "server": ("127.0.0.1", 80),
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in pairs],
    }  # fmt: skip
    await app(scope, receive, send)
    start = next(message for message in sent if message["type"] == "http.response.start")
    content = b"".join(message.get("body", b"") for message in sent)
    return Answer(start["status"], {k.decode(): v.decode() for k, v in start["headers"]}, content)
