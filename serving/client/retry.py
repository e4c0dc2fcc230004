"""When a request is sent again: jittered pauses within one deadline, only where it is safe."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from loadmaster.serving.client.errors import DeadlineExceeded, ServiceError, Unreachable
from loadmaster.serving.client.http1 import Answer, BrokenError, MalformedError, Request

REFUSED_FOR_NOW = frozenset({429, 502, 503, 504})
FAULTS = (BrokenError, MalformedError, TimeoutError)  # what an attempt may end with
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 1.0


class Attempts:
    """One call's attempts. It only decides; whoever holds it sends and waits."""

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
        self._began = clock()
        self._made = 0  # pauses so far

    def elapsed_s(self) -> float:
        return self._clock() - self._began

    def left_s(self) -> float:
        """Seconds until the deadline; raises once it is over."""
        left = self._deadline_s - self.elapsed_s()
        if left <= 0:
            raise self._too_late()
        return left

    def _too_late(self) -> DeadlineExceeded:
        return DeadlineExceeded(f"no answer from {self._url} within {self._deadline_s:g} s")

    def after_answer(self, answer: Answer) -> float | None:
        """Seconds to wait before the next attempt; None: this answer is the one."""
        if answer.status not in REFUSED_FOR_NOW or not self._request.repeat:
            return None
        return self._pause(_retry_after_s(answer))

    def after_fault(self, fault: Exception) -> float:
        """Seconds to wait before the next attempt; raises where there is none."""
        if isinstance(fault, TimeoutError):
            raise self._too_late() from None
        if not isinstance(fault, BrokenError):
            raise ServiceError(f"{self._url} answered what cannot be read: {fault}") from None
        safe = self._request.repeat or not fault.sent
        pause = self._pause(0.0) if safe else None
        if pause is None:
            doubt = "" if safe else "; whether the request was carried out is not known"
            raise Unreachable(f"cannot reach {self._url}: {fault}{doubt}") from None
        return pause

    def _pause(self, at_least: float) -> float | None:
        """None where no attempt is left, or the wait would outlast the deadline."""
        if self._made >= self._retries:
            return None
        longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(self._made, 20))
        # Between half and all of it: clients that failed together do not come back together.
        pause = at_least + longest * (1 + self._rng.random()) / 2
        if pause >= self._deadline_s - self.elapsed_s():
            return None
        self._made += 1
        return pause


def _retry_after_s(answer: Answer) -> float:
    """As the service asks for. Dates, the header's other form, are left to the ordinary pause."""
    try:
        seconds = float(answer.headers.get("retry-after", "0"))
    except ValueError:
        return 0.0
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0
