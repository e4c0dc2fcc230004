"""Who holds which place: a system's bundles, orders that move them, what survives a restart.

A bundle serves, watches from the shadow, or is the previous one. Operators move it, and so does its
renewal. Whoever gets a place was tried out by the worker before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from loadmaster.serving.decisions.batcher import Worker
from loadmaster.serving.decisions.policy_runner import line_of
from loadmaster.serving.decisions.request import RequestError, from_json, read
from loadmaster.serving.http.schemas import PromoteOrder, VerbOrder
from loadmaster.serving.monitoring.recommendation import Verdict
from loadmaster.serving.monitoring.recorder import DecisionRecorder
from loadmaster.serving.policies.auto_retrain import AutoRetrainer
from loadmaster.serving.policies.resolve_bundle import resolve_bundle
from loadmaster.serving.policies.store import StateWriter, Version
from loadmaster.serving.policies.versions import PolicySlots, roles_from
from loadmaster.serving.system import Endpoint
from loadmaster.serving.timestamps import iso

PAUSE, RESUME, PROMOTE, ROLLBACK = "pause", "resume", "promote", "rollback"
VERBS = (PAUSE, RESUME, PROMOTE, ROLLBACK)

SAVE_S = 10.0  # how much of the counts may be lost where the process is killed
LOAD_S = 60.0  # how long a bundle may take to load


class Conflict(Exception):  # noqa: N818 - it is no fault of the service
    """What an admin asked for cannot be done as things are; nothing has changed."""


class PolicyManager:
    """Of one system. Only the gateway's event loop calls it."""

    def __init__(
        self,
        endpoint: Endpoint[Any, Any, Any],
        worker: Worker,
        books: StateWriter,
        keeper: DecisionRecorder,
        configured: Version,
        renewal: AutoRetrainer,
        clock: Callable[[], float],
    ) -> None:
        self._endpoint, self._worker, self._books, self._keeper = endpoint, worker, books, keeper
        self._configured, self._renewal, self._clock = configured, renewal, clock
        remembered = books.remembered()
        if remembered.get("configured") != configured.version:
            remembered.pop("roles", None)  # somebody has named another bundle since: that serves
        self.roles: PolicySlots = roles_from(remembered.get("roles"), configured)
        keeper.recall(remembered.get("keeper"))
        renewal.recall(remembered.get("renewal"))
        keeper.on_verdict, keeper.retraining = self._heed, renewal.told
        keeper.save_fault = lambda: books.fault
        self._saved_at = self._clock()

    async def meet(self) -> None:
        """Let the worker meet the bundle that serves; raises whatever keeps it from that."""
        await asyncio.wait_for(self._worker.load(self.roles.serving.folder), LOAD_S)

    async def look_after(self) -> None:
        """Every few seconds."""
        await self._renewal.look_after(self)
        if self._clock() - self._saved_at >= SAVE_S:
            self.save()

    def _heed(self, verdict: Verdict) -> None:
        """The monitor wants the policy retrained, be it acting meanwhile or not."""
        self._renewal.want(verdict.why)

    @property
    def serving_folder(self) -> str:
        return self.roles.serving.folder

    @property
    def rules_act(self) -> bool:
        return self._keeper.rules_act

    @property
    def shadow_version(self) -> str | None:
        return None if self.roles.shadow is None else self.roles.shadow.version

    def shadow_record(self) -> tuple[int, int]:
        """Decisions and faults of the bundle in the shadow."""
        told = self._keeper.monitor.status()["shadow"]
        return told["decisions"], told["faults"]

    def environment(self) -> Mapping[str, Any]:
        """Settings of an environment that resembles what is seen now."""
        return self._endpoint.retraining(self._keeper.monitor.input_means())

    async def put_in_shadow(self, folder: Path) -> str:
        version = await self.accept(folder)
        self._change(self.roles.with_shadow(version))
        self._keeper.shadow_begins()
        return version.version

    def promote_shadow(self, why: str) -> None:
        now = self._clock()
        self._change(self.roles.promoted(iso(now)))
        self._keeper.replaced(why, now)

    def drop_shadow(self) -> None:
        self._change(self.roles.with_shadow(None))
        self._keeper.shadow_begins()

    # What operators order.

    async def order(self, verb: str, raw: bytes) -> None:
        """Nothing has changed where it cannot be done: then a Conflict says why."""
        order: Any = read(PromoteOrder if verb == PROMOTE else VerbOrder, raw or b"{}")
        now = iso(self._clock())
        if verb == PAUSE:
            self._change(self.roles.with_pause(order.reason or "by an operator"))
        elif verb == RESUME:
            self._change(self.roles.with_pause(None))
        elif verb == ROLLBACK:
            if self.roles.previous is None:
                raise Conflict("there is no previous bundle to go back to")
            self._change(self.roles.rolled_back(now))
            self._keeper.replaced("rolled back by an operator", self._clock())
        else:
            await self._promote(order, now)
        await self._books.written()  # what was ordered stays so, whatever happens next

    async def _promote(self, order: PromoteOrder, now: str) -> None:
        if order.bundle is None:
            if order.to == "shadow":
                raise RequestError("bundle: expected one to put in the shadow", "bundle")
            if self.roles.shadow is None:
                raise Conflict("there is no shadow bundle to promote; name one as `bundle`")
            self._change(self.roles.promoted(now))
        else:
            folder = resolve_bundle(order.bundle)
            if order.to == "shadow":
                await self.put_in_shadow(folder)
                return
            self._change(self.roles.serving_now(await self.accept(folder), now))
        self._keeper.replaced("promoted by an operator", self._clock())

    async def accept(self, folder: Path) -> Version:
        """A bundle that the worker can use, kept; an InputError or a Conflict where it cannot."""
        try:
            return await self._books.accept(folder, iso(self._clock()), self._try_out)
        except RequestError:
            self._books.discard_all_but(self.roles.versions)
            raise

    async def _try_out(self, version: Version) -> None:
        try:
            answer = from_json(await asyncio.wait_for(self._worker.load(version.folder), LOAD_S))
        except Exception as fault:
            raise Conflict(f"the worker does not answer: {line_of(fault)}") from None
        if "refused" in answer:
            raise RequestError(answer["refused"], "bundle")

    def _change(self, roles: PolicySlots) -> None:
        self.roles = roles
        self.save()
        self._books.discard_all_but(roles.versions)

    def save(self) -> None:
        """What must survive a restart; a full disk is told in the status, and nothing else."""
        self._saved_at = self._clock()
        self._books.write(
            {
                "configured": self._configured.version,
                "roles": self.roles.record(),
                "keeper": self._keeper.record(),
                "renewal": self._renewal.record(),
            }
        )

    async def close(self) -> None:
        self.save()
        await self._books.close()
