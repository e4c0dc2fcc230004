"""Decisions of one system for its tenants: routing, shadow, recording, views of them over HTTP."""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

from loadmaster.serving.decisions.episode_learner import EpisodeLearner
from loadmaster.serving.decisions.pipeline import DecisionPipeline, agreement_of, warm_up
from loadmaster.serving.decisions.policy_memory import format_of
from loadmaster.serving.decisions.request import (
    DOWN,
    SHADOW,
    TIMEOUT,
    Decided,
    Proposed,
    RequestError,
    RequestOptions,
    feedback_model,
    line_of,
    read,
    to_json,
)
from loadmaster.serving.decisions.steering import keep_report
from loadmaster.serving.decisions.tenant import Tenant
from loadmaster.serving.decisions.tenant_admin import TenantAdmin
from loadmaster.serving.decisions.tenant_names import DEFAULT_TENANT, TenantAccess, tenant_of
from loadmaster.serving.decisions.tenant_registry import TenantRegistry
from loadmaster.serving.monitoring import metrics
from loadmaster.serving.policies.control_view import ControlState, ControlView
from loadmaster.serving.policies.versions import Routing
from loadmaster.serving.settings import EndpointSettings
from loadmaster.serving.worker.health import TIMEOUT_S, WorkerHealth
from loadmaster.serving.worker.pool import CircuitBreaker, Worker
from loadmaster.serving.worker.worker import PolicyRunner

log = logging.getLogger(__name__)

SHADOW_S = 2.0  # how long a decision in the shadow may take

POLL_S = 0.01  # while the system starts


