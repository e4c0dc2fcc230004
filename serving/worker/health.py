"""Whether a system's worker answers, for /readyz, whether or not there are requests.

A worker that Ray cannot replace would otherwise go unnoticed: the rule decides in its place, every
request succeeds, and without requests nothing fails at all. A load balancer that sends no more
requests because of /readyz must see the worker come back, so it is called here.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from loadmaster.serving.worker.pool import CircuitBreaker

log = logging.getLogger(__name__)

PERIOD_S = 2.0  # between two calls; none is made while decisions of the worker arrive
TIMEOUT_S = 5.0  # of a call: far more than a deadline, as a slow worker is not a dead one
GRACE_S = 20.0  # a replica that is replaced takes about half as long


class WorkerHealth:
    """The time since which a worker has not answered. Called by the event loop only."""

    def __init__(
        self,
        system: str,
        breaker: CircuitBreaker,
        call: Callable[[], Awaitable[object]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`breaker` counts the answers to requests; `call` sends the worker one of its own."""
        self._system, self._breaker, self._call, self._clock = system, breaker, call, clock
        self._silent_since: float | None = None

    @property
    def fault(self) -> str | None:
        """Why the worker counts as down; None while it answers, and for GRACE_S afterwards."""
        if self._silent_since is None:
            return None
        silent_s = self._clock() - self._silent_since
        if silent_s < GRACE_S:
            return None
        return f"is decided by its rule: the worker has not answered for {silent_s:.0f} s"

    async def watch(self) -> None:
        """Check the worker every PERIOD_S, for ever."""
        while True:
            answers = self._breaker.successes
            await asyncio.sleep(PERIOD_S)
            if self._breaker.successes == answers:
                await self.check()
            else:
                self._silent_since = None

    async def check(self) -> None:
        """Call the worker once."""
        began = self._clock()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self._call()
        except Exception as fault:  # of any kind: a replica died, or Ray cannot start one
            if self._silent_since is None:
                log.warning("%s: the worker does not answer: %r", self._system, fault)
                self._silent_since = began
        else:
            if self._silent_since is not None:
                log.warning("%s: the worker answers again", self._system)
            self._silent_since = None
