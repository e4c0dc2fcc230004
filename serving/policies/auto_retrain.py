"""Automatic retraining of a degraded policy: job, comparison, shadow, promotion.

On the monitor's recommendation a job is submitted. If its policy is better than the serving one on
the same sequences, it goes into the shadow slot, and after enough decisions there without a fault
into the serving slot. Blocking calls run in a thread.
"""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import Settings
from loadmaster.serving.decisions.tenant_names import DEFAULT_TENANT
from loadmaster.serving.policies.retraining_job import Retraining, RetrainingState
from loadmaster.serving.policies.versions import PolicySlots
from loadmaster.serving.system import RecordedInput

NO_JOB = dict.fromkeys(("job", "submitted_at", "ended_at", "bundle", "verdict", "error"))


class AutoRetrainSettings(Settings):
    """Conditions for a retrained policy to serve."""

    enabled: bool = True
    shadow_decisions: PositiveInt = 200  # required in shadow
    shadow_faults: NonNegativeInt = 0  # tolerated in shadow
    poll_s: PositiveFloat = 3.0  # period of polling the job


class RetrainedSystem(Protocol):
    """The part of PolicyManager that is used here; inputs and lifecycle are of the tenant."""

    roles: PolicySlots

    @property
    def rules_act(self) -> bool: ...
    def shadow_record(self) -> tuple[int, int]: ...  # decisions, faults
    def environment(self) -> Mapping[str, Any]: ...  # settings that resemble the present inputs
    async def put_in_shadow(self, folder: Path) -> str: ...  # returns its version
    def promote_shadow(self, why: str) -> None: ...
    def drop_shadow(self) -> None: ...


class AutoRetrainer:
    """Retrainer of one system. `wanted`: reason of a request that is not fulfilled yet."""

    def __init__(
        self,
        settings: AutoRetrainSettings,
        retraining: Retraining,
        clock: Callable[[], float],
        recorded: Callable[[str, float], RecordedInput | None] = lambda tenant, now: None,
    ) -> None:
        """`recorded(tenant, now)` reads the tenant's log; it may block."""
        self._settings, self._retraining, self._clock = settings, retraining, clock
        self._recorded = recorded
        self.wanted: str | None = None
        self.tenant = DEFAULT_TENANT  # whose policy degraded
        self._candidate: str | None = None  # retrained version in shadow
        self._used: float | None = None  # ended_at of the latest comparison acted on
        self._polled_at = 0.0

    def request(self, why: str, tenant: str = DEFAULT_TENANT) -> None:
        """Retrain for the inputs of a tenant."""
        if self._settings.enabled:
            self.wanted = why if tenant == DEFAULT_TENANT else f"tenant {tenant}: {why}"
            self.tenant = tenant

    async def tick(self, system: RetrainedSystem) -> None:
        """Advance by one step, if there is one. Called every few seconds."""
        now = self._clock()
        if now - self._polled_at < self._settings.poll_s:
            return
        self._polled_at = now
        if self._candidate is not None:
            self._check_candidate(system)
        state = await asyncio.to_thread(self._retraining.poll, now)
        if state is not None and state.status == "done" and state.ended_at != self._used:
            await self._use(state, system)
        if self.wanted is not None and self._candidate is None:
            await self._submit(system, self.wanted, now)

    async def _submit(self, system: RetrainedSystem, why: str, now: float) -> None:
        if self._retraining.blocked_reason(now) is not None:
            return
        folder, environment = Path(system.roles.serving.folder), dict(system.environment())

        def submit() -> None:
            recorded = self._recorded(self.tenant, now)
            self._retraining.submit(folder, environment, why, now, recorded)

        try:
            await asyncio.to_thread(submit)
        except InputError:
            return  # retried later
        if not system.rules_act:
            self.wanted = None  # the policy still acts; its rewards decide on another retraining

    async def _use(self, state: RetrainingState, system: RetrainedSystem) -> None:
        """Put a better policy into shadow."""
        self._used = state.ended_at
        if state.comparison is None or state.bundle is None or not state.comparison.better:
            return  # where the rules act `wanted` stays: retried after the cool-down
        try:
            self._candidate = await system.put_in_shadow(Path(state.bundle))
        except Exception:  # an unusable bundle must not stop the service
            return
        self.wanted = None

    def _check_candidate(self, system: RetrainedSystem) -> None:
        shadow = system.roles.shadow
        if shadow is None or shadow.version != self._candidate:
            self._candidate = None  # an operator has moved it
            return
        decisions, faults = system.shadow_record()
        if faults > self._settings.shadow_faults:
            system.drop_shadow()
            self._candidate = None
            return
        if decisions < self._settings.shadow_decisions:
            return
        state, difference = self._retraining.state, ""
        found = state and state.comparison
        if found and (text := found.difference_text):
            difference = f", {text} {found.metric} against the last"
        self._candidate = None
        system.promote_shadow(f"retrained{difference}; {decisions} decisions in shadow")

    def status(self) -> dict[str, Any] | None:
        state = self._retraining.state
        if state is not None:
            job = state.as_json()
        elif self.wanted is not None:
            job = {**NO_JOB, "status": "wanted", "why": self.wanted}
        else:
            return None
        return {**job, "wanted": self.wanted, "candidate": self._candidate}

    def record(self) -> dict[str, Any]:
        return {
            "wanted": self.wanted,
            "tenant": self.tenant,
            "candidate": self._candidate,
            "seen": self._used,
            "retraining": self._retraining.record(),
        }

    def restore(self, record: Any) -> None:
        if isinstance(record, dict):
            self.wanted = record.get("wanted")
            self.tenant = record.get("tenant") or DEFAULT_TENANT
            self._candidate, self._used = record.get("candidate"), record.get("seen")
