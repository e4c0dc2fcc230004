"""Proof that both ends of a connection hold the key of the service, before anything else is sent.

The control process draws the key when it starts, and the others get it from there through Ray. Each
end sends random bytes and expects their keyed digest (HMAC with SHA-256); the key itself is not
sent. What follows is not encrypted, as Ray's own connections between nodes are not.
"""

import asyncio
import hmac
import secrets
import socket

KEY_BYTES = SIZE = 32  # of the key; of random bytes and digests
TIMEOUT_S = 5.0
ACCEPTING, CONNECTING = b"accepts", b"connects"  # a digest is not valid for the other end


class HandshakeError(ConnectionError):
    """The other end does not hold the key, or closed the connection."""


async def open_connection(host: str, port: int, key: bytes) -> socket.socket:
    """Connect to a process of the service; raises OSError if that fails."""
    loop = asyncio.get_running_loop()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setblocking(False)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        async with asyncio.timeout(TIMEOUT_S):
            await loop.sock_connect(opened, (host, port))
        await prove(opened, key, accepts=False)
    except BaseException:
        opened.close()
        raise
    return opened


async def prove(peer: socket.socket, key: bytes, *, accepts: bool) -> None:
    """Exchange proofs on a socket that does not block; raises OSError if the other end has none."""
    loop = asyncio.get_running_loop()
    own, other = (ACCEPTING, CONNECTING) if accepts else (CONNECTING, ACCEPTING)
    drawn = secrets.token_bytes(SIZE)
    async with asyncio.timeout(TIMEOUT_S):
        await loop.sock_sendall(peer, drawn)
        received = await _receive(peer)
        await loop.sock_sendall(peer, _digest(key, own, received))
        if not hmac.compare_digest(await _receive(peer), _digest(key, other, drawn)):
            raise HandshakeError("the other process does not hold the key of the service")


def _digest(key: bytes, end: bytes, drawn: bytes) -> bytes:
    return hmac.digest(key, end + drawn, "sha256")


async def _receive(peer: socket.socket) -> bytes:
    received = b""
    while len(received) < SIZE:
        more = await asyncio.get_running_loop().sock_recv(peer, SIZE - len(received))
        if not more:
            raise HandshakeError("the other process closed the connection")
        received += more
    return received


def listening_socket(host: str) -> socket.socket:
    """A TCP socket at a free port of an address of this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.bind((host, 0))
    listener.listen(128)
    return listener
