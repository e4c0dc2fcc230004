"""A decayed policy's way back: retraining, then the shadow, then its place.

The monitor says that a policy should be retrained. A job is submitted; where its policy is better
than the serving one on the same sequences, it goes into the shadow; after enough decisions there
without a fault it serves. Whatever is not better stays out, and the rule goes on acting where it
acts. Everything that blocks runs in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import Settings
from loadmaster.serving.policies.retraining_job import Retraining, RetrainingState

POLL_S = 3.0
NOT_YET = ("job", "submitted_at", "ended_at", "bundle", "verdict", "error")  # of the status


class RenewalSettings(Settings):
    """When a retrained policy may serve."""

    enabled: bool = True
    shadow_decisions: PositiveInt = 200  # it must have made in the shadow
    shadow_faults: NonNegativeInt = 0  # it may have made there
    poll_s: PositiveFloat = POLL_S  # how often the job is asked about


class Renewed(Protocol):
    """As much of a system as its renewal works on."""

    @property
    def serving_folder(self) -> str: ...
    @property
    def rules_act(self) -> bool: ...
    @property
    def shadow_version(self) -> str | None: ...
    def shadow_record(self) -> tuple[int, int]: ...  # decisions, faults
    def environment(self) -> Mapping[str, Any]: ...  # that resembles what is seen now
    async def put_in_shadow(self, folder: Path) -> str: ...  # its version
    def promote_shadow(self, why: str) -> None: ...
    def drop_shadow(self) -> None: ...


class AutoRetrainer:
    """Of one system. `wanted` is why it should be retrained, as long as nothing came of it."""

    def __init__(
        self, settings: RenewalSettings, retraining: Retraining, clock: Callable[[], float]
    ) -> None:
        self._settings, self._retraining, self._clock = settings, retraining, clock
        self.wanted: str | None = None
        self._candidate: str | None = None  # version of ours in the shadow
        self._seen: float | None = None  # when the verdict that was acted on came
        self._asked_at = 0.0

    def want(self, why: str) -> None:
        if self._settings.enabled:
            self.wanted = why

    async def look_after(self, system: Renewed) -> None:
        """Every few seconds: one step further, if there is one."""
        now = self._clock()
        if now - self._asked_at < self._settings.poll_s:
            return
        self._asked_at = now
        if self._candidate is not None:
            self._judge_candidate(system)
        state = await asyncio.to_thread(self._retraining.poll, now)
        if state is not None and state.status == "done" and state.ended_at != self._seen:
            await self._use(state, system)
        if self.wanted is not None and self._candidate is None:
            await self._submit(system, self.wanted, now)

    async def _submit(self, system: Renewed, why: str, now: float) -> None:
        if self._retraining.refusal(now) is not None:
            return
        folder, environment = Path(system.serving_folder), dict(system.environment())
        try:
            await asyncio.to_thread(self._retraining.submit, folder, environment, why, now)
        except InputError:
            return  # in a while it may be possible
        if not system.rules_act:
            self.wanted = None  # the policy goes on; whether it is retrained again, rewards tell

    async def _use(self, state: RetrainingState, system: Renewed) -> None:
        """A verdict has come."""
        self._seen = state.ended_at
        assert state.verdict is not None
        assert state.bundle is not None
        if not state.verdict.better:
            return  # `wanted` stays where the rules act: tried again after the cool-down
        try:
            self._candidate = await system.put_in_shadow(Path(state.bundle))
        except Exception:  # a bundle that cannot be used is no reason for anything to stop
            return
        self.wanted = None

    def _judge_candidate(self, system: Renewed) -> None:
        if system.shadow_version != self._candidate:
            self._candidate = None  # an admin has put it elsewhere
            return
        decisions, faults = system.shadow_record()
        if faults > self._settings.shadow_faults:
            system.drop_shadow()
            self._candidate = None
            return
        if decisions < self._settings.shadow_decisions:
            return
        state = self._retraining.state
        difference = ""
        if state is not None and state.verdict is not None:
            told = state.verdict
            if told.difference_percent is not None:
                difference = f", {told.difference_percent:+.1f}% {told.metric} beside the last"
        self._candidate = None
        system.promote_shadow(f"retrained{difference}; {decisions} decisions in the shadow")

    def told(self) -> dict[str, Any] | None:
        """For the status."""
        state = self._retraining.state
        if state is None and self.wanted is None:
            return None
        shown: dict[str, Any] = dict.fromkeys(NOT_YET) | {"status": "wanted", "why": self.wanted}
        if state is not None:
            shown = state.shown()
        return {**shown, "wanted": self.wanted, "candidate": self._candidate}

    def record(self) -> dict[str, Any]:
        return {
            "wanted": self.wanted,
            "candidate": self._candidate,
            "seen": self._seen,
            "retraining": self._retraining.record(),
        }

    def recall(self, record: Any) -> None:
        if isinstance(record, dict):
            self.wanted = record.get("wanted")
            self._candidate, self._seen = record.get("candidate"), record.get("seen")
