"""A connection on asyncio's event loop: one request at a time, its answer in a future."""

from __future__ import annotations

import asyncio
import contextlib

from loadmaster.serving.client.address import Address
from loadmaster.serving.client.connection import ENDED, has_news, told
from loadmaster.serving.client.http1 import Answer, BrokenError, MalformedError, ResponseParser


class Channel(asyncio.Protocol):
    """Raises BrokenError where the connection fails; how long to wait is the caller's affair."""

    def __init__(self, max_answer: int) -> None:
        self._max_answer = max_answer
        self._parser = ResponseParser(max_answer)
        self._transport: asyncio.Transport | None = None
        self._awaited: asyncio.Future[Answer] | None = None  # None between two requests

    async def exchange(self, data: bytes) -> Answer:
        """Send a request, receive its answer."""
        if self._transport is None:
            raise BrokenError(ENDED, sent=False)
        self._parser = ResponseParser(self._max_answer)
        self._awaited = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        try:
            return await self._awaited
        finally:
            self._awaited = None

    def stale(self) -> bool:
        if self._transport is None:
            return True
        # Where the event loop was held up, it may not have noticed yet.
        return has_news(self._transport.get_extra_info("socket"))

    def close(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            with contextlib.suppress(RuntimeError):  # its event loop has ended before it
                transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._awaited is None or self._awaited.done():
            self.close()  # what nobody asked for: the connection is out of step
            return
        try:
            answer = self._parser.feed(data)
        except MalformedError as fault:
            self._awaited.set_exception(fault)
        else:
            if answer is not None:
                self._awaited.set_result(answer)

    def connection_lost(self, fault: Exception | None) -> None:
        self._transport = None
        if self._awaited is None or self._awaited.done():
            return
        answer = self._parser.end()
        if answer is not None:
            self._awaited.set_result(answer)
        else:
            why = told(fault) if isinstance(fault, OSError) else ENDED
            self._awaited.set_exception(BrokenError(why, sent=True))


async def open_channel(address: Address, max_answer: int) -> Channel:
    try:
        _, channel = await asyncio.get_running_loop().create_connection(
            lambda: Channel(max_answer), address.host, address.port, ssl=address.tls
        )
    except TimeoutError:
        raise
    except OSError as fault:
        raise BrokenError(told(fault), sent=False) from None
    return channel
