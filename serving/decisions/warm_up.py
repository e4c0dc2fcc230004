"""Warm-up of a system before it is ready.

A process is slow at first: code is compiled or read from a cache, memory is touched for the first
time, and at the start every process of the service competes for the cores. A first request that met
all of this would be answered by the rule. So examples are sent through the whole path until the
policy answers within the deadline.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping

from loadmaster.serving.decisions.request import DOWN, TIMEOUT, DecisionResult

log = logging.getLogger(__name__)

COMPILE_MS = 60_000.0  # deadline of the first round of requests
WARM_UP_S = 60.0  # how long the policy may then take to answer one within the deadline
RETRY_S = 0.1


async def warm_up(
    system: str,
    decide: Callable[[bytes, float], Awaitable[DecisionResult]],
    requests: Mapping[str, bytes],
    deadline_ms: float,
) -> bool:
    """Send each request once, then "small" until the policy answers it within the deadline.

    `decide` takes a request and its deadline. Returns whether the policy answered in time. A policy
    that fails for another reason, or stays too slow, does not keep the service from starting: the
    rule stands in for it.
    """
    for raw in requests.values():
        await decide(raw, COMPILE_MS)
    until = time.monotonic() + WARM_UP_S
    while True:
        began = time.perf_counter()
        result = await decide(requests["small"], deadline_ms)
        took_ms = 1000 * (time.perf_counter() - began)
        if result.cause is None and took_ms <= deadline_ms:
            return True
        if result.cause not in (None, TIMEOUT, DOWN) or time.monotonic() > until:
            cause = result.cause or f"{took_ms:.0f} ms"
            log.warning("%s: the policy fails on an example (%s %s)", system, cause, result.detail)
            return False
        await asyncio.sleep(RETRY_S)
