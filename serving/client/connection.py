"""Connections of the two clients, and the pool that keeps them open between calls.

The methods of the blocking connection are coroutines that never suspend.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
from collections.abc import Callable

from .http1 import Address, BrokenError, MalformedError, Response, ResponseParser

Remaining = Callable[[], float]  # seconds until the deadline; raises once it has passed

CLOSED = "the connection closed before the response was complete"
CHUNK = 256 * 1024  # bytes of one send or receive
POOL_SIZE = 16


class Connection:
    """A blocking connection. Raises BrokenError if it fails, TimeoutError at the deadline."""

    def __init__(self, address: Address, max_body: int, remaining: Remaining) -> None:
        self._max_body = max_body
        try:
            self._socket = _connect(address, remaining)
        except TimeoutError:
            raise
        except OSError as fault:
            raise BrokenError(_reason(fault), sent=False) from None

    async def exchange(self, data: bytes, remaining: Remaining) -> Response:
        sent = 0
        try:
            try:
                while sent < len(data):
                    self._socket.settimeout(remaining())
                    sent += self._socket.send(data[sent : sent + CHUNK])
            except (BrokenPipeError, ConnectionResetError):
                if not sent:
                    raise
                # A service may reject a large request, and close, before all of it was sent.
            return self._receive(ResponseParser(self._max_body), remaining)
        except TimeoutError:
            raise
        except OSError as fault:
            raise BrokenError(_reason(fault), sent > 0) from None

    def _receive(self, parser: ResponseParser, remaining: Remaining) -> Response:
        while True:
            self._socket.settimeout(remaining())
            data = self._socket.recv(CHUNK)
            response = parser.feed(data) if data else parser.end()
            if response is not None:
                return response
            if not data:
                raise BrokenError(CLOSED, sent=True)

    def is_stale(self) -> bool:
        return _is_readable(self._socket.fileno())

    def close(self) -> None:
        self._socket.close()


def _connect(address: Address, remaining: Remaining) -> socket.socket:
    """Connect to the first of the host's addresses that accepts.

    The name lookup is not bounded by the deadline.
    """
    fault: OSError | None = None
    kind = socket.SOCK_STREAM
    for family, _, protocol, _, where in socket.getaddrinfo(address.host, address.port, type=kind):
        opened = socket.socket(family, kind, protocol)
        try:
            opened.settimeout(remaining())
            opened.connect(where)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.tls is None:
                return opened
            opened.settimeout(remaining())
            return address.tls.wrap_socket(opened, server_hostname=address.host)
        except BaseException as failed:
            opened.close()
            if not isinstance(failed, OSError) or isinstance(failed, TimeoutError):
                raise
            fault = failed
    raise fault or OSError(f"{address.host} has no address")


class AsyncConnection(asyncio.Protocol):
    """A connection on asyncio's event loop, with the errors of the blocking one."""

    def __init__(self, max_body: int) -> None:
        self._max_body = max_body
        self._parser = ResponseParser(max_body)
        self._transport: asyncio.Transport | None = None
        self._response: asyncio.Future[Response] | None = None  # None between two requests

    @classmethod
    async def open(cls, address: Address, max_body: int, remaining: Remaining) -> AsyncConnection:
        try:
            async with asyncio.timeout(remaining()):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: cls(max_body), address.host, address.port, ssl=address.tls
                )
        except TimeoutError:
            raise
        except OSError as fault:
            raise BrokenError(_reason(fault), sent=False) from None
        return connection

    async def exchange(self, data: bytes, remaining: Remaining) -> Response:
        if self._transport is None:
            raise BrokenError(CLOSED, sent=False)
        self._parser = ResponseParser(self._max_body)
        self._response = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(remaining()):
                self._transport.write(data)
                return await self._response
        finally:
            self._response = None

    def is_stale(self) -> bool:
        # A busy event loop may not have processed the end of the connection yet.
        if self._transport is None:
            return True
        return _is_readable(self._transport.get_extra_info("socket").fileno())

    def close(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed already
                transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._response is None or self._response.done():
            self.close()  # data without a request: out of step
            return
        try:
            response = self._parser.feed(data)
        except MalformedError as fault:
            self._response.set_exception(fault)
        else:
            if response is not None:
                self._response.set_result(response)

    def connection_lost(self, fault: Exception | None) -> None:
        self._transport = None
        if self._response is None or self._response.done():
            return
        if (response := self._parser.end()) is not None:
            self._response.set_result(response)
        else:
            reason = _reason(fault) if isinstance(fault, OSError) else CLOSED
            self._response.set_exception(BrokenError(reason, sent=True))


def _is_readable(file: int) -> bool:
    """Whether an idle connection has input: only if the service closed it or is out of step."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(0))


def _reason(fault: OSError) -> str:
    """The error's text without numbers and addresses."""
    if isinstance(fault, ConnectionError) and fault.errno:
        return os.strerror(fault.errno).lower()
    return (fault.strerror or str(fault) or type(fault).__name__).lower()


PooledConnection = Connection | AsyncConnection


class ConnectionPool:
    """Idle connections, last in first out, so that surplus ones become stale and are dropped.

    Connections belong to the process or event loop that opened them, as `owner` identifies it: a
    forked process must not read its parent's responses. List append and pop are atomic, so threads
    need no lock.
    """

    def __init__(self, owner: Callable[[], object]) -> None:
        self._current_owner = owner
        self._owner: object = None
        self._idle: list[PooledConnection] = []

    def take(self) -> PooledConnection | None:
        """Return a usable connection, or None."""
        if self._owner != (owner := self._current_owner()):
            self.clear()
            self._owner = owner
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if not connection.is_stale():
                return connection
            connection.close()

    def put(self, connection: PooledConnection) -> None:
        if len(self._idle) < POOL_SIZE and self._owner == self._current_owner():
            self._idle.append(connection)
        else:
            connection.close()

    def clear(self) -> None:
        while self._idle:
            self._idle.pop().close()
