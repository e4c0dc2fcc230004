"""What the blocking client and the asyncio one have in common: everything but the waiting."""

from __future__ import annotations

import math
import random
import ssl
import time
from collections.abc import Callable
from typing import Any, Generic

from loadmaster.serving.client.address import address
from loadmaster.serving.client.errors import ServiceError
from loadmaster.serving.client.http1 import MAX_ANSWER, Request
from loadmaster.serving.client.local_fallback import Fallback, Standby
from loadmaster.serving.client.pool import C, Idle
from loadmaster.serving.client.responses import Decision
from loadmaster.serving.client.retry import Attempts

URL = "http://127.0.0.1:8700"


class Frame(Generic[C]):
    """Settings of a client.

    url         where the service is; https for TLS
    token       as the service gave it out; by default the environment's LOADMASTER_TOKEN
    deadline_s  the longest that a call takes, all attempts and pauses together
    retries     how many times a call is repeated at most, where that is safe
    fallback    fallback(system, state) decides where the service does not; source is then "local"
    tls         whom to trust, where that is not what the machine trusts
    max_answer  bytes of an answer
    """

    def __init__(
        self,
        url: str = URL,
        token: str | None = None,
        deadline_s: float = 1.0,
        retries: int = 3,
        *,
        fallback: Fallback | None = None,
        tls: ssl.SSLContext | None = None,
        max_answer: int = MAX_ANSWER,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Any] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        if not (deadline_s > 0 and math.isfinite(deadline_s)):
            raise ValueError(f"deadline_s is {deadline_s}; expected more than 0")
        if retries < 0:
            raise ValueError(f"retries is {retries}; expected 0 or more")
        self._address = address(url, token, tls)
        self._deadline_s = deadline_s
        self._retries = retries
        self._standby = None if fallback is None else Standby(fallback)
        self._max_answer = max_answer
        self._clock = clock
        self._sleep = sleep or self._pause
        self._idle: Idle[C] = Idle(self._owner)
        # The system's, not a seeded one: forked processes would draw the same request ids.
        self._rng = rng or random.SystemRandom()

    _pause: Callable[[float], Any]  # how a client waits, unless told otherwise
    _owner: Callable[[], object]  # to whom its connections belong: see Idle

    def __repr__(self) -> str:
        name, url = type(self).__name__, self._address.url
        return f"{name}({url!r}, deadline_s={self._deadline_s:g}, retries={self._retries})"

    def _attempts(self, request: Request) -> Attempts:
        return Attempts(
            self._address.url, request, self._deadline_s, self._retries, self._clock, self._rng
        )

    def _new_id(self) -> str:
        return f"{self._rng.getrandbits(96):024x}"

    def _decided(self, system: str, decision: Decision) -> Decision:
        if self._standby is not None:
            self._standby.answered(system)
        return decision

    def _decided_here(
        self, system: str, state: Any, fault: ServiceError, request_id: str, began: float
    ) -> Decision:
        """By the fallback; where there is none, the fault is the caller's."""
        if self._standby is None:
            raise fault
        return self._standby.decide(system, state, fault, request_id, self._clock() - began)
