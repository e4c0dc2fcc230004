"""Manages the policy slots of a system: admin actions, automatic retraining, persistence.

A bundle gets a slot only after the worker has loaded it.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from loadmaster.serving.decisions.request import Loaded, RequestError, iso, line_of, read
from loadmaster.serving.http.schemas import AdminRequest, PromoteRequest
from loadmaster.serving.monitoring.recorder import DecisionRecorder
from loadmaster.serving.policies.auto_retrain import AutoRetrainer
from loadmaster.serving.policies.store import StateWriter, Version, resolve_bundle
from loadmaster.serving.policies.versions import PolicySlots, restore_slots
from loadmaster.serving.system import Endpoint
from loadmaster.serving.worker.rpc import Worker

SAVE_S = 10.0  # period of saving counts
LOAD_S = 60.0  # timeout of loading a bundle


class AdminAction(StrEnum):
    """Actions of an operator, by the last part of their routes."""

    PAUSE = "pause"
    RESUME = "resume"
    PROMOTE = "promote"
    ROLLBACK = "rollback"


class Conflict(Exception):  # noqa: N818 - not an error of the service
    """An admin action is not possible in the present state; nothing has changed."""


class PolicyManager:
    """Manager of one system. Only the gateway's event loop calls it."""

    def __init__(
        self,
        endpoint: Endpoint[Any, Any, Any],
        worker: Worker,
        writer: StateWriter,
        recorder: DecisionRecorder,
        configured: Version,
        retrainer: AutoRetrainer,
        clock: Callable[[], float],
    ) -> None:
        self._endpoint, self._worker, self._recorder = endpoint, worker, recorder
        self._writer, self._configured = writer, configured
        self._retrainer, self._clock = retrainer, clock
        record = writer.load()
        if record.get("configured") != configured.version:
            record.pop("roles", None)  # another bundle is configured now: that one serves
        self.roles: PolicySlots = restore_slots(record.get("roles"), configured)
        recorder.restore(record.get("keeper"))
        retrainer.restore(record.get("renewal"))
        self._saved_at = self._clock()

    async def load_policy(self) -> None:
        """Make the worker load the serving bundle; raises if it cannot."""
        await asyncio.wait_for(self._worker.load(self.roles.serving.folder), LOAD_S)

    async def tick(self) -> None:
        """Advance retraining and save the state. Called every few seconds."""
        await self._retrainer.tick(self)
        if self._clock() - self._saved_at >= SAVE_S:
            self.save()

    @property
    def rules_act(self) -> bool:
        return self._recorder.rules_act

    def shadow_record(self) -> tuple[int, int]:
        """Decisions and faults of the bundle in shadow."""
        shadow = self._recorder.monitor.status()["shadow"]
        return shadow["decisions"], shadow["faults"]

    def environment(self) -> Mapping[str, Any]:
        """Settings of an environment that resembles the present inputs."""
        return self._endpoint.retraining(self._recorder.monitor.input_means())

    async def put_in_shadow(self, folder: Path) -> str:
        """Return the version."""
        version = await self.accept(folder)
        self._set_shadow(version)
        return version.version

    def drop_shadow(self) -> None:
        self._set_shadow(None)

    def _set_shadow(self, version: Version | None) -> None:
        self._change(replace(self.roles, shadow=version))
        self._recorder.monitor.shadow_changed()

    def promote_shadow(self, why: str) -> None:
        self._replace_serving(self.roles.promoted(iso(self._clock())), why)

    def _replace_serving(self, slots: PolicySlots, why: str) -> None:
        self._change(slots)
        self._recorder.replaced(why, self._clock())

    async def admin_action(self, action: AdminAction, raw: bytes) -> None:
        """Carry out an admin action; raises Conflict, without any change, if it is not possible."""
        request: Any = read(
            PromoteRequest if action is AdminAction.PROMOTE else AdminRequest, raw or b"{}"
        )
        match action:
            case AdminAction.PAUSE:
                self._change(replace(self.roles, paused=request.reason or "by an operator"))
            case AdminAction.RESUME:
                self._change(replace(self.roles, paused=None))
            case AdminAction.ROLLBACK:
                if self.roles.previous is None:
                    raise Conflict("there is no previous bundle")
                slots = self.roles.rolled_back(iso(self._clock()))
                self._replace_serving(slots, "rolled back by an operator")
            case AdminAction.PROMOTE:
                await self._promote(request)
        await self._writer.flush()  # the action is durable before it is confirmed

    async def _promote(self, request: PromoteRequest) -> None:
        if request.bundle is not None:
            folder = resolve_bundle(request.bundle)
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
            reply = await asyncio.wait_for(self._worker.load(version.folder), LOAD_S)
            refused = Loaded.model_validate_json(reply).refused
        except Exception as fault:
            raise Conflict(f"the worker does not respond: {line_of(fault)}") from None
        if refused is not None:
            raise RequestError(refused, "bundle")

    def _change(self, slots: PolicySlots) -> None:
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
                "keeper": self._recorder.record(),
                "renewal": self._retrainer.record(),
            }
        )

    async def close(self) -> None:
        self.save()
        await self._writer.close()
