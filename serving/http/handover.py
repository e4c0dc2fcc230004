"""Pass connections between the gateways of a machine: file descriptors over Unix datagrams.

The kernel chooses the gateway that accepts a connection; requests of tenants that another gateway
owns are forwarded to it. A connection whose requests keep going to one gateway is better there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from array import array
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)

FIRST_REQUESTS = 8  # in a row that are forwarded to one gateway, before a connection moves there
MAX_DOUBLINGS = 10

Accept = Callable[[socket.socket, int], None]  # a connection, and how often it has moved


def requests_before_move(moves: int) -> int:
    """Each move doubles the number, so that requests of several tenants do not keep it moving."""
    return FIRST_REQUESTS << min(moves, MAX_DOUBLINGS)


class Handover:
    """A gateway's end. Called by one event loop only."""

    def __init__(self, folder: Path, name: str) -> None:
        """`folder` is the same for all gateways of the machine, and for this user only."""
        self._folder, self._name = folder, name
        self._socket: socket.socket | None = None

    def start(self, accept: Accept) -> None:
        """Accept connections of other gateways; without success, none are passed."""
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            bound.setblocking(False)
            bound.bind(str(self._path(self._name)))
        except OSError as fault:  # such as a path of more than 107 bytes
            bound.close()
            log.warning("connections are not passed between gateways: %r", fault)
            return
        self._socket = bound
        asyncio.get_running_loop().add_reader(bound, self._receive, bound, accept)

    def close(self) -> None:
        if self._socket is None:
            return
        asyncio.get_running_loop().remove_reader(self._socket)
        self._path(self._name).unlink(missing_ok=True)
        self._receive(self._socket, lambda connection, _: connection.close())
        self._socket.close()
        self._socket = None

    def send(self, descriptor: int, gateway: str, moves: int) -> bool:
        """Pass a copy of a connection; False if that gateway is not on this machine, or is gone."""
        if self._socket is None:
            return False
        try:
            # socket.send_fds ignores the address.
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [descriptor]))
            data, path = bytes([min(moves, 255)]), str(self._path(gateway))
            self._socket.sendmsg([data], [rights], 0, path)
        except OSError as fault:
            log.debug("a connection stays: %r", fault)
            return False
        return True

    def _receive(self, bound: socket.socket, accept: Accept) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                data, descriptors, _, _ = socket.recv_fds(bound, 1, 1)
                for descriptor in descriptors:
                    connection = socket.socket(fileno=descriptor)
                    connection.setblocking(False)
                    accept(connection, data[0])

    def _path(self, gateway: str) -> Path:
        return self._folder / f"g-{gateway[:16]}"
