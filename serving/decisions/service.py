"""Decisions of one system: worker, fallback, guard and shadow, and the views of them over HTTP."""

import asyncio
import logging
import math
import random
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from itertools import islice
from typing import Any

from loadmaster.serving.decisions.guard import Guard
from loadmaster.serving.decisions.request import (
    DOWN,
    FALLBACK,
    OPEN,
    SHADOW,
    TIMEOUT,
    Decided,
    Invalid,
    Proposed,
    RequestError,
    RequestOptions,
    decode_reply,
    feedback_model,
    iso,
    line_of,
    read,
    to_json,
)
from loadmaster.serving.monitoring.recorder import DecisionRecorder
from loadmaster.serving.policies.manager import AdminAction, PolicyManager
from loadmaster.serving.policies.versions import Routing
from loadmaster.serving.settings import EndpointSettings
from loadmaster.serving.worker.rpc import CircuitBreaker, Worker
from loadmaster.serving.worker.worker import PolicyRunner

log = logging.getLogger(__name__)

RECENT = 200  # decisions that are listed
KNOWN_IDS = 20_000  # decisions that feedback can refer to
SHADOW_S = 2.0  # how long a decision in the shadow may take

# Part of a deadline that the gateway reserves for the fallback.
RESERVE_SHARE, RESERVE_MAX_MS = 0.3, 60.0

RETRY_S = 0.5  # between attempts to load the policy
COMPILE_MS = 60_000.0  # deadline of the first requests of the warm-up
WARM_UP_S = 60.0  # how long the policy may then take to answer one within the deadline


class DecisionPipeline:
    """Call the worker under a deadline, fall back to the rule, apply the guard.

    Every valid state gets a decision in time.
    """

    def __init__(
        self, runner: PolicyRunner, worker: Worker, breaker: CircuitBreaker, guard: Guard
    ) -> None:
        self.runner, self._worker, self.breaker, self._guard = runner, worker, breaker, guard

    async def decide(self, raw: bytes, routing: Routing, deadline_ms: float) -> Decided:
        """Raises RequestError if the request is invalid."""
        if not self.breaker.allows(time.monotonic()):
            return self.decide_here(raw, routing, OPEN)
        version, folder = "", ""
        if routing.acting is not None:
            version, folder = routing.acting.version, routing.acting.folder
        within_s = (deadline_ms - min(RESERVE_SHARE * deadline_ms, RESERVE_MAX_MS)) / 1000
        try:
            async with asyncio.timeout(within_s):
                deadline = time.monotonic() + within_s
                reply = await self._worker.decide(version, folder, raw, deadline)
            decided = decode_reply(reply)
        except TimeoutError:
            self.breaker.failed(time.monotonic())
            return self.decide_here(raw, routing, TIMEOUT, f"no reply within {within_s:.3f} s")
        except Exception as fault:  # a replica died, or is being replaced
            self.breaker.failed(time.monotonic())
            return self.decide_here(raw, routing, DOWN, line_of(fault))
        self.breaker.succeeded()
        if isinstance(decided, Invalid):
            raise RequestError(decided.line, decided.field)
        return self._guarded(raw, routing, decided)

    def decide_here(self, raw: bytes, routing: Routing, cause: str, detail: str = "") -> Decided:
        """Decide by the rule in this process."""
        state = self.runner.state(raw)
        return self._guarded(raw, routing, self.runner.decide_by_rule(state, cause, detail))

    def _guarded(self, raw: bytes, routing: Routing, decided: Decided) -> Decided:
        """Apply the guard. If its result cannot be carried out, nothing changes at all."""
        allowed, guard, guarded = self._guard.apply(decided.quantities, time.monotonic())
        decision, cause = decided.decision, decided.cause
        if allowed:
            endpoint, state = self.runner.endpoint, self.runner.state(raw)
            proposed = endpoint.decision.model_validate(decision)
            kept = endpoint.constrain(state, proposed, allowed)
            if endpoint.validate_decision(state, kept) is not None:
                unchanged = {one.name: one.current for one in decided.quantities}
                kept = endpoint.constrain(state, proposed, unchanged)
            decision = kept.model_dump(mode="json")
        if decided.source == FALLBACK and routing.cause:
            cause = routing.cause  # the routing chose the rule: no policy failed
        return decided._replace(decision=decision, cause=cause, guard=guard, guarded=guarded)


