"""The workers of a system as a gateway calls them: a connection to each; a circuit breaker."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Sequence
from typing import Protocol

from loadmaster.serving.replicas.membership import machine
from loadmaster.serving.worker.rpc import (
    DECIDE,
    LEARN,
    PROPOSE,
    PolicyCall,
    RpcAddress,
    RpcClient,
)

log = logging.getLogger(__name__)

RECONNECT_S = 0.5
SPILL_S = 0.03  # expected wait for a worker before the next one is preferred


class Worker(Protocol):
    """A system's workers as the gateway calls them. Replies are JSON: see `decisions/request`."""

    def decide(
        self, version: str, folder: str, request: bytes, deadline: float, memory: str = ""
    ) -> Awaitable[bytes]: ...

    def propose(
        self, version: str, folder: str, request: bytes, memory: str = ""
    ) -> Awaitable[bytes]: ...

    def learn(self, version: str, folder: str, request: bytes) -> Awaitable[bytes]: ...

    @property
    def is_up(self) -> bool: ...


class ConnectionPool:
    """Connections to workers; lost ones are replaced as long as their worker is listed."""

    def __init__(self) -> None:
        self._key = b""
        self._addresses: dict[str, RpcAddress] = {}
        self._clients: dict[str, RpcClient] = {}
        self._connecting: dict[str, asyncio.Task[None]] = {}
        self._rank, self._size = 0, 1  # of this gateway among those of the machine
        self._order: dict[str, int] = {}  # by worker: the lower, the sooner it is called

    def prefer(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self._sort()

    def set_workers(self, addresses: Sequence[RpcAddress], key: bytes, *, keep: bool) -> None:
        """The workers that there are now. Calls under way to others are finished.

        With `keep`, connected ones stay: a new control process does not have all workers yet.
        """
        self._key = key
        connected = {name for name, one in self._clients.items() if one.is_up and keep}
        kept = {name: one for name, one in self._addresses.items() if name in connected}
        self._addresses = kept | {one.name: one for one in addresses}
        self._sort()
        self._drop()

    def _sort(self) -> None:
        """Order the workers: those of this machine before others, each gateway's own first."""
        here = sorted(name for name, one in self._addresses.items() if one.machine == machine())
        shared = min(self._size, len(here))
        self._order = dict.fromkeys(self._addresses, shared)
        for place, name in enumerate(here):
            self._order[name] = (place - self._rank) % shared

    def connection(self) -> RpcClient | None:
        """A connection with few pending calls; None if there is none yet.

        Calls to one worker share writes, and a worker decides for one gateway at a time, so each
        gateway has its own; a call goes to the next where it would wait for SPILL_S.
        """
        if len(self._clients) < len(self._addresses) or not all(
            client.is_up for client in self._clients.values()
        ):
            self._drop()
        found = min(
            self._clients.items(),
            key=lambda one: (one[1].wait_s // SPILL_S, self._order.get(one[0], 0), one[1].waiting),
            default=None,
        )
        return None if found is None else found[1]

    def _drop(self) -> None:
        """Forget connections that are lost or whose worker is gone; connect to missing ones."""
        for name, client in list(self._clients.items()):
            if not client.is_up or name not in self._addresses:
                del self._clients[name]
                if not client.waiting:
                    client.close()
        for name, address in self._addresses.items():
            if name not in self._clients and name not in self._connecting:
                task = asyncio.get_running_loop().create_task(self._connect(address))
                self._connecting[name] = task

    async def _connect(self, address: RpcAddress) -> None:
        try:
            client = await RpcClient.connect(address, self._key)
            if self._addresses.get(address.name) == address:
                self._clients[address.name] = client
            else:
                client.close()
        except (OSError, TimeoutError) as fault:
            log.info("no socket to a worker: %r", fault)
            await asyncio.sleep(RECONNECT_S)
        finally:
            del self._connecting[address.name]


class WorkerPool:
    """All workers of a system. Called by the event loop only."""

    def __init__(self) -> None:
        # Calls in the shadow have connections of their own, so that none that acts waits for them.
        self._active, self._shadow = ConnectionPool(), ConnectionPool()

    def set_workers(
        self, addresses: Sequence[RpcAddress], key: bytes, *, keep: bool = False
    ) -> None:
        """`key`: of the service, for workers of other machines."""
        self._active.set_workers(addresses, key, keep=keep)
        self._shadow.set_workers(addresses, key, keep=keep)

    def prefer(self, rank: int, size: int) -> None:
        """`rank`: of this gateway among the `size` gateways of the machine."""
        self._active.prefer(rank, size)
        self._shadow.prefer(rank, size)

    @property
    def is_up(self) -> bool:
        return self._active.connection() is not None

    def decide(
        self, version: str, folder: str, request: bytes, deadline: float, memory: str = ""
    ) -> Awaitable[bytes]:
        if (client := self._active.connection()) is None:
            raise ConnectionError("no worker is up")
        if client.is_remote:
            deadline = math.inf  # machines do not share a clock
        return client.call(DECIDE, PolicyCall(version, folder, request, deadline, memory))

    def propose(
        self, version: str, folder: str, request: bytes, memory: str = ""
    ) -> Awaitable[bytes]:
        if (client := self._shadow.connection()) is None:
            raise ConnectionError("no worker is up")
        return client.call(PROPOSE, PolicyCall(version, folder, request, memory=memory))

    def learn(self, version: str, folder: str, request: bytes) -> Awaitable[bytes]:
        if (client := self._shadow.connection()) is None:
            raise ConnectionError("no worker is up")
        return client.call(LEARN, PolicyCall(version, folder, request))


class CircuitBreaker:
    """Stops calls after `failures` in a row; then lets one through every `retry_s`."""

    def __init__(self, failures: float = 3, retry_s: float = 1.0) -> None:
        self._most, self._retry_s = failures, retry_s
        self._failed = 0
        self._next_try_s = 0.0
        self.successes = 0

    @property
    def is_open(self) -> bool:
        return self._failed >= self._most

    def allows(self, now_s: float) -> bool:
        """Whether to call the worker now."""
        if not self.is_open:
            return True
        if now_s < self._next_try_s:
            return False
        self._next_try_s = now_s + self._retry_s
        return True

    def succeeded(self) -> None:
        self._failed = 0
        self.successes += 1

    def failed(self, now_s: float) -> None:
        self._failed += 1
        self._next_try_s = now_s + self._retry_s
