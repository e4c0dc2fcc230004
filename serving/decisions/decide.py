"""From a request to an answer: the worker under a deadline, the rule where it fails, the guard.

This is the path that must never fail: every state that can be decided on is decided on, in time.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from pydantic import ConfigDict, ValidationError

from loadmaster.serving.decisions import request as said
from loadmaster.serving.decisions.batcher import RequestBatcher
from loadmaster.serving.decisions.guard import Guard, GuardResult
from loadmaster.serving.decisions.policy_runner import PolicyRunner, line_of
from loadmaster.serving.decisions.request import RequestError, bad_request, from_json, read
from loadmaster.serving.policies.versions import Routing
from loadmaster.serving.system import Quantity

# A breaker: a worker that does not answer is left alone for a while.


class CircuitBreaker:
    """Open after `failures` in a row; then one request in `retry_s` tries again."""

    def __init__(self, failures: int = 3, retry_s: float = 1.0) -> None:
        self._most, self._retry_s = failures, retry_s
        self._failed = 0
        self._next_try_s = 0.0

    @property
    def is_open(self) -> bool:
        return self._failed >= self._most

    def lets_through(self, now_s: float) -> bool:
        """Whether to ask the worker; while open, True is said once in `retry_s`."""
        if not self.is_open:
            return True
        if now_s < self._next_try_s:
            return False
        self._next_try_s = now_s + self._retry_s
        return True

    def succeeded(self) -> None:
        self._failed = 0

    def failed(self, now_s: float) -> None:
        self._failed += 1
        self._next_try_s = now_s + self._retry_s


# What the gateway keeps of a deadline for itself: the rule has to decide in what is left.
RESERVE_SHARE, RESERVE_MOST_MS = 0.3, 60.0


class RequestOptions(NamedTuple):
    """What a request says beside the state."""

    mode: str = said.ACTIVE
    deadline_ms: float | None = None
    request_id: str | None = None


class DecisionResult(NamedTuple):
    """A decision with all that is told and logged of it."""

    decision: dict[str, Any]
    reason: dict[str, Any]
    source: str
    cause: str | None
    detail: str  # of a fault, for logs
    policy: dict[str, str]
    guard: tuple[str, ...]
    guarded: tuple[str, ...]  # the same by kind
    features: dict[str, float]


class _Framed(said.DecisionRequest):
    model_config = ConfigDict(extra="ignore")  # the state, which costs little as long as it is none


def parse_options(raw: bytes) -> RequestOptions:
    """Whatever else is wrong, who reads the request for good will say."""
    if said.is_state_alone(raw):
        return RequestOptions()
    try:
        asked = _Framed.model_validate_json(raw, strict=True)
    except ValidationError as fault:
        wrong = bad_request(fault, _Framed)
        if wrong.field is None:
            return RequestOptions()
        raise wrong from None
    return RequestOptions(asked.mode, asked.deadline_ms, asked.request_id)


class DecisionPipeline:
    """Of one system. `decider` is the gateway's own: it knows the rule."""

    def __init__(
        self, decider: PolicyRunner, link: RequestBatcher, breaker: CircuitBreaker, guard: Guard
    ) -> None:
        self.decider, self.link, self.breaker, self.guard = decider, link, breaker, guard
        self.worker_is_up = False  # until it has answered once

    async def answer(self, raw: bytes, casting: Routing, deadline_ms: float) -> DecisionResult:
        """A RequestError where the request itself is wrong; else always an answer."""
        found, cause, detail = await self._by_worker(raw, casting, deadline_ms)
        if found is None:
            found = self._by_own_rule(raw, cause, detail)
        if "invalid" in found:
            raise RequestError(found["invalid"], found["field"])
        if found["source"] == said.FALLBACK:
            # Where the rule was cast, no policy was asked that could have failed.
            found["cause"] = casting.cause or found["cause"] or cause
        return self._guarded(raw, found)

    async def _by_worker(
        self, raw: bytes, casting: Routing, deadline_ms: float
    ) -> tuple[dict[str, Any] | None, str | None, str]:
        """What the worker decides; or None, and why it does not."""
        if not self.worker_is_up:
            return None, said.DOWN, "the worker is starting"
        if not self.breaker.lets_through(time.monotonic()):
            return None, said.OPEN, ""
        version, folder = "", ""
        if casting.acting is not None:
            version, folder = casting.acting.version, casting.acting.folder
        within_ms = deadline_ms - min(RESERVE_SHARE * deadline_ms, RESERVE_MOST_MS)
        try:
            found = from_json(await self.link.decide(raw, version, folder, within_ms / 1000))
            if "failed" in found:
                raise RuntimeError(found["failed"])
        except TimeoutError:
            self.breaker.failed(time.monotonic())
            return None, said.TIMEOUT, f"no answer within {within_ms:.0f} ms"
        except Exception as fault:  # a replica that died, a deployment that is being replaced
            self.breaker.failed(time.monotonic())
            return None, said.DOWN, line_of(fault)
        self.breaker.succeeded()
        return found, None, ""

    def _by_own_rule(self, raw: bytes, cause: str | None, detail: str) -> dict[str, Any]:
        state = read(self.decider.request, raw).state
        return self.decider.by_rule(state, cause, detail)

    def _guarded(self, raw: bytes, found: dict[str, Any]) -> DecisionResult:
        quantities = tuple(Quantity(*one) for one in found["quantities"])
        ruling = self.guard.rule(quantities, time.monotonic())
        decision = found["decision"]
        if ruling.allowed:
            decision = self._constrained(raw, decision, ruling, quantities)
        return DecisionResult(
            decision=decision,
            reason=found["reason"],
            source=found["source"],
            cause=found["cause"],
            detail=found.get("detail", ""),
            policy=found["policy"],
            guard=ruling.said,
            guarded=ruling.kinds,
            features=found["features"],
        )

    def _constrained(
        self,
        raw: bytes,
        decision: dict[str, Any],
        ruling: GuardResult,
        quantities: tuple[Quantity, ...],
    ) -> dict[str, Any]:
        """As far as the guard allows; where that cannot be carried out, nothing changes at all."""
        endpoint = self.decider.endpoint
        state = read(self.decider.request, raw).state
        proposed = endpoint.decision.model_validate(decision)
        kept = endpoint.constrain(state, proposed, ruling.allowed)
        if endpoint.validate_decision(state, kept) is not None:
            kept = endpoint.constrain(
                state, proposed, {one.name: one.current for one in quantities}
            )
        told: dict[str, Any] = kept.model_dump(mode="json")
        return told
