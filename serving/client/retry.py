"""Retries within one deadline."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from .errors import DeadlineExceeded, ServiceError, Unreachable
from .http1 import BrokenError, MalformedError, Request, Response

RETRIED_STATUS = frozenset({429, 502, 503, 504})
ATTEMPT_ERRORS = (BrokenError, MalformedError, TimeoutError)
FIRST_PAUSE_S, MAX_PAUSE_S = 0.02, 1.0


@dataclass
class RetryPolicy:
    """Decide after each attempt of one call whether, and after which pause, to try again."""

    url: str
    request: Request
    deadline_s: float
    retries: int
    clock: Callable[[], float]
    rng: random.Random

    def __post_init__(self) -> None:
        self._start, self._retried = self.clock(), 0

    def remaining_s(self) -> float:
        """Seconds until the deadline; raises DeadlineExceeded once it has passed."""
        remaining = self.deadline_s - (self.clock() - self._start)
        if remaining <= 0:
            raise self._deadline_exceeded()
        return remaining

    def _deadline_exceeded(self) -> DeadlineExceeded:
        return DeadlineExceeded(f"no response from {self.url} within {self.deadline_s:g} s")

    def after_response(self, response: Response) -> float | None:
        """Seconds to pause before the next attempt; None: return this response."""
        if response.status not in RETRIED_STATUS or not self.request.idempotent:
            return None
        return self._pause(_retry_after_s(response))

    def after_error(self, fault: Exception) -> float:
        """Seconds to pause before the next attempt; raises ServiceError if there is none."""
        if isinstance(fault, TimeoutError):
            raise self._deadline_exceeded() from None
        if not isinstance(fault, BrokenError):
            raise ServiceError(f"unreadable response from {self.url}: {fault}") from None
        is_safe = self.request.idempotent or not fault.sent
        pause = self._pause(0.0) if is_safe else None
        if pause is None:
            note = "" if is_safe else "; the request may have been carried out"
            raise Unreachable(f"cannot reach {self.url}: {fault}{note}") from None
        return pause

    def _pause(self, at_least: float) -> float | None:
        """None if no attempt is left or the pause would exceed the deadline."""
        if self._retried >= self.retries:
            return None
        longest = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(self._retried, 20))
        # Jitter: clients that failed together do not retry together.
        pause = at_least + longest * (1 + self.rng.random()) / 2
        if pause >= self.deadline_s - (self.clock() - self._start):
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
