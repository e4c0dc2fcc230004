"""The link of a gateway or a worker to the control process, renewed when it is lost."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from loadmaster.serving.decisions.request import line_of
from loadmaster.serving.decisions.tenant_database import SavedTenant, TenantRows
from loadmaster.serving.replicas.link import Handler, LinkLostError, Peer, connect
from loadmaster.serving.replicas.membership import Signal

log = logging.getLogger(__name__)

RETRY_S = 0.1
CALL_S = 10.0  # how long a call waits for a link

Open = Callable[[Mapping[str, Handler]], Awaitable[Peer]]
Where = Callable[[], Awaitable[list[Any]]]  # host, port and key of the control process


def find_control(where: Where) -> Open:
    """Connect to the control process, which Serve may have replaced."""

    async def open_link(handlers: Mapping[str, Handler]) -> Peer:
        host, port, key = await where()
        return await connect(host, port, key, handlers)

    return open_link


class ControlClient:
    """Calls to the control process. Called by one event loop only."""

    def __init__(self, open_link: Open) -> None:
        self._open_link = open_link
        self._peer: Peer | None = None
        self._opened = Signal()

    async def run(
        self, handlers: Mapping[str, Handler], join: Callable[[Peer], Awaitable[None]]
    ) -> None:
        """Hold a link. `join` is called with each new one before others may use it."""
        while True:
            peer = None
            try:
                peer = await self._open_link(handlers)
                await join(peer)
                self._peer = peer
                self._opened.fire()
                await peer.wait_lost()
            except Exception as fault:
                log.info("no link to the control process: %s", line_of(fault))
            finally:
                self._peer = None
                if peer is not None:
                    peer.close()
            await asyncio.sleep(RETRY_S)

    async def call(self, name: str, body: Any = None, wait_s: float = CALL_S) -> Any:
        """Call the control process; waits for a link, and raises LinkLostError without one."""
        until = time.monotonic() + wait_s
        while (peer := self._peer) is None or not peer.is_up:
            if (left_s := until - time.monotonic()) <= 0:
                raise LinkLostError("the control process is not up")
            await self._opened.wait(left_s)
        return await peer.call(name, body)

    def renew(self) -> None:
        """Close the link; a new one is opened."""
        if self._peer is not None:
            self._peer.close()


class RemoteDatabase:
    """The tenants' database of a system, in the control process."""

    def __init__(self, control: ControlClient, system: str) -> None:
        self._control, self._system = control, system

    async def load(self, tenant: str) -> SavedTenant:
        return SavedTenant(*await self._control.call("load", [self._system, tenant]))

    async def write(self, rows: TenantRows) -> None:
        await self._control.call("write", [self._system, rows])
