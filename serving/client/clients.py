"""The blocking client and the asyncio client.

Both run the coroutines of `BaseClient`. Connections of the blocking client block where those of the
asyncio client suspend, so its coroutines end without an event loop.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import os
import random
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from . import calls
from .calls import Call, Mode, Payload
from .connection import AsyncConnection, Connection, ConnectionPool, PooledConnection, Remaining
from .errors import ServiceError
from .http1 import MAX_BODY, TOKEN_VARIABLE, Request, Response, parse_address
from .responses import Decision, PolicyName, Reason
from .retry import ATTEMPT_ERRORS, RetryPolicy

P = ParamSpec("P")
T = TypeVar("T")
Fallback = Callable[[str, Any], Mapping[str, Any]]  # (system, state) -> decision

DEFAULT_URL = "http://127.0.0.1:8700"

_log = logging.getLogger("loadmaster.client")


class BaseClient(ABC):
    """Settings of a client.

    url         URL of the service; https for TLS
    token       bearer token; by default the environment variable `token_variable`, if not None
    deadline_s  limit of a whole call, all attempts and pauses included
    retries     maximum number of repetitions of a call, where repeating is safe
    fallback    fallback(system, state) decides if the service does not; source is then "local"
    tls         TLS context, if not the default one
    max_answer  limit of a response body, bytes
    tenant      cluster or application that the calls belong to; pause and resume are for it too
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        token: str | None = None,
        deadline_s: float = 1.0,
        retries: int = 3,
        *,
        fallback: Fallback | None = None,
        tls: ssl.SSLContext | None = None,
        max_answer: int = MAX_BODY,
        tenant: str | None = None,
        token_variable: str | None = TOKEN_VARIABLE,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Any] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        if not (deadline_s > 0 and math.isfinite(deadline_s)):
            raise ValueError(f"deadline_s is {deadline_s}; expected more than 0")
        if retries < 0:
            raise ValueError(f"retries is {retries}; expected 0 or more")
        self._address = parse_address(url, token, tls, token_variable)
        self._deadline_s, self._retries = deadline_s, retries
        self._fallback, self._max_body, self._tenant = fallback, max_answer, tenant
        self._clock, self._sleep = clock, sleep
        self._pool = ConnectionPool(self._owner)
        self._outages: dict[str, str] = {}  # cause by system that is decided locally
        # Not seeded: forked processes would draw the same request ids.
        self._rng = rng or random.SystemRandom()

    _owner: Callable[[], object]  # see ConnectionPool

    def __repr__(self) -> str:
        name, url = type(self).__name__, self._address.url
        return f"{name}({url!r}, deadline_s={self._deadline_s:g}, retries={self._retries})"

    @abstractmethod
    async def _connect(self, remaining: Remaining) -> PooledConnection: ...

    @abstractmethod
    async def _pause(self, seconds: float) -> None: ...

    async def _decide(
        self,
        system: str,
        state: Payload,
        mode: Mode,
        deadline_ms: float | None,
        tenant: str | None,
    ) -> Decision:
        start, request_id = self._clock(), f"{self._rng.getrandbits(96):024x}"
        try:
            decision = await self._send(
                calls.decide(system, state, mode, deadline_ms, request_id, tenant or self._tenant)
            )
        except ServiceError as fault:
            if self._fallback is None:
                raise
            if fault.cause != self._outages.get(system):
                _log.warning("%s is decided locally: %s", system, fault)
            self._outages[system] = fault.cause
            return Decision(
                id=request_id,
                decision=self._fallback(system, state),
                source="local",
                cause=fault.cause,
                reason=Reason(str(fault)),
                policy=PolicyName(getattr(self._fallback, "__name__", "local")),
                latency_ms=1000 * (self._clock() - start),
            )
        if self._outages.pop(system, None) is not None:
            _log.warning("%s is decided by the service again", system)
        return decision

    async def _send(self, call: Call[T]) -> T:
        retry = RetryPolicy(
            self._address.url, call.request, self._deadline_s, self._retries, self._clock, self._rng
        )
        data = self._address.encode(call.request)
        while True:
            try:
                response = await self._attempt(call.request, data, retry.remaining_s)
            except ATTEMPT_ERRORS as fault:
                pause = retry.after_error(fault)
            else:
                if (again := retry.after_response(response)) is None:
                    return call.result(response)
                pause = again
            await self._pause(pause)

    async def _attempt(self, request: Request, data: bytes, remaining: Remaining) -> Response:
        kept = None if request.fresh else self._pool.take()
        connection = kept or await self._connect(remaining)
        try:
            response = await connection.exchange(data, remaining)
        except BaseException:
            connection.close()
            raise
        if response.keep:
            self._pool.put(connection)
        else:
            connection.close()
        return response


