"""Manages the policy slots of a system: admin actions, automatic retraining, persistence.

A bundle gets a slot only after the worker has loaded it.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from loadmaster.serving.decisions.request import Loaded, RequestError, iso, line_of, read
from loadmaster.serving.http.schemas import (
    AdminRequest,
    EstimateRequest,
    MemoryRequest,
    PauseRequest,
    ProfileRequest,
    PromoteRequest,
)
from loadmaster.serving.policies.auto_retrain import AutoRetrainer
from loadmaster.serving.policies.control_view import ControlState
from loadmaster.serving.policies.store import StateWriter, Version, resolve_bundle
from loadmaster.serving.policies.versions import Conflict, PolicySlots, restore_slots

SAVE_S = 10.0  # period of saving counts
LOAD_S = 60.0  # timeout of loading a bundle


class AdminAction(StrEnum):
    """Actions of an operator, by the last part of their routes."""

    PAUSE = "pause"
    RESUME = "resume"
    PROMOTE = "promote"
    ROLLBACK = "rollback"
    ESTIMATE = "estimate"  # of a tenant only, as the next ones
    PROFILE = "profile"
    MEMORY = "memory"


REQUESTS: Mapping[AdminAction, type[AdminRequest]] = {
    AdminAction.PAUSE: PauseRequest,
    AdminAction.RESUME: PauseRequest,
    AdminAction.PROMOTE: PromoteRequest,
    AdminAction.ROLLBACK: AdminRequest,
    AdminAction.ESTIMATE: EstimateRequest,
    AdminAction.PROFILE: ProfileRequest,
    AdminAction.MEMORY: MemoryRequest,
}


def read_action(action: AdminAction, raw: bytes) -> AdminRequest:
    """The body of a request for an action; raises RequestError if it is invalid."""
    return read(REQUESTS[action], raw or b"{}")


def pause_reason(action: AdminAction, request: Any) -> str | None:
    """Why decisions are paused from now on; None: they are not."""
    return request.reason or "by an operator" if action is AdminAction.PAUSE else None


class Workers(Protocol):
    """The workers of a system as the control process calls them."""

    async def load(self, folder: str) -> bytes: ...


class PolicyManager:
    """Manager of one system. Only the event loop of the control process calls it."""

    def __init__(
        self,
        workers: Workers,
        writer: StateWriter,
        configured: Version,
        retrainer: AutoRetrainer,
        publish: Callable[[ControlState], Awaitable[None]],
        clock: Callable[[], float],
    ) -> None:
        """`publish` returns once every gateway has applied the state."""
        self._workers, self._writer, self._configured = workers, writer, configured
        self._retrainer, self._publish, self._clock = retrainer, publish, clock
        record = writer.load()
        if record.get("configured") != configured.version:
            record.pop("roles", None)  # another bundle is configured now: that one serves
        self.roles: PolicySlots = restore_slots(record.get("roles"), configured)
        self._promoted: str | None = record.get("promoted")  # version that an action let serve
        self._why = str(record.get("why") or "as configured")
        counts = record.get("shadow")
        self._shadow_counts = Counter(counts if isinstance(counts, dict) else {})
        retrainer.restore(record.get("renewal"))
        self._inputs: Mapping[str, Any] = {"rules_act": False, "environment": {}}
        self._published: ControlState | None = None
        self._publishing = asyncio.Lock()
        self.save()

    @property
    def state(self) -> ControlState:
        """The state that every gateway must apply."""
        promoted = self.roles.serving.version == self._promoted
        retrainer, fault = self._retrainer, self._writer.fault
        status, tenant = retrainer.status(), retrainer.tenant
        return ControlState(self.roles, promoted, self._why, status, tenant, fault)

    async def publish(self) -> None:
        """Send the present state to the gateways, if it has changed."""
        async with self._publishing:  # in order
            if (state := self.state) != self._published:
                await self._publish(state)
                self._published = state

    async def tick(self) -> None:
        """Advance retraining, save the state and publish changes. Called every few seconds."""
        await self._retrainer.tick(self)
        if self._clock() - self._saved_at >= SAVE_S:
            self.save()
        await self.publish()

    # Reports of gateways.

    def take_report(self, report: Mapping[str, Any]) -> None:
        if report["shadow"] is not None and self.roles.shadow is not None:
            version, decisions, faults = report["shadow"]
            if version == self.roles.shadow.version:
                self._shadow_counts.update(decisions=decisions, faults=faults)
        self._inputs = report["retrained"] or self._inputs

    def request_retraining(self, why: str, tenant: str, inputs: Mapping[str, Any] | None) -> None:
        self._inputs = inputs or self._inputs
        self._retrainer.request(why, tenant)

    # What retraining uses.

    @property
    def rules_act(self) -> bool:
        """Whether they act for the tenant whose policy is retrained."""
        return bool(self._inputs["rules_act"])

    def shadow_record(self) -> tuple[int, int]:
        """Decisions and faults of the bundle in shadow, for all tenants."""
        return self._shadow_counts["decisions"], self._shadow_counts["faults"]

    def environment(self) -> Mapping[str, Any]:
        """Settings of an environment that resembles the present inputs."""
        environment: Mapping[str, Any] = self._inputs["environment"]
        return environment

    async def put_in_shadow(self, folder: Path) -> str:
        """Return the version."""
        version = await self.accept(folder)
        self._set_shadow(version)
        return version.version

    def drop_shadow(self) -> None:
        self._set_shadow(None)

    def _set_shadow(self, version: Version | None) -> None:
        self._change(replace(self.roles, shadow=version))

    def promote_shadow(self, why: str) -> None:
        self._replace_serving(self.roles.promoted(iso(self._clock())), why)

    def _replace_serving(self, slots: PolicySlots, why: str) -> None:
        self._promoted, self._why = slots.serving.version, why
        self._change(slots)

    # Actions.

    async def admin_action(self, action: AdminAction, raw: bytes) -> None:
        """Carry out an admin action that concerns the whole system.

        Raises Conflict, without any change, if it is not possible. At the end the action is durable
        and every gateway has applied it.
        """
        request: Any = read_action(action, raw)
        match action:
            case AdminAction.PAUSE | AdminAction.RESUME:
                self._change(replace(self.roles, paused=pause_reason(action, request)))
            case AdminAction.ROLLBACK:
                if self.roles.previous is None:
                    raise Conflict("there is no previous bundle")
                slots = self.roles.rolled_back(iso(self._clock()))
                self._replace_serving(slots, "rolled back by an operator")
            case AdminAction.PROMOTE:
                await self._promote(request)
        await self._writer.flush()
        await self.publish()

    async def _promote(self, request: PromoteRequest) -> None:
        if request.bundle is not None:
            folder = await asyncio.to_thread(resolve_bundle, request.bundle)  # may be a URL
            if request.to == "shadow":
                await self.put_in_shadow(folder)
                return
            accepted = await self.accept(folder)
            slots = self.roles.serving_now(accepted, iso(self._clock()))
            self._replace_serving(slots, "promoted by an operator")
        elif request.to == "shadow":
            raise RequestError("bundle: expected one to put into shadow", "bundle")
        elif self.roles.shadow is None:
            raise Conflict("there is no shadow bundle to promote; expected one as `bundle`")
        else:
            self.promote_shadow("promoted by an operator")

    async def accept(self, folder: Path) -> Version:
        """Copy a bundle that the worker can load; raise InputError or Conflict if it cannot."""
        try:
            return await self._writer.accept(folder, iso(self._clock()), self._check_loads)
        except RequestError:
            self._writer.discard_all_but(self.roles.versions)
            raise

    async def _check_loads(self, version: Version) -> None:
        try:
            reply = await asyncio.wait_for(self._workers.load(version.folder), LOAD_S)
            refused = Loaded.model_validate_json(reply).refused
        except Exception as fault:
            raise Conflict(f"the worker does not respond: {line_of(fault)}") from None
        if refused is not None:
            raise RequestError(refused, "bundle")

    def _change(self, slots: PolicySlots) -> None:
        if (slots.serving, slots.shadow) != (self.roles.serving, self.roles.shadow):
            self._shadow_counts.clear()
        self.roles = slots
        self.save()
        self._writer.discard_all_but(slots.versions)

    def save(self) -> None:
        """Save the state; a fault shows in the status only."""
        self._saved_at = self._clock()
        self._writer.write(
            {
                "configured": self._configured.version,
                "roles": self.roles.record(),
                "promoted": self._promoted,
                "why": self._why,
                "shadow": dict(self._shadow_counts),
                "renewal": self._retrainer.record(),
            }
        )

    async def close(self) -> None:
        self.save()
        await self._writer.close()
