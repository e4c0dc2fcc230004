"""A connection that blocks, but never beyond the deadline it is given."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable
from typing import Protocol

from loadmaster.serving.client.address import Address
from loadmaster.serving.client.http1 import Answer, BrokenError, ResponseParser

Left = Callable[[], float]  # seconds until the deadline; raises when it is over

ENDED = "the connection ended before the answer did"
AT_ONCE = 256 * 1024  # bytes


class HasFile(Protocol):
    def fileno(self) -> int: ...


class Connection:
    """Raises BrokenError where the connection fails, TimeoutError where time is up."""

    def __init__(self, address: Address, left: Left) -> None:
        try:
            self._socket = _connected(address, left)
        except TimeoutError:
            raise
        except OSError as fault:
            raise BrokenError(told(fault), sent=False) from None

    def exchange(self, data: bytes, left: Left, max_answer: int) -> Answer:
        """Send a request, receive its answer."""
        sent = 0
        try:
            try:
                while sent < len(data):
                    self._socket.settimeout(left())
                    sent += self._socket.send(data[sent : sent + AT_ONCE])
            except (BrokenPipeError, ConnectionResetError):
                if not sent:
                    raise
                # A service that refuses a large request may answer and hang up in the midst of it.
            return self._receive(ResponseParser(max_answer), left)
        except TimeoutError:
            raise
        except OSError as fault:
            raise BrokenError(told(fault), sent > 0) from None

    def _receive(self, parser: ResponseParser, left: Left) -> Answer:
        while True:
            self._socket.settimeout(left())
            data = self._socket.recv(AT_ONCE)
            answer = parser.feed(data) if data else parser.end()
            if answer is not None:
                return answer
            if not data:
                raise BrokenError(ENDED, sent=True)

    def stale(self) -> bool:
        return has_news(self._socket)

    def close(self) -> None:
        self._socket.close()


def _connected(address: Address, left: Left) -> socket.socket:
    """To the first of the host's addresses that answers. Their lookup alone knows no deadline."""
    fault: OSError | None = None
    kind = socket.SOCK_STREAM
    for family, _, protocol, _, where in socket.getaddrinfo(address.host, address.port, type=kind):
        opened = socket.socket(family, kind, protocol)
        try:
            opened.settimeout(left())
            opened.connect(where)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.tls is None:
                return opened
            opened.settimeout(left())
            return address.tls.wrap_socket(opened, server_hostname=address.host)
        except BaseException as failed:
            opened.close()
            if not isinstance(failed, OSError) or isinstance(failed, TimeoutError):
                raise
            fault = failed
    raise fault or OSError(f"{address.host} has no address")


def has_news(connection: HasFile) -> bool:
    """Between two requests there is nothing to read, unless the other side has hung up."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


def told(fault: OSError) -> str:
    """In words, without numbers and addresses."""
    if isinstance(fault, ConnectionError) and fault.errno:
        return os.strerror(fault.errno).lower()
    return (fault.strerror or str(fault) or type(fault).__name__).lower()