class DecisionService:
    """One system. Called by the gateway's event loop only."""

    def __init__(
        self,
        settings: EndpointSettings,
        runner: PolicyRunner,
        worker: Worker,
        tenants: TenantRegistry,
        control: ControlView,
        clock: Callable[[], float] = time.time,
        rng: random.Random | None = None,
    ) -> None:
        self.endpoint, self.settings, self.ready = runner.endpoint, settings, False
        self._runner, self._worker, self._clock = runner, worker, clock
        self._tenants, self._control = tenants, control
        self.tenant_admin = TenantAdmin(self.endpoint, tenants, control, clock)
        self._learner = EpisodeLearner(worker, tenants, control)
        self._pipeline = DecisionPipeline(runner, worker, CircuitBreaker())
        self._health = WorkerHealth(self.endpoint.system, self._pipeline.breaker, self._call_worker)
        self._rng = rng or random.Random()
        self._feedback = feedback_model(self.endpoint)
        self._shadows: set[asyncio.Future[Proposed]] = set()

    # Start.

    async def start(self) -> None:
        """Warm up the path to the policy; then the system is ready. Until then the rule decides."""
        while self._control.state is None or not self._worker.is_up:
            await asyncio.sleep(POLL_S)
        metrics.create_all()
        routing = Routing(self._control.roles.serving, None, None)

        def encode(decided: Decided) -> None:
            to_json(self._response(decided, RequestOptions()))

        try:
            await warm_up(self._runner, self._worker, self.settings, routing, encode)
        except Exception:
            log.exception("%s: warm-up", self.endpoint.system)
        self.ready = True

    @property
    def unready_reason(self) -> str | None:
        """Why the system is not ready; None if it is."""
        return self._health.fault if self.ready else "is starting"

    async def watch_worker(self) -> None:
        """Keep `unready_reason` up to date once the system has started."""
        while not self.ready:
            await asyncio.sleep(POLL_S)
        await self._health.watch()

    async def _call_worker(self) -> None:
        """Let the worker decide about an example, and ignore the decision."""
        small = self.endpoint.examples()["small"]
        request = to_json({"state": small.model_dump(mode="json")})
        serving = self._control.roles.serving
        deadline = time.monotonic() + TIMEOUT_S
        await self._worker.decide(serving.version, serving.folder, request, deadline)

    # Decisions.

    async def respond(self, raw: bytes, options: RequestOptions) -> bytes:
        """Return the encoded response; a repeated request id of a tenant gets the same bytes."""
        if options.request_id is None:
            return to_json(await self.decide(raw, options))

        async def decide() -> bytes:
            return to_json(await self.decide(raw, options))

        tenant = await self._tenant(options.tenant)
        tenant.pins += 1
        try:
            return await tenant.responses.get_or_run(options.request_id, raw, decide)
        finally:
            tenant.pins -= 1

    async def decide(self, raw: bytes, options: RequestOptions) -> dict[str, Any]:
        """Answer a request; raises RequestError if it is invalid."""
        tenant = await self._tenant(options.tenant)
        tenant.pins += 1  # until the decision is recorded
        try:
            return await self._decide(raw, options, tenant)
        except BaseException:
            tenant.pins -= 1
            raise

    async def _tenant(self, name: str) -> Tenant:
        return self._tenants.find(name) or await self._tenants.get(name)

    async def _decide(self, raw: bytes, options: RequestOptions, tenant: Tenant) -> dict[str, Any]:
        began, memory = time.perf_counter(), tenant.policy_memory
        rules_act = tenant.recorder.rules_act
        routing = self._control.roles.cast(options.mode, rules_act, tenant.paused)
        deadline_ms = self.settings.deadline_ms
        if options.deadline_ms is not None:
            deadline_ms = min(options.deadline_ms, deadline_ms)
        shadow = None
        share = 1.0 if options.mode == SHADOW else self.settings.shadow_share
        if routing.shadow is not None and self._rng.random() < share:
            shadow = asyncio.ensure_future(self._propose(raw, routing, memory))
        try:
            if self.ready:
                decided = await self._pipeline.decide(
                    raw, routing, deadline_ms, tenant.guard, memory
                )
            else:
                detail = "the worker is starting"
                decided = self._pipeline.decide_here(raw, routing, tenant.guard, DOWN, detail)
        except RequestError:
            if shadow is not None:
                shadow.cancel()
            raise
        if decided.memory:
            tenant.remember(decided.memory)
        response = self._response(decided, options)
        if shadow is not None and options.mode == SHADOW:
            left_s = deadline_ms / 1000 - (time.perf_counter() - began)
            await asyncio.wait({shadow}, timeout=max(left_s, 0))
            if shadow.done():
                found = self._compare(shadow.result(), decided, routing, tenant, response["id"])
                response["shadow"] = found
        response["latency_ms"] = round(1000 * (time.perf_counter() - began), 3)
        if shadow is None or response["shadow"] is not None:
            # After the response is sent, and before the next request is read.
            asyncio.get_running_loop().call_soon(
                self._record, raw, options, response, decided, tenant, memory
            )
        else:
            later = dict(response)

            def record(proposed: asyncio.Future[Proposed]) -> None:
                self._shadows.discard(proposed)
                if proposed.cancelled():
                    tenant.pins -= 1
                    return
                found = self._compare(proposed.result(), decided, routing, tenant, later["id"])
                later["shadow"] = found
                self._record(raw, options, later, decided, tenant, memory)

            self._shadows.add(shadow)  # the event loop keeps weak references only
            shadow.add_done_callback(record)
        return response

    async def _propose(self, raw: bytes, routing: Routing, memory: str) -> Proposed:
        """Decision of the bundle in the shadow; never raises."""
        assert routing.shadow is not None
        try:
            async with asyncio.timeout(SHADOW_S):
                reply = await self._worker.propose(
                    routing.shadow.version, routing.shadow.folder, raw, memory
                )
            return Proposed.model_validate_json(reply)
        except TimeoutError:
            return Proposed(fault=TIMEOUT)
        except Exception as fault:
            return Proposed(fault=DOWN, detail=line_of(fault))

    def _compare(
        self, proposed: Proposed, decided: Decided, routing: Routing, tenant: Tenant, name: str
    ) -> dict[str, Any]:
        """The shadow policy's decision, for the record; `name` is the decision's id.

        What it remembers is kept unless the policy that acts has a memory of the same format. It
        learns from episodes in which the rule acts.
        """
        assert routing.shadow is not None
        if proposed.memory and format_of(proposed.memory) != format_of(decided.memory):
            tenant.remember(proposed.memory)
        if proposed.step is not None and routing.acting is None:
            tenant.add_step(name, proposed.step)
        agrees = agreement = None
        if (other := proposed.decision) is not None:
            agreement = agreement_of(self.endpoint, decided.decision, other)
            agrees = agreement == 1.0
        return {
            "policy": {"name": routing.shadow.name, "version": routing.shadow.version},
            "decision": other,
            "agrees": agrees,
            "agreement": agreement,
            "fault": proposed.fault,
        }

    def _response(self, decided: Decided, options: RequestOptions) -> dict[str, Any]:
        return {
            "id": options.request_id or f"{self._rng.getrandbits(128):032x}",
            "tenant": options.tenant,
            "decision": decided.decision,
            "source": decided.source,
            "cause": decided.cause,
            "reason": decided.reason,
            "policy": decided.policy,
            "guard": decided.guard,
            "shadow": None,
        }

    def _record(
        self,
        raw: bytes,
        options: RequestOptions,
        response: dict[str, Any],
        decided: Decided,
        tenant: Tenant,
        memory: str,
    ) -> None:
        """Record a decision for lists, feedback, monitor and log; `memory` is that of before."""
        tenant.pins -= 1
        now = self._clock()
        tenant.record_decision(raw, options, response, decided, now, memory)
        if (shadow := response["shadow"]) is not None:
            self._tenants.shadow_counts["faults"] += shadow["fault"] is not None
            self._tenants.shadow_counts["decisions"] += shadow["agrees"] is not None
        self._tenants.changed(tenant, now)

    def parse_feedback(self, raw: bytes) -> Any:
        """An outcome; raises RequestError if it is invalid."""
        found: Any = read(self._feedback, raw)
        name = getattr(found.outcome, self.endpoint.tenant_field, None)
        if name is None or "tenant" in found.model_fields_set:
            return found
        return found.model_copy(update={"tenant": tenant_of(name)})

    async def feedback(self, raw: bytes) -> dict[str, Any]:
        """Record an outcome. One of an unknown decision counts for what acts now."""
        feedback = self.parse_feedback(raw)
        reward = self.endpoint.reward(feedback.outcome)
        tenant = await self._tenant(feedback.tenant)
        source = tenant.source_of(feedback.id, self._acts(tenant)[0])
        outcome = feedback.outcome.model_dump(mode="json")
        now = self._clock()
        tenant.recorder.record_feedback(feedback.id, outcome, source, reward, now)
        self._learner.add_reward(tenant, feedback.id, reward)
        self._tenants.changed(tenant, now)
        return {"accepted": True, "reward": reward, "tenant": tenant.name}

    async def steering(self, raw: bytes) -> dict[str, Any]:
        """Keep the last report of a steerer, for the tenant's status."""
        return await keep_report(raw, self._tenants, self._clock)

    def _acts(self, tenant: Tenant) -> tuple[str, str]:
        """What decides for the tenant now, and why."""
        return self._control.roles.acts(tenant.recorder.rules_act, tenant.paused)

    # Operation.

    async def tick(self) -> None:
        """Report metrics and save state; called every few seconds."""
        await self._tenants.tick(paused=self._control.roles.paused is not None)

    def changes_roles(self, state: ControlState) -> bool:
        """Whether another state lets something else decide."""
        known = self._control.state
        return known is not None and known.roles != state.roles

    def apply_control(self, state: ControlState) -> None:
        """Apply another state from now on."""
        before, self._control.state = self._control.state, state
        by = state.why if state.promoted else None
        self._tenants.set_bundles(before and before.roles, state.roles, by=by)

    def report(self) -> dict[str, Any]:
        """The report for the control process, sent every few seconds."""
        counts, shadow = self._tenants.shadow_counts, self._control.roles.shadow
        report: dict[str, Any] = {"active": self._tenants.most_active(), "retrained": None}
        report["shadow"] = shadow and [shadow.version, counts["decisions"], counts["faults"]]
        counts.clear()
        if self._control.retraining is not None:
            found = self._tenants.find(self._control.retrained_tenant)
            report["retrained"] = found and self._inputs(found)
        return report

    def _inputs(self, tenant: Tenant) -> dict[str, Any]:
        """What retraining needs of a tenant."""
        means = tenant.recorder.monitor.input_means()
        environment = dict(self.endpoint.retraining(means))
        return {"rules_act": tenant.recorder.rules_act, "environment": environment}

    def retraining_request(self, why: str, tenant: str) -> dict[str, Any]:
        """A recommendation of a tenant's monitor, for the control process."""
        found = self._tenants.find(tenant)
        return {"why": why, "tenant": tenant, "inputs": found and self._inputs(found)}

    async def flush(self) -> None:
        """Wait until all changes of tenants are durable."""
        await self._tenants.parts.store.flush()

    async def release(self, moves: Callable[[str], bool]) -> None:
        """Give up the tenants that another gateway will own."""
        await self._tenants.release(moves)

    async def close(self) -> None:
        await self._learner.close()
        await self._tenants.close()

    # Views.

    async def brief(self, tenant: str = DEFAULT_TENANT) -> dict[str, Any]:
        serving, found = self._control.roles.serving, await self._tenants.peek(tenant)
        return {
            **self._summary(found),
            "lifecycle": found.recorder.state,
            "policy": {"name": serving.name, "version": serving.version},
            "decisions": found.recorder.monitor.total,
        }

    async def status(
        self, tenant: str, access: TenantAccess, others: Mapping[str, Any]
    ) -> dict[str, Any]:
        """`others`: tenants of other gateways, as reported to the control process."""
        roles, found = self._control.roles, await self._tenants.peek(tenant)
        policies = {"serving": roles.serving, "shadow": roles.shadow, "previous": roles.previous}
        status = {
            **self._summary(found),
            "acting_because": self._acts(found)[1],
            "policies": {slot: one and one.as_json() for slot, one in policies.items()},
            "deadline_ms": self.settings.deadline_ms,
            "breaker": "open" if self._pipeline.breaker.is_open else "closed",
            **found.recorder.status(),
            "steering": found.steering,
            "tenants": await self._tenants.summary(access, others),
        }
        status["log"]["state"] = status["log"]["state"] or self._tenants.parts.store.fault
        if access.tenants is not None:
            status["retraining"] = None  # it names the tenant that it is for
        return status

    def _summary(self, tenant: Tenant) -> dict[str, Any]:
        of_all = self._control.roles.paused is not None
        return {
            "system": self.endpoint.system,
            "tenant": tenant.name,
            "summary": self.endpoint.summary,
            "paused": of_all or tenant.paused is not None,
            "paused_scope": "system" if of_all else "tenant" if tenant.paused is not None else None,
            "acting": self._acts(tenant)[0],
            "rule": self._runner.rule.name,
        }

    async def decisions(self, limit: int, tenant: str = DEFAULT_TENANT) -> dict[str, Any]:
        found = await self._tenants.peek(tenant)
        return {"tenant": tenant, "decisions": found.decisions(limit)}

    async def history(self, tenant: str = DEFAULT_TENANT) -> dict[str, Any]:
        monitor = (await self._tenants.peek(tenant)).recorder.monitor
        return {"tenant": tenant, **monitor.history(self._clock())}

    def example(self, name: str) -> dict[str, Any]:
        examples = self.endpoint.examples()
        if name not in examples:
            raise RequestError(f"name: {name[:40]!r}; expected one of {sorted(examples)}", "name")
        example: dict[str, Any] = examples[name].model_dump(mode="json")
        return example
