"""Manages the policy slots of a system: admin actions, automatic retraining, persistence.

A bundle gets a slot only after the worker has loaded it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from loadmaster.serving.decisions.request import RequestError, from_json, line_of, read
from loadmaster.serving.http.schemas import AdminRequest, PromoteRequest
from loadmaster.serving.monitoring.recorder import DecisionRecorder
from loadmaster.serving.policies.auto_retrain import AutoRetrainer
from loadmaster.serving.policies.store import StateWriter, Version, resolve_bundle
from loadmaster.serving.policies.versions import PolicySlots, restore_slots
from loadmaster.serving.system import Endpoint
from loadmaster.serving.timestamps import iso
from loadmaster.serving.worker.rpc import Worker

PAUSE, RESUME, PROMOTE, ROLLBACK = "pause", "resume", "promote", "rollback"
VERBS = (PAUSE, RESUME, PROMOTE, ROLLBACK)

SAVE_S = 10.0  # period of saving counts
LOAD_S = 60.0  # timeout of loading a bundle


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
        recorder.connect(retrainer, writer)
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
    def serving_folder(self) -> str:
        return self.roles.serving.folder

    @property
    def rules_act(self) -> bool:
        return self._recorder.rules_act

    @property
    def shadow_version(self) -> str | None:
        return None if self.roles.shadow is None else self.roles.shadow.version

    def shadow_record(self) -> tuple[int, int]:
        """Decisions and faults of the bundle in shadow."""
        shadow = self._recorder.monitor.status()["shadow"]
        return shadow["decisions"], shadow["faults"]

    def environment(self) -> Mapping[str, Any]:
        """Settings of an environment that resembles the present inputs."""
        return self._endpoint.retraining(self._recorder.monitor.input_means())

    async def put_in_shadow(self, folder: Path) -> str:
        version = await self.accept(folder)
        self._change(replace(self.roles, shadow=version))
        self._recorder.monitor.shadow_changed()
        return version.version

    def promote_shadow(self, why: str) -> None:
        now = self._clock()
        self._change(self.roles.promoted(iso(now)))
        self._recorder.replaced(why, now)

    def drop_shadow(self) -> None:
        self._change(replace(self.roles, shadow=None))
        self._recorder.monitor.shadow_changed()

    async def order(self, verb: str, raw: bytes) -> None:
        """Carry out an admin action; raises Conflict, without any change, if it is not possible."""
        order: Any = read(PromoteRequest if verb == PROMOTE else AdminRequest, raw or b"{}")
        now = iso(self._clock())
        if verb == PAUSE:
            self._change(replace(self.roles, paused=order.reason or "by an operator"))
        elif verb == RESUME:
            self._change(replace(self.roles, paused=None))
        elif verb == ROLLBACK:
            if self.roles.previous is None:
                raise Conflict("there is no previous bundle")
            self._change(self.roles.rolled_back(now))
            self._recorder.replaced("rolled back by an operator", self._clock())
        else:
            await self._promote(order, now)
        await self._writer.flush()  # the action is durable before it is confirmed

    async def _promote(self, order: PromoteRequest, now: str) -> None:
        if order.bundle is None:
            if order.to == "shadow":
                raise RequestError("bundle: expected one to put into shadow", "bundle")
            if self.roles.shadow is None:
                raise Conflict("there is no shadow bundle to promote; expected one as `bundle`")
            self._change(self.roles.promoted(now))
        else:
            folder = resolve_bundle(order.bundle)
            if order.to == "shadow":
                await self.put_in_shadow(folder)
                return
            self._change(self.roles.serving_now(await self.accept(folder), now))
        self._recorder.replaced("promoted by an operator", self._clock())

    async def accept(self, folder: Path) -> Version:
        """Copy a bundle that the worker can load; raise InputError or Conflict if it cannot."""
        try:
            return await self._writer.accept(folder, iso(self._clock()), self._check_loads)
        except RequestError:
            self._writer.discard_all_but(self.roles.versions)
            raise

    async def _check_loads(self, version: Version) -> None:
        try:
            reply = from_json(await asyncio.wait_for(self._worker.load(version.folder), LOAD_S))
        except Exception as fault:
            raise Conflict(f"the worker does not respond: {line_of(fault)}") from None
        if "refused" in reply:
            raise RequestError(reply["refused"], "bundle")

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
