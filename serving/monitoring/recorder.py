"""Records the decisions and feedback of a system: monitor, lifecycle, log and metrics."""

from collections import Counter
from typing import Any

from pydantic_core import from_json

from loadmaster.serving.decisions.guard import KINDS
from loadmaster.serving.decisions.request import (
    POLICY,
    STATE_ONLY,
    Decided,
    RequestOptions,
    iso,
    to_json,
)
from loadmaster.serving.monitoring import metrics
from loadmaster.serving.monitoring.decision_log import DecisionLog
from loadmaster.serving.monitoring.lifecycle import LifecycleState
from loadmaster.serving.monitoring.log_files import DecisionRow, FeedbackRow
from loadmaster.serving.monitoring.monitor import ACTORS, Monitor, MonitorSettings
from loadmaster.serving.policies.auto_retrain import AutoRetrainer
from loadmaster.serving.policies.store import StateWriter


class DecisionRecorder:
    """Recorder of one system; also holds its lifecycle state."""

    def __init__(
        self,
        system: str,
        settings: MonitorSettings,
        log: DecisionLog,
        retrainer: AutoRetrainer,
        state_writer: StateWriter,
        start: str,
        now: float,
    ) -> None:
        """Recommendations go to the retrainer; the status shows that of both others."""
        self.system, self._settings, self._log = system, settings, log
        self._retrainer, self._state_writer = retrainer, state_writer
        self.monitor = Monitor(settings)
        self._state, self._since, self._why = LifecycleState(start), now, "as configured"
        self._guarded: Counter[str] = Counter()
        self._dropped = 0

    @property
    def state(self) -> str:
        return self._state.value

    @property
    def rules_act(self) -> bool:
        return self._state is LifecycleState.OFFLINE

    def _set_state(self, state: LifecycleState, why: str, now: float) -> None:
        self._state, self._since, self._why = state, now, why
        self._report_state()

    def _report_state(self) -> None:
        value = metrics.STATES.index(self._state.value)
        metrics.record("loadmaster_lifecycle", value, self.system)

    def record_decision(
        self,
        raw: bytes,
        options: RequestOptions,
        response: dict[str, Any],
        decided: Decided,
        now: float,
    ) -> None:
        """Count and log a decision; `response` also has the decision of the shadow policy."""
        shadow, latency_ms = response["shadow"], response["latency_ms"]
        source, cause = decided.source, decided.cause
        drifts = self.monitor.record_decision(
            now,
            source=source,  # type: ignore[arg-type]
            cause=cause,
            latency_ms=latency_ms,
            features=decided.features,
            agrees=shadow and shadow["agrees"],
            shadow_fault=shadow is not None and shadow["fault"] is not None,
        )
        metrics.record("loadmaster_decision_latency_ms", latency_ms, self.system)
        metrics.record("loadmaster_decisions_total", 1, self.system, source)
        if cause is not None:
            metrics.record("loadmaster_fallbacks_total", 1, self.system, cause)
        for kind in decided.guarded:
            self._guarded[kind] += 1
            metrics.record("loadmaster_guard_actions_total", 1, self.system, kind)
        for drift in drifts:
            metrics.record("loadmaster_drift_total", 1, self.system, drift.name)
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
            state=state_text(raw, options),
            decision=to_json(response["decision"]).decode(),
            shadow=None if shadow is None else to_json(shadow).decode(),
            reason=to_json(response["reason"]).decode(),
            guard=decided.guard,
            latency_ms=latency_ms,
        )
        self._log.put(row)

    def record_feedback(
        self, decision_id: str | None, outcome: Any, source: str, reward: float, now: float
    ) -> None:
        """Count a reward; raise InputError if it is not finite."""
        actor = ACTORS[source != POLICY]
        for drift in self.monitor.record_feedback(now, reward, actor):
            metrics.record("loadmaster_drift_total", 1, self.system, drift.what)
        row = FeedbackRow(decision_id, now, self.system, to_json(outcome).decode(), reward)
        self._log.put(row)
        self._apply_recommendation(now)

    def _apply_recommendation(self, now: float) -> None:
        found = self.monitor.recommendation(self._state)
        if found.to is not None and found.to is not self._state:
            self._set_state(found.to, found.why, now)
        if found.action == "keep":
            return
        if found.action == "fall back":
            self.monitor.policy_changed()
        self.monitor.acted_on()
        self._retrainer.request(found.why)

    def replaced(self, why: str, now: float) -> None:
        """Start monitoring another serving bundle."""
        self.monitor.policy_changed()
        self.monitor.shadow_changed()
        self._set_state(LifecycleState.SERVING, why, now)

    def report(self, *, paused: bool) -> None:
        """Set the gauges. Called every few seconds."""
        self._report_state()
        metrics.record("loadmaster_paused", float(paused), self.system)
        status = self.monitor.status()
        if (agreement := status["shadow"]["agreement"]) is not None:
            metrics.record("loadmaster_shadow_agreement", agreement, self.system)
        for actor in ACTORS:
            if (mean := status["rewards"][actor]["mean"]) is not None:
                metrics.record("loadmaster_reward_mean", mean, self.system, actor)
        dropped = self._log.status().dropped
        if dropped > self._dropped:
            metrics.record("loadmaster_log_dropped_total", dropped - self._dropped, self.system)
        self._dropped = dropped

    def status(self) -> dict[str, Any]:
        return {
            "lifecycle": {"state": self.state, "since": iso(self._since), "why": self._why},
            "guard": {kind: self._guarded[kind] for kind in KINDS},
            **self.monitor.status(),
            "retraining": self._retrainer.status(),
            "log": {**self._log.status()._asdict(), "state": self._state_writer.fault},
        }

    def record(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "since": self._since,
            "why": self._why,
            "guarded": dict(self._guarded),
            "monitor": self.monitor.record(),
        }

    def restore(self, record: Any) -> None:
        """Restore from `record()`; a damaged record is ignored."""
        try:
            self.monitor = Monitor(self._settings, record["monitor"])
            self._state = LifecycleState(record["state"])
            self._since, self._why = float(record["since"]), str(record["why"])
            self._guarded = Counter({k: int(v) for k, v in record["guarded"].items()})
        except (TypeError, KeyError, ValueError, AttributeError):
            return

    def close(self) -> None:
        self._log.close()


def state_text(raw: bytes, options: RequestOptions) -> str:
    """The state of a valid request: the bytes as received if there is nothing else in it."""
    if options is STATE_ONLY and raw.count(b'"state"') == 1:
        return raw[raw.index(b":") + 1 : raw.rindex(b"}")].decode()
    return to_json(from_json(raw)["state"]).decode()