def _with_tenant(client: BaseClient, build: Callable[..., Any], options: Any) -> Any:
    """The options of a call; the client's tenant, if it has one and the call takes it."""
    default = client._tenant
    if default is None or "tenant" not in (build.__kwdefaults__ or ()):
        return options
    return {"tenant": default, **options}


def _method(build: Callable[P, Call[T]]) -> Callable[Concatenate[Client, P], T]:
    @functools.wraps(build)
    def method(self: Client, /, *args: P.args, **options: P.kwargs) -> T:
        return self.ask(build(*args, **_with_tenant(self, build, options)))

    return method


class Client(BaseClient):
    """Client of a decision service. Calls raise ServiceError without a usable response.

    Threads may share one.
    """

    _owner = staticmethod(os.getpid)

    systems, status = _method(calls.systems), _method(calls.status)
    decisions, history = _method(calls.decisions), _method(calls.history)
    example, feedback = _method(calls.example), _method(calls.feedback)
    steering = _method(calls.steering)
    pause, resume = _method(calls.pause), _method(calls.resume)
    promote, rollback = _method(calls.promote), _method(calls.rollback)
    estimate, profile = _method(calls.estimate), _method(calls.profile)
    memory = _method(calls.memory)

    def decide(
        self,
        system: str,
        state: Payload,
        mode: Mode = "active",
        deadline_ms: float | None = None,
        *,
        tenant: str | None = None,
    ) -> Decision:
        """Decide in `state`: a mapping, a pydantic model or JSON as bytes.

        In mode "shadow" the service's rule decides, and `.shadow` has the policy's decision.
        `deadline_ms` bounds the policy within the service, `deadline_s` the whole call.
        `tenant`: the cluster or application to decide for, if not the client's.
        """
        return _run(self._decide(system, state, mode, deadline_ms, tenant))

    def ask(self, call: Call[T]) -> T:
        """Send a call, with retries, and decode its response."""
        return _run(self._send(call))

    async def _connect(self, remaining: Remaining) -> Connection:
        return Connection(self._address, self._max_body, remaining)

    async def _pause(self, seconds: float) -> None:
        (self._sleep or time.sleep)(seconds)

    def close(self) -> None:
        """Close the connections. A later call opens new ones."""
        self._pool.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *fault: object) -> None:
        self.close()


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("a blocking connection suspended")


def _coroutine(
    build: Callable[P, Call[T]],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    @functools.wraps(build)
    async def method(self: AsyncClient, /, *args: P.args, **options: P.kwargs) -> T:
        return await self.ask(build(*args, **_with_tenant(self, build, options)))

    return method


class AsyncClient(BaseClient):
    """`Client` with awaitable methods; `sleep`, if given, is awaited.

    Tasks of one event loop may share one.
    """

    _owner = staticmethod(asyncio.get_running_loop)

    systems, status = _coroutine(calls.systems), _coroutine(calls.status)
    decisions, history = _coroutine(calls.decisions), _coroutine(calls.history)
    example, feedback = _coroutine(calls.example), _coroutine(calls.feedback)
    steering = _coroutine(calls.steering)
    pause, resume = _coroutine(calls.pause), _coroutine(calls.resume)
    promote, rollback = _coroutine(calls.promote), _coroutine(calls.rollback)
    estimate, profile = _coroutine(calls.estimate), _coroutine(calls.profile)
    memory = _coroutine(calls.memory)

    async def decide(
        self,
        system: str,
        state: Payload,
        mode: Mode = "active",
        deadline_ms: float | None = None,
        *,
        tenant: str | None = None,
    ) -> Decision:
        return await self._decide(system, state, mode, deadline_ms, tenant)

    async def ask(self, call: Call[T]) -> T:
        return await self._send(call)

    async def _connect(self, remaining: Remaining) -> AsyncConnection:
        return await AsyncConnection.open(self._address, self._max_body, remaining)

    async def _pause(self, seconds: float) -> None:
        await (self._sleep or asyncio.sleep)(seconds)

    async def close(self) -> None:
        self._pool.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *fault: object) -> None:
        await self.close()
