"""Retries within one deadline, and the local fallback once they have failed."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Mapping
from typing import Any

from .errors import DeadlineExceeded, ServiceError, Unreachable
from .http1 import BrokenError, MalformedError, Request, Response
from .responses import Decision, PolicyName, Reason

RETRIED_STATUS = frozenset({429, 502, 503, 504})
ATTEMPT_ERRORS = (BrokenError, MalformedError, TimeoutError)
FIRST_PAUSE_S, MAX_PAUSE_S = 0.02, 1.0

Fallback = Callable[[str, Any], Mapping[str, Any]]  # (system, state) -> decision

_log = logging.getLogger("loadmaster.client")


class RetryPolicy:
    """Decide after each attempt of one call whether, and after which pause, to try again."""

    def __init__(
        self,
        url: str,
        request: Request,
        deadline_s: float,
        retries: int,
        clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        self._url = url
        self._request = request
        self._deadline_s = deadline_s
        self._retries = retries
        self._clock = clock
        self._rng = rng
        self._start = clock()
        self._retried = 0

    def remaining_s(self) -> float:
        """Seconds until the deadline; raises DeadlineExceeded once it has passed."""
        remaining = self._deadline_s - (self._clock() - self._start)
        if remaining <= 0:
            raise self._deadline_exceeded()
        return remaining

    def _deadline_exceeded(self) -> DeadlineExceeded:
        return DeadlineExceeded(f"no response from {self._url} within {self._deadline_s:g} s")

    def after_response(self, response: Response) -> float | None:
        """Seconds to pause before the next attempt; None: return this response."""
        if response.status not in RETRIED_STATUS or not self._request.idempotent:
            return None
        return self._pause(_retry_after_s(response))

    def after_error(self, fault: Exception) -> float:
        """Seconds to pause before the next attempt; raises ServiceError if there is none."""
        if isinstance(fault, TimeoutError):
            raise self._deadline_exceeded() from None
        if not isinstance(fault, BrokenError):
            raise ServiceError(f"unreadable response from {self._url}: {fault}") from None
        is_safe = self._request.idempotent or not fault.sent
        pause = self._pause(0.0) if is_safe else None
        if pause is None:
            note = "" if is_safe else "; the request may have been carried out"
            raise Unreachable(f"cannot reach {self._url}: {fault}{note}") from None
        return pause

    def _pause(self, at_least: float) -> float | None:
        """None if no attempt is left or the pause would exceed the deadline."""
        if self._retried >= self._retries:
            return None
        longest = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(self._retried, 20))
        # Jitter: clients that failed together do not retry together.
        pause = at_least + longest * (1 + self._rng.random()) / 2
        if pause >= self._deadline_s - (self._clock() - self._start):
            return None
        self._retried += 1
        return pause


def _retry_after_s(response: Response) -> float:
    """The header Retry-After in seconds; 0 for its other form, a date."""
    try:
        seconds = float(response.headers.get("retry-after", "0"))
    except ValueError:
        return 0.0
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0


class LocalFallback:
    """Local decisions while the service does not decide; logs the start and end of an outage."""

    def __init__(self, fallback: Fallback) -> None:
        self._fallback = fallback
        self._causes: dict[str, str] = {}  # by system, during an outage

    def decide(
        self, system: str, state: Any, fault: ServiceError, request_id: str, elapsed_s: float
    ) -> Decision:
        cause = _cause(fault)
        if cause != self._causes.get(system):
            _log.warning("%s is decided locally: %s", system, fault)
        self._causes[system] = cause
        return Decision(
            id=request_id,
            decision=self._fallback(system, state),
            source="local",
            cause=cause,
            reason=Reason(str(fault)),
            policy=PolicyName(getattr(self._fallback, "__name__", "local")),
            latency_ms=1000 * elapsed_s,
        )

    def service_decided(self, system: str) -> None:
        """End the outage of a system, if there was one."""
        if self._causes.pop(system, None) is not None:
            _log.warning("%s is decided by the service again", system)


def _cause(fault: ServiceError) -> str:
    match fault:
        case DeadlineExceeded():
            return "deadline"
        case Unreachable():
            return "unreachable"
    return "refused"
