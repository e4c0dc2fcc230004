"""HTTP listener of the gateway: uvicorn on one address, in the replica's event loop.

Serve's own proxy takes ten milliseconds a request. Its HAProxy takes one, but listens on every
interface. This listener is the fastest of the three and listens on the configured address only.
"""

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from loadmaster.serving.http.handover import Handover, requests_before_move

PORT_FREE_S = 30.0  # how long another program may take to release the port
RETRY_S = 0.2
MAX_HEADER_BYTES = 64 << 10  # of the path and the headers, and of trailers
HEADER_TIMEOUT_S = 20.0
CONNECTION = "loadmaster.connection"  # in a request's scope
LINGER_S, LINGER_BYTES = 1.0, 1 << 20  # between the response 431 and the connection's end
_TOO_LARGE = b'{"error":"the headers are too large; expected at most %d bytes","field":null}' % (
    MAX_HEADER_BYTES
)
TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%b"
) % (len(_TOO_LARGE), _TOO_LARGE)


class _Protocol(HttpToolsProtocol):
    """Close connections whose headers do not arrive within HEADER_TIMEOUT_S, or are too large.

    The parser itself has no limit, and an idle connection takes up resources as any other. Bytes
    are counted by segment; headers in segments that may hold more than headers are measured.
    """

    _in_headers, _in_message, _is_refused = False, False, False
    _has_body, _has_ended, _segment_bytes = False, False, 0  # of the latest segment
    _received_bytes = 0  # in segments of headers or trailers only
    _most_bytes = 0  # that the headers of this request can have, by the segments so far
    _header_timer: asyncio.TimerHandle | None = None
    _owner, _forwarded = "", 0  # gateway of the latest requests; how many in a row were its

    def __init__(self, handover: Handover | None, *arguments: Any, moves: int = 0, **more: Any):
        """`moves`: how often the connection was passed to another gateway."""
        super().__init__(*arguments, **more)
        self._handover, self._moves = handover, moves

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if not self._moves:
            self._start_header_timer()
            return
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._in_headers = self._in_message = True
        self._received_bytes, self._most_bytes = 0, self._segment_bytes
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if self._most_bytes > MAX_HEADER_BYTES:
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > MAX_HEADER_BYTES:
                self._refuse_headers()
                raise ValueError("headers are too large")  # stops the parser
        self._in_headers = False
        self._stop_header_timer()
        if self._handover is not None:
            cast(dict[str, Any], self.scope)[CONNECTION] = self
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._has_body = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_message, self._has_ended = False, True
        super().on_message_complete()

    def note_owner(self, gateway: str) -> None:
        """The request was of a tenant that this other gateway owns ("": that this one owns)."""
        self._forwarded = self._forwarded + 1 if gateway == self._owner else 1
        self._owner = gateway

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._owner and self._forwarded >= requests_before_move(self._moves):
            self.loop.call_soon(self._move)  # when the response is written

    def _move(self) -> None:
        """Pass the connection to the owner of its tenant, unless another request has begun."""
        transport = self.transport
        has_request = self._in_message or not self.cycle.response_complete  # the latest, if several
        is_writing = transport.is_closing() or transport.get_write_buffer_size()
        if self._handover is None or has_request or is_writing:
            return
        transport.pause_reading()  # what arrives from now on is the other gateway's to read
        descriptor = transport.get_extra_info("socket").fileno()
        if self._handover.send(descriptor, self._owner, self._moves + 1):
            transport.abort()
        else:
            self._forwarded = 0
            transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            self._received_bytes += len(data)
            if self._received_bytes > LINGER_BYTES:
                self.transport.close()
            return
        self._has_body = self._has_ended = False
        self._segment_bytes = len(data)
        self._most_bytes += len(data)
        super().data_received(data)
        if self._has_body:
            self._received_bytes = 0
        elif self._in_message and not self._has_ended:
            self._received_bytes += len(data)
            if self._received_bytes > MAX_HEADER_BYTES:
                self._refuse_headers()
        # No request is under way, and the data has stopped uvicorn's keep-alive timer.
        if self._in_headers or self.cycle is None or self.cycle.response_complete:
            self._start_header_timer()

    def send_400_response(self, msg: str) -> None:
        if not self._is_refused:  # else the response has been sent
            super().send_400_response(msg)

    def _refuse_headers(self) -> None:
        """Respond with 431 and close the connection.

        What the client still sends is ignored, up to LINGER_BYTES in LINGER_S: closing at once
        would reset the connection, and the response could be lost.
        """
        if self._is_refused:
            return
        self._is_refused = True
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        self.transport.write(TOO_LARGE)
        self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.close)

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
async def listen(
    app: Any, host: str, port: int, handover: Handover | None = None
) -> AsyncIterator[None]:
    """Answer requests inside the context; those under way are finished at its end."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        http=cast(Any, partial(_Protocol, handover)),
        proxy_headers=False,  # or a client could claim another address with every request
        lifespan="off",  # the application has started already
        ws="none",
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=3,
    )
    server, loop = _Server(config), asyncio.get_running_loop()
    adopted: set[asyncio.Task[Any]] = set()  # the event loop keeps weak references only

    def adopt(connection: socket.socket, moves: int) -> None:
        """Continue a connection of another gateway."""
        made = partial(_Protocol, handover, config, server.server_state, {}, moves=moves)
        task = loop.create_task(loop.connect_accepted_socket(made, connection))
        adopted.add(task)
        task.add_done_callback(adopted.discard)

    task = loop.create_task(server.serve([await _bind(host, port)]))
    if handover is not None:
        handover.start(adopt)
    try:
        yield
    finally:
        if handover is not None:
            handover.close()
        server.should_exit = True
        await asyncio.wait({task}, timeout=5.0)


async def _bind(host: str, port: int) -> socket.socket:
    """Bind the port, and wait for another program to release it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    waited_s = 0.0
    while True:
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Gateways of a machine share the port; the kernel spreads connections over them. Only
        # processes of the same user can.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
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
