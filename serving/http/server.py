"""HTTP listener of the gateway: uvicorn on one address, in the replica's event loop.

Serve's own proxy takes ten milliseconds a request. Its HAProxy takes one, but listens on every
interface. This listener is the fastest of the three and listens on the configured address only.
"""

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

PORT_FREE_S = 30.0  # how long a previous replica may take to release the port
RETRY_S = 0.2
MAX_HEADER_BYTES = 64 << 10  # of the request line and the headers
HEADER_TIMEOUT_S = 20.0


class _Protocol(HttpToolsProtocol):
    """Close connections whose headers do not arrive within HEADER_TIMEOUT_S, or are too large.

    The parser itself has no limit, and a silent connection takes up resources as any other.
    """

    _in_headers, _header_bytes = False, 0
    _header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._in_headers, self._header_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._stop_header_timer()
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        in_headers_before = self._in_headers
        super().data_received(data)
        if in_headers_before and self._in_headers:
            self._header_bytes += len(data)
            if self._header_bytes > MAX_HEADER_BYTES:
                self.send_400_response("Headers are too large.")
        # No request is under way, and the data has stopped uvicorn's keep-alive timer.
        if self._in_headers or self.cycle is None or self.cycle.response_complete:
            self._start_header_timer()

    def _start_header_timer(self) -> None:
        if self._header_timer is None and not self.transport.is_closing():
            self._header_timer = self.loop.call_later(HEADER_TIMEOUT_S, self.transport.close)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to Ray."""
        yield


@contextlib.asynccontextmanager
async def listen(app: Any, host: str, port: int) -> AsyncIterator[None]:
    """Answer requests inside the context; those under way are finished at its end."""
    server = _Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            http=_Protocol,
            proxy_headers=False,  # or a client could claim another address with every request
            lifespan="off",  # the application has started already
            ws="none",
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=3,
        )
    )
    task = asyncio.get_running_loop().create_task(server.serve([await _bind(host, port)]))
    try:
        yield
    finally:
        server.should_exit = True
        await asyncio.wait({task}, timeout=5.0)


async def _bind(host: str, port: int) -> socket.socket:
    """Bind the port, and wait for a previous replica to release it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    waited_s = 0.0
    while True:
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as fault:
            listener.close()
            if fault.errno != errno.EADDRINUSE or waited_s > PORT_FREE_S:
                raise
            await asyncio.sleep(RETRY_S)
            waited_s += RETRY_S
        else:
            listener.setblocking(False)
            return listener
