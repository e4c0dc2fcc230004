"""Records the decisions and feedback of a tenant: monitor, lifecycle, log and metrics."""

import logging
from collections import Counter
from typing import Any

from loadmaster.serving.decisions.guard import KINDS
from loadmaster.serving.decisions.request import (
    POLICY,
    Decided,
    RequestOptions,
    encoded_state,
    iso,
    to_json,
)
from loadmaster.serving.decisions.tenant_names import DEFAULT_TENANT
from loadmaster.serving.monitoring import metrics
from loadmaster.serving.monitoring.decision_log import DecisionLog
from loadmaster.serving.monitoring.lifecycle import (
    Estimate,
    LifecycleState,
    first_state,
    trial_state,
)
from loadmaster.serving.monitoring.log_files import DecisionRow, FeedbackRow
from loadmaster.serving.monitoring.metrics import TenantLabels
from loadmaster.serving.monitoring.monitor import Monitor, MonitorSettings
from loadmaster.serving.monitoring.monitor_state import ACTORS
from loadmaster.serving.policies.control_view import ControlView
from loadmaster.serving.system import Profile

log = logging.getLogger(__name__)


class DecisionRecorder:
    """Recorder of one tenant of a system; also holds its lifecycle state."""

    def __init__(
        self,
        system: str,
        settings: MonitorSettings,
        log: DecisionLog,
        control: ControlView,
        start: str,
        now: float,
        tenant: str = DEFAULT_TENANT,
        labels: TenantLabels | None = None,
        profile: Profile | None = None,
    ) -> None:
        """Recommendations to retrain go to the control process; the status shows its state.

        `profile`: as configured.
        """
        self.system, self.tenant, self._settings, self._log = system, tenant, settings, log
        self._control = control
        self._labels = labels or TenantLabels()
        self.monitor = Monitor(settings)
        self._configured, self._own = profile or Profile(), None  # type: Profile, Profile | None
        self._start = LifecycleState(start)
        self._state, self._since, self._why = self._first_state, now, "as configured"
        self.transitions = 0  # of the lifecycle state
        self._guarded: Counter[str] = Counter()

    @property
    def state(self) -> str:
        return self._state.value

    @property
    def rules_act(self) -> bool:
        return self._state is LifecycleState.OFFLINE

    @property
    def profile(self) -> Profile:
        """Of the tenant: its own, or the configured one."""
        return self._own or self._configured

    @property
    def _first_state(self) -> LifecycleState:
        return first_state(self.profile, self._start)

    def set_profile(self, profile: Profile | None, now: float) -> None:
        """Give the tenant a profile of its own; None: as configured."""
        self._own = profile
        if not self.monitor.total and self._first_state is not self._state:
            self._set_state(self._first_state, "the profile of a new tenant", now)
        self._apply_recommendation(now)

    def set_estimate(self, estimate: Estimate, now: float) -> None:
        """Take an estimate of the serving bundle's reward; it may end OFFLINE."""
        self.monitor.estimate = estimate
        self._apply_recommendation(now)

    def _set_state(self, state: LifecycleState, why: str, now: float) -> None:
        self._state, self._since, self._why = state, now, why
        self.transitions += 1
        self._report_state()

    def _report_state(self) -> None:
        self._count("loadmaster_lifecycle", metrics.STATES.index(self._state.value))

    def _count(self, name: str, value: float, *labels: str) -> None:
        metrics.record(name, value, self.system, self._labels.label(self.tenant), *labels)

    def record_decision(
        self,
        raw: bytes,
        options: RequestOptions,
        response: dict[str, Any],
        decided: Decided,
        now: float,
        memory: str = "",
    ) -> DecisionRow:
        """Count and log a decision; `response` also has the decision of the shadow policy.

        `memory`: what policies remembered of the tenant before it.
        """
        shadow, latency_ms = response["shadow"], response["latency_ms"]
        source, cause, lifecycle = decided.source, decided.cause, self.state
        drifts = self.monitor.record_decision(
            now,
            source=source,  # type: ignore[arg-type]
            cause=cause,
            latency_ms=latency_ms,
            features=decided.features,
            agreement=shadow and shadow["agreement"],
            shadow_fault=shadow is not None and shadow["fault"] is not None,
        )
        self._count("loadmaster_decision_latency_ms", latency_ms)
        self._count("loadmaster_decisions_total", 1, source)
        if cause is not None:
            self._count("loadmaster_fallbacks_total", 1, cause)
        for kind in decided.guarded:
            self._guarded[kind] += 1
            self._count("loadmaster_guard_actions_total", 1, kind)
        for drift in drifts:
            self._count("loadmaster_drift_total", 1, drift.name)
        if drifts:
            self._apply_recommendation(now)
        row = DecisionRow(
            id=response["id"],
            time=now,
            system=self.system,
            mode=options.mode,
            source=source,
            cause=cause,
            policy=decided.policy["name"],
            version=decided.policy["version"],
            state=encoded_state(raw).decode(),
            decision=to_json(response["decision"]).decode(),
            shadow=None if shadow is None else to_json(shadow).decode(),
            reason=to_json(response["reason"]).decode(),
            guard=decided.guard,
            latency_ms=latency_ms,
            tenant=self.tenant,
            memory=memory or None,
            lifecycle=lifecycle,
        )
        self._log.put(row)
        return row

    def record_feedback(
        self, decision_id: str | None, outcome: Any, source: str, reward: float, now: float
    ) -> None:
        """Count a reward; raise InputError if it is not finite."""
        actor = ACTORS[source != POLICY]
        for drift in self.monitor.record_feedback(now, reward, actor):
            self._count("loadmaster_drift_total", 1, drift.what)
        encoded = to_json(outcome).decode()
        row = FeedbackRow(decision_id, now, self.system, encoded, reward, self.tenant)
        self._log.put(row)
        self._apply_recommendation(now)
        if actor == "policy" and self._state is LifecycleState.SERVING:
            self.monitor.update_converged()

    def _apply_recommendation(self, now: float) -> None:
        found = self.monitor.recommendation(self._state, self.profile)
        if found.to is not None and found.to is not self._state:
            self._set_state(found.to, found.why, now)
        if found.action == "keep":
            return
        if found.action == "fall back":
            self.monitor.policy_changed()
        self.monitor.acted_on()
        self._control.request_retraining(found.why, self.tenant)

    def replaced(self, why: str, now: float, *, promoted: bool = True) -> None:
        """Start the trial of another serving bundle, without what was measured of the last one.

        `promoted`: by an action. A configured bundle does not act at first where a new tenant's
        would not.
        """
        self.monitor.policy_changed()
        self.monitor.shadow_changed()
        waits = not promoted and self._first_state is LifecycleState.OFFLINE
        self._set_state(LifecycleState.OFFLINE if waits else trial_state(self.profile), why, now)

    def report(self, *, paused: bool) -> None:
        """Set the gauges. Called every few seconds."""
        self._report_state()
        self._count("loadmaster_paused", float(paused))
        if (agreement := self.monitor.agreement()) is not None:
            self._count("loadmaster_shadow_agreement", agreement)
        for actor in ACTORS:
            if (mean := self.monitor.reward_mean(actor)) is not None:
                self._count("loadmaster_reward_mean", mean, actor)

    def status(self) -> dict[str, Any]:
        return {
            "lifecycle": {
                "state": self.state,
                "since": iso(self._since),
                "why": self._why,
                "evidence": self.monitor.recommendation(self._state, self.profile).why,
                "estimate": None if (found := self.monitor.estimate) is None else found._asdict(),
                "profile": self.profile.model_dump(mode="json"),
            },
            "guard": {kind: self._guarded[kind] for kind in KINDS},
            **self.monitor.status(self.profile),
            "retraining": self._control.retraining,
            "log": {**self._log.status()._asdict(), "state": self._control.fault},
        }

    def record(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "since": self._since,
            "why": self._why,
            "guarded": dict(self._guarded),
            "profile": self._own and self._own.model_dump(mode="json"),
            "monitor": self.monitor.record(),
        }

    def restore(self, record: Any) -> None:
        """Restore from `record()`; a damaged part is ignored with a warning, the profile apart."""
        try:
            own = record.get("profile")
            self._own = None if own is None else Profile.model_validate(own)
            self._state = self._first_state
        except (ValueError, AttributeError):
            log.warning("%s, tenant %s: damaged profile ignored", self.system, self.tenant)
        try:
            monitor = Monitor(self._settings, record["monitor"])
            state = LifecycleState(record["state"])
            restored = state, float(record["since"]), str(record["why"])
            guarded = Counter({kind: int(count) for kind, count in record["guarded"].items()})
        except (TypeError, KeyError, ValueError, AttributeError):
            log.warning("%s, tenant %s: damaged record ignored", self.system, self.tenant)
            return
        self.monitor, self._guarded = monitor, guarded
        self._state, self._since, self._why = restored
