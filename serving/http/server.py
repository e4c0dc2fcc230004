"""The gateway's own ear: an HTTP server on one address, in the replica's loop.

Serve's proxy takes ten milliseconds a request, its HAProxy one, but that listens on every
interface. A listener of our own is the fastest of them and listens where it is told to, nowhere
else. `docs/serving.md` has the figures.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

TAKEN_S = 30.0  # how long a predecessor may take to let go of the port
AGAIN_S = 0.2
HEAD_BYTES = 64 << 10  # of a request's line and headers
HEAD_S = 20.0  # within which they have to arrive


class _Protocol(HttpToolsProtocol):
    """With an end to headers: the parser itself would gather them for ever.

    Who connects and says nothing, or half of it, is hung up on: he takes a place all the same.
    """

    _in_head, _head_bytes = False, 0
    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._be_patient()

    def connection_lost(self, exc: Exception | None) -> None:
        self._patience_ends()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._patience_ends()
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        went_on = self._in_head
        super().data_received(data)
        if went_on and self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self.send_400_response("Headers are too large.")
        # Nothing is under way, and whatever came has ended uvicorn's own waiting.
        if self._in_head or self.cycle is None or self.cycle.response_complete:
            self._be_patient()

    def _be_patient(self) -> None:
        if self._patience is None and not self.transport.is_closing():
            self._patience = self.loop.call_later(HEAD_S, self.transport.close)

    def _patience_ends(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are Ray's."""
        yield


@contextlib.asynccontextmanager
async def listen(app: Any, host: str, port: int) -> AsyncIterator[None]:
    """Requests are answered while it lasts; those under way are finished at the end."""
    server = _Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            http=_Protocol,
            proxy_headers=False,  # or anybody could give himself another address at every request
            lifespan="off",  # the application is alive already
            ws="none",
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=3,
        )
    )
    task = asyncio.get_running_loop().create_task(server.serve([await _bound(host, port)]))
    try:
        yield
    finally:
        server.should_exit = True
        await asyncio.wait({task}, timeout=5.0)


async def _bound(host: str, port: int) -> socket.socket:
    """A replica that replaces another may have to wait for its port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    waited_s = 0.0
    while True:
        ear = socket.socket(family)
        ear.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            ear.bind((host, port))
        except OSError as fault:
            ear.close()
            if fault.errno != errno.EADDRINUSE or waited_s > TAKEN_S:
                raise
            await asyncio.sleep(AGAIN_S)
            waited_s += AGAIN_S
        else:
            ear.setblocking(False)
            return ear
