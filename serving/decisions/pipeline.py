"""One decision: the worker under a deadline, the rule if that fails, and the guard."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from loadmaster.serving.decisions.guard import Guard
from loadmaster.serving.decisions.request import (
    DOWN,
    FALLBACK,
    IN_SHADOW,
    OPEN,
    TIMEOUT,
    Decided,
    Invalid,
    RequestError,
    decode_reply,
    line_of,
    to_json,
)
from loadmaster.serving.policies.versions import Routing
from loadmaster.serving.settings import EndpointSettings
from loadmaster.serving.system import Endpoint
from loadmaster.serving.worker.pool import CircuitBreaker, Worker
from loadmaster.serving.worker.worker import PolicyRunner

log = logging.getLogger(__name__)

COMPILE_MS = 60_000.0  # deadline of the first requests of the warm-up
IN_TIME = 5  # answers in a row within the deadline that end the warm-up
WARM_UP_S = 60.0  # how long the policy may then take to answer one within the deadline

# Part of a deadline that the gateway reserves for the fallback.
RESERVE_SHARE, RESERVE_MAX_MS = 0.3, 60.0


class DecisionPipeline:
    """Call the worker under a deadline, fall back to the rule, apply the guard.

    Every valid state gets a decision in time.
    """

    def __init__(self, runner: PolicyRunner, worker: Worker, breaker: CircuitBreaker) -> None:
        self.runner, self._worker, self.breaker = runner, worker, breaker

    async def decide(
        self, raw: bytes, routing: Routing, deadline_ms: float, guard: Guard, memory: str = ""
    ) -> Decided:
        """Raises RequestError if the request is invalid.

        `memory`: what policies remember of the tenant.
        """
        if not self.breaker.allows(time.monotonic()):
            return self.decide_here(raw, routing, guard, OPEN)
        version, folder = "", ""
        if routing.acting is not None:
            version, folder = routing.acting.version, routing.acting.folder
        within_s = (deadline_ms - min(RESERVE_SHARE * deadline_ms, RESERVE_MAX_MS)) / 1000
        try:
            async with asyncio.timeout(within_s):
                deadline = time.monotonic() + within_s
                reply = await self._worker.decide(version, folder, raw, deadline, memory)
            decided = decode_reply(reply)
        except TimeoutError:
            self.breaker.failed(time.monotonic())
            detail = f"no reply within {within_s:.3f} s"
            return self.decide_here(raw, routing, guard, TIMEOUT, detail)
        except Exception as fault:  # a replica died, or is being replaced
            self.breaker.failed(time.monotonic())
            return self.decide_here(raw, routing, guard, DOWN, line_of(fault))
        self.breaker.succeeded()
        if isinstance(decided, Invalid):
            raise RequestError(decided.line, decided.field)
        return self._guarded(raw, routing, guard, decided)

    def decide_here(
        self, raw: bytes, routing: Routing, guard: Guard, cause: str, detail: str = ""
    ) -> Decided:
        """Decide by the rule in this process."""
        state = self.runner.state(raw)
        return self._guarded(raw, routing, guard, self.runner.decide_by_rule(state, cause, detail))

    def _guarded(self, raw: bytes, routing: Routing, guard: Guard, decided: Decided) -> Decided:
        """Apply the guard. If its result cannot be carried out, nothing changes at all.

        Decisions in shadow mode are not carried out, so they do not count as changes.
        """
        now_s = time.monotonic()
        limited = guard.apply(decided.quantities, now_s)
        decision, cause, counts = decided.decision, decided.cause, routing.cause != IN_SHADOW
        if allowed := limited.allowed:
            endpoint, state = self.runner.endpoint, self.runner.state(raw)
            proposed = endpoint.decision.model_validate(decision)
            kept = endpoint.constrain(state, proposed, allowed)
            if endpoint.validate_decision(state, kept) is not None:
                counts = False
                unchanged = {one.name: one.current for one in decided.quantities}
                kept = endpoint.constrain(state, proposed, unchanged)
            decision = kept.model_dump(mode="json")
        if decided.source == FALLBACK and routing.cause:
            cause = routing.cause  # the routing chose the rule: no policy failed
        if counts:
            guard.commit(decided.quantities, limited, now_s)
        return decided._replace(
            decision=decision, cause=cause, guard=limited.messages, guarded=limited.kinds
        )


def agreement_of(
    endpoint: Endpoint[Any, Any, Any], decision: Mapping[str, Any], other: Mapping[str, Any]
) -> float:
    """How close two decisions about a state are, from 0 to 1."""
    if decision == other:
        return 1.0
    kind = endpoint.decision
    return endpoint.agreement(kind.model_validate(decision), kind.model_validate(other))


async def warm_up(
    runner: PolicyRunner,
    worker: Worker,
    settings: EndpointSettings,
    routing: Routing,
    encode: Callable[[Decided], None],
) -> None:
    """Send each example once, then "small" until the policy answers it within the deadline.

    A process is slow at first: code is compiled or read from a cache, memory is touched for the
    first time, and at the start every process of the service competes for the cores. A first
    request that met all of this would be answered by the rule. A policy that fails for another
    reason, or stays too slow, does not keep the service from starting. Nothing is recorded, and the
    guard and the breaker that count remain as they are.
    """
    endpoint, guard = runner.endpoint, Guard(settings.guard)
    pipeline = DecisionPipeline(runner, worker, CircuitBreaker(math.inf))
    examples = endpoint.examples().items()
    requests = {name: to_json({"state": one.model_dump(mode="json")}) for name, one in examples}
    for raw in requests.values():
        pipeline.decide_here(raw, Routing(None, None, None), guard, DOWN)  # the fallback
        encode(await pipeline.decide(raw, routing, COMPILE_MS, guard))
    until, in_time = time.monotonic() + WARM_UP_S, 0
    while True:
        began = time.perf_counter()
        decided = await pipeline.decide(requests["small"], routing, settings.deadline_ms, guard)
        took_ms = 1000 * (time.perf_counter() - began)
        in_time = in_time + 1 if decided.cause is None and took_ms <= settings.deadline_ms else 0
        if in_time == IN_TIME:
            return
        too_late = not in_time and time.monotonic() > until
        if decided.cause not in (None, TIMEOUT, DOWN) or too_late:
            why = f"{decided.cause or f'{took_ms:.0f} ms'} {decided.detail}"
            log.warning("%s: the policy fails on an example (%s)", endpoint.system, why)
            return
        await asyncio.sleep(0.02 if in_time else 0.1)