class DecisionService:
    """One system. Called by the gateway's event loop only."""

    def __init__(
        self,
        settings: EndpointSettings,
        runner: PolicyRunner,
        worker: Worker,
        recorder: DecisionRecorder,
        manager: PolicyManager,
        clock: Callable[[], float] = time.time,
        rng: random.Random | None = None,
    ) -> None:
        self.endpoint, self.settings, self.ready = runner.endpoint, settings, False
        self._runner, self._worker, self._clock = runner, worker, clock
        self._recorder, self._manager = recorder, manager
        self._pipeline = DecisionPipeline(runner, worker, CircuitBreaker(), Guard(settings.guard))
        self._rng = rng or random.Random()
        self._feedback = feedback_model(self.endpoint)
        self._recent: deque[tuple[float, str, dict[str, Any]]] = deque(maxlen=RECENT)
        self._sources: OrderedDict[str, str] = OrderedDict()  # by decision id
        self._shadows: set[asyncio.Future[Proposed]] = set()

    # Start.

    async def start(self) -> None:
        """Load the policy in the worker and warm up the path to it; then the system is ready.

        Until then the rule decides.
        """
        while True:
            try:
                await self._manager.load_policy()
                break
            except Exception as fault:
                log.info("%s: the worker is not up yet: %r", self.endpoint.system, fault)
                await asyncio.sleep(RETRY_S)
        try:
            await self._warm_up()
        except Exception:
            log.exception("%s: warm-up", self.endpoint.system)
        self.ready = True

    async def _warm_up(self) -> None:
        """Send each example once, then "small" until the policy answers it within the deadline.

        A process is slow at first: code is compiled or read from a cache, memory is touched for the
        first time, and at the start every process of the service competes for the cores. A first
        request that met all of this would be answered by the rule. A policy that fails for another
        reason, or stays too slow, does not keep the service from starting.
        """
        # Nothing is recorded, and the guard and the breaker that count remain as they are.
        pipeline = DecisionPipeline(
            self._runner, self._worker, CircuitBreaker(math.inf), Guard(self.settings.guard)
        )
        routing = Routing(self._manager.roles.serving, None, None)
        examples = self.endpoint.examples().items()
        requests = {name: to_json({"state": one.model_dump(mode="json")}) for name, one in examples}
        for raw in requests.values():
            pipeline.decide_here(raw, Routing(None, None, None), DOWN)  # the fallback
            decided = await pipeline.decide(raw, routing, COMPILE_MS)
            to_json(self._response(decided, RequestOptions()))
        deadline_ms, until = self.settings.deadline_ms, time.monotonic() + WARM_UP_S
        while True:
            began = time.perf_counter()
            decided = await pipeline.decide(requests["small"], routing, deadline_ms)
            took_ms = 1000 * (time.perf_counter() - began)
            if decided.cause is None and took_ms <= deadline_ms:
                return
            if decided.cause not in (None, TIMEOUT, DOWN) or time.monotonic() > until:
                why = f"{decided.cause or f'{took_ms:.0f} ms'} {decided.detail}"
                log.warning("%s: the policy fails on an example (%s)", self.endpoint.system, why)
                return
            await asyncio.sleep(0.1)

    # Decisions.

    async def decide(self, raw: bytes, options: RequestOptions) -> dict[str, Any]:
        """Answer a request; raises RequestError if it is invalid."""
        began = time.perf_counter()
        routing = self._manager.roles.cast(options.mode, self._recorder.rules_act)
        deadline_ms = self.settings.deadline_ms
        if options.deadline_ms is not None:
            deadline_ms = min(options.deadline_ms, deadline_ms)
        shadow = None
        share = 1.0 if options.mode == SHADOW else self.settings.shadow_share
        if routing.shadow is not None and self._rng.random() < share:
            shadow = asyncio.ensure_future(self._propose(raw, routing))
        try:
            if self.ready:
                decided = await self._pipeline.decide(raw, routing, deadline_ms)
            else:
                decided = self._pipeline.decide_here(raw, routing, DOWN, "the worker is starting")
        except RequestError:
            if shadow is not None:
                shadow.cancel()
            raise
        response = self._response(decided, options)
        if shadow is not None and options.mode == SHADOW:
            left_s = deadline_ms / 1000 - (time.perf_counter() - began)
            await asyncio.wait({shadow}, timeout=max(left_s, 0))
            if shadow.done():
                response["shadow"] = _compare(shadow.result(), decided, routing)
        response["latency_ms"] = round(1000 * (time.perf_counter() - began), 3)
        if shadow is None or response["shadow"] is not None:
            # After the response is sent, and before the next request is read.
            asyncio.get_running_loop().call_soon(self._record, raw, options, response, decided)
        else:
            later = dict(response)

            def record(proposed: asyncio.Future[Proposed]) -> None:
                self._shadows.discard(proposed)
                if not proposed.cancelled():
                    later["shadow"] = _compare(proposed.result(), decided, routing)
                    self._record(raw, options, later, decided)

            self._shadows.add(shadow)  # the event loop keeps weak references only
            shadow.add_done_callback(record)
        return response

    async def _propose(self, raw: bytes, routing: Routing) -> Proposed:
        """Decision of the bundle in the shadow; never raises."""
        assert routing.shadow is not None
        try:
            async with asyncio.timeout(SHADOW_S):
                reply = await self._worker.propose(
                    routing.shadow.version, routing.shadow.folder, raw
                )
            return Proposed.model_validate_json(reply)
        except TimeoutError:
            return Proposed(fault=TIMEOUT)
        except Exception as fault:
            return Proposed(fault=DOWN, detail=line_of(fault))

    def _response(self, decided: Decided, options: RequestOptions) -> dict[str, Any]:
        return {
            "id": options.request_id or f"{self._rng.getrandbits(128):032x}",
            "decision": decided.decision,
            "source": decided.source,
            "cause": decided.cause,
            "reason": decided.reason,
            "policy": decided.policy,
            "guard": decided.guard,
            "shadow": None,
        }

    def _record(
        self, raw: bytes, options: RequestOptions, response: dict[str, Any], decided: Decided
    ) -> None:
        """Record a decision for lists, feedback, monitor and log."""
        now = self._clock()
        self._recent.appendleft((now, options.mode, response))
        self._sources[response["id"]] = decided.source
        if len(self._sources) > KNOWN_IDS:
            self._sources.popitem(last=False)
        self._recorder.record_decision(raw, options, response, decided, now)

    def feedback(self, raw: bytes) -> dict[str, Any]:
        """Record an outcome. One of an unknown decision counts for what acts now."""
        feedback: Any = read(self._feedback, raw)
        reward = self.endpoint.reward(feedback.outcome)
        acting, _ = self._manager.roles.acts(self._recorder.rules_act)
        source = self._sources.get(feedback.id or "", acting)
        outcome = feedback.outcome.model_dump(mode="json")
        self._recorder.record_feedback(feedback.id, outcome, source, reward, self._clock())
        return {"accepted": True, "reward": reward}

    # Operation.

    async def tick(self) -> None:
        """Report metrics, save state and follow retraining; called every few seconds."""
        self._recorder.report(paused=self._manager.roles.paused is not None)
        await self._manager.tick()

    async def admin_action(self, action: AdminAction, raw: bytes) -> dict[str, Any]:
        """Return the status after an action; raises Conflict if it is not possible now."""
        await self._manager.admin_action(action, raw)
        return self.status()

    async def close(self) -> None:
        await self._manager.close()
        self._recorder.close()

    # Views.

    def brief(self) -> dict[str, Any]:
        serving = self._manager.roles.serving
        return {
            **self._summary(),
            "lifecycle": self._recorder.state,
            "policy": {"name": serving.name, "version": serving.version},
            "decisions": self._recorder.monitor.status()["decisions"]["total"],
        }

    def status(self) -> dict[str, Any]:
        roles = self._manager.roles
        policies = {"serving": roles.serving, "shadow": roles.shadow, "previous": roles.previous}
        return {
            **self._summary(),
            "acting_because": roles.acts(self._recorder.rules_act)[1],
            "policies": {slot: one and one.as_json() for slot, one in policies.items()},
            "deadline_ms": self.settings.deadline_ms,
            "breaker": "open" if self._pipeline.breaker.is_open else "closed",
            **self._recorder.status(),
        }

    def _summary(self) -> dict[str, Any]:
        roles = self._manager.roles
        return {
            "system": self.endpoint.system,
            "summary": self.endpoint.summary,
            "paused": roles.paused is not None,
            "acting": roles.acts(self._recorder.rules_act)[0],
            "rule": self._runner.rule.name,
        }

    def decisions(self, limit: int) -> dict[str, Any]:
        recent = islice(self._recent, limit)
        return {"decisions": [{"time": iso(at), "mode": mode, **one} for at, mode, one in recent]}

    def history(self) -> dict[str, Any]:
        return self._recorder.monitor.history(self._clock())

    def example(self, name: str) -> dict[str, Any]:
        examples = self.endpoint.examples()
        if name not in examples:
            raise RequestError(f"name: {name[:40]!r}; expected one of {sorted(examples)}", "name")
        example: dict[str, Any] = examples[name].model_dump(mode="json")
        return example


def _compare(proposed: Proposed, decided: Decided, routing: Routing) -> dict[str, Any]:
    """The shadow policy's decision, for the record."""
    assert routing.shadow is not None
    agrees = None if proposed.decision is None else proposed.decision == decided.decision
    return {
        "policy": {"name": routing.shadow.name, "version": routing.shadow.version},
        "decision": proposed.decision,
        "agrees": agrees,
        "fault": proposed.fault,
    }
