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

TAKEN_S = 30.0  # how long a predecessor may take to let go of the port
AGAIN_S = 0.2


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are Ray's."""
        yield


@contextlib.asynccontextmanager
async def listening(app: Any, host: str, port: int) -> AsyncIterator[None]:
    """Requests are answered while it lasts; those under way are finished at the end."""
    server = _Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
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
