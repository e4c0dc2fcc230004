"""Settings and state shared by the blocking and the asyncio client."""

from __future__ import annotations

import math
import random
import ssl
import time
from collections.abc import Callable
from typing import Any, Generic

from .connection import C, ConnectionPool
from .errors import ServiceError
from .http1 import MAX_BODY, Request, parse_address
from .responses import Decision
from .retry import Fallback, LocalFallback, RetryPolicy

DEFAULT_URL = "http://127.0.0.1:8700"


class BaseClient(Generic[C]):
    """Settings of a client.

    url         URL of the service; https for TLS
    token       bearer token; by default the environment variable LOADMASTER_TOKEN
    deadline_s  limit of a whole call, all attempts and pauses included
    retries     maximum number of repetitions of a call, where repeating is safe
    fallback    fallback(system, state) decides if the service does not; source is then "local"
    tls         TLS context, if not the default one
    max_answer  limit of a response body, bytes
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
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Any] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        if not (deadline_s > 0 and math.isfinite(deadline_s)):
            raise ValueError(f"deadline_s is {deadline_s}; expected more than 0")
        if retries < 0:
            raise ValueError(f"retries is {retries}; expected 0 or more")
        self._address = parse_address(url, token, tls)
        self._deadline_s = deadline_s
        self._retries = retries
        self._fallback = None if fallback is None else LocalFallback(fallback)
        self._max_body = max_answer
        self._clock = clock
        self._sleep = sleep or self._pause
        self._pool: ConnectionPool[C] = ConnectionPool(self._owner)
        # Not seeded: forked processes would draw the same request ids.
        self._rng = rng or random.SystemRandom()

    _pause: Callable[[float], Any]  # default of `sleep`
    _owner: Callable[[], object]  # see ConnectionPool

    def __repr__(self) -> str:
        name, url = type(self).__name__, self._address.url
        return f"{name}({url!r}, deadline_s={self._deadline_s:g}, retries={self._retries})"

    def _retry_policy(self, request: Request) -> RetryPolicy:
        return RetryPolicy(
            self._address.url, request, self._deadline_s, self._retries, self._clock, self._rng
        )

    def _new_id(self) -> str:
        return f"{self._rng.getrandbits(96):024x}"

    def _service_decided(self, system: str, decision: Decision) -> Decision:
        if self._fallback is not None:
            self._fallback.service_decided(system)
        return decision

    def _decide_locally(
        self, system: str, state: Any, fault: ServiceError, request_id: str, start: float
    ) -> Decision:
        """Use the fallback; without one, raise the fault."""
        if self._fallback is None:
            raise fault
        return self._fallback.decide(system, state, fault, request_id, self._clock() - start)
