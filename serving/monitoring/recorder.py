"""Records the decisions and feedback of a system: monitor, lifecycle, log and metrics."""

from __future__ import annotations

from collections import Counter
from typing import Any

from loadmaster.envs.errors import InputError
from loadmaster.serving.decisions.guard import KINDS
from loadmaster.serving.decisions.request import (
    POLICY,
    DecisionResult,
    RequestOptions,
    from_json,
    has_only_state,
    to_json,
)
from loadmaster.serving.monitoring.decision_log import DecisionLog
from loadmaster.serving.monitoring.lifecycle import LifecycleState
from loadmaster.serving.monitoring.log_files import DecisionRow, FeedbackRow
from loadmaster.serving.monitoring.metrics import Metrics
from loadmaster.serving.monitoring.monitor import Actor, Monitor, MonitorSettings
from loadmaster.serving.policies.auto_retrain import AutoRetrainer
from loadmaster.serving.policies.store import StateWriter
from loadmaster.serving.timestamps import iso


class DecisionRecorder:
    """Recorder of one system; also holds its lifecycle state."""

    def __init__(
        self,
        system: str,
        settings: MonitorSettings,
        log: DecisionLog,
        metrics: Metrics,
        start: str,
        now: float,
    ) -> None:
        self.system, self._settings, self._log, self._metrics = system, settings, log, metrics
        self.monitor = Monitor(settings)
        self._state, self._since, self._why = LifecycleState(start), now, "as configured"
        self._guarded: Counter[str] = Counter()
        self._dropped = 0
        self._retrainer: AutoRetrainer | None = None
        self._state_writer: StateWriter | None = None

    def connect(self, retrainer: AutoRetrainer, state_writer: StateWriter) -> None:
        """Send recommendations to the retrainer, and show both in the status."""
        self._retrainer, self._state_writer = retrainer, state_writer

    @property
    def state(self) -> str:
        return self._state.value

    @property
    def rules_act(self) -> bool:
        return self._state is LifecycleState.OFFLINE

    def _set_state(self, state: LifecycleState, why: str, now: float) -> None:
        self._state, self._since, self._why = state, now, why
        self._metrics.lifecycle(self._state.value)

    def decided(self, found: DecisionResult, response: dict[str, Any], now: float) -> None:
        """Count a decision; `response` also has the decision of the shadow policy."""
        shadow = response["shadow"] or {}
        drifts = self.monitor.record_decision(
            now,
            source=found.source,  # type: ignore[arg-type]
            cause=found.cause,
            latency_ms=response["latency_ms"],
            features=found.features,
            agrees=shadow.get("agrees"),
            shadow_fault=shadow.get("fault") is not None,
        )
        self._metrics.decided(found.source, found.cause, response["latency_ms"])
        for kind in found.guarded:
            self._guarded[kind] += 1
            self._metrics.guarded(kind)
        for drift in drifts:
            self._metrics.drifted(drift.name)
        if drifts:
            self._apply_recommendation(now)

    def logged(
        self,
        raw: bytes,
        options: RequestOptions,
        response: dict[str, Any],
        found: DecisionResult,
        now: float,
    ) -> None:
        """Write a decision and its request to the log."""
        shadow = response["shadow"]
        self._log.put_decision(
            DecisionRow(
                id=response["id"],
                time=now,
                system=self.system,
                mode=options.mode,
                source=found.source,
                cause=found.cause,
                policy=found.policy["name"],
                version=found.policy["version"],
                state=state_text(raw),
                decision=to_json(response["decision"]).decode(),
                shadow=None if shadow is None else to_json(shadow).decode(),
                reason=to_json(response["reason"]).decode(),
                guard=found.guard,
                latency_ms=response["latency_ms"],
            )
        )

    def record_feedback(
        self, decision_id: str | None, outcome: Any, source: str, reward: float, now: float
    ) -> None:
        """Count a reward; raise InputError if it is not finite."""
        actor: Actor = "policy" if source == POLICY else "rule"
        drifts = self.monitor.record_feedback(now, reward, actor)
        for drift in drifts:
            self._metrics.drifted(drift.what)
        row = FeedbackRow(decision_id, now, self.system, to_json(outcome).decode(), reward)
        self._log.put_feedback(row)
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
        if self._retrainer is not None:
            self._retrainer.request(found.why)

    def replaced(self, why: str, now: float) -> None:
        """Start monitoring another serving bundle."""
        self.monitor.policy_changed()
        self.monitor.shadow_changed()
        self._set_state(LifecycleState.SERVING, why, now)

    def report(self, *, paused: bool) -> None:
        """Set the gauges. Called every few seconds."""
        self._metrics.paused(paused)
        self._metrics.lifecycle(self._state.value)
        status = self.monitor.status()
        self._metrics.shadow(status["shadow"]["agreement"])
        for actor in ("policy", "rule"):
            self._metrics.reward(actor, status["rewards"][actor]["mean"])
        dropped = self._log.status().dropped
        self._metrics.log_dropped(dropped - self._dropped)
        self._dropped = dropped

    @property
    def decisions(self) -> int:
        total: int = self.monitor.status()["decisions"]["total"]
        return total

    def status(self) -> dict[str, Any]:
        return {
            "lifecycle": {"state": self.state, "since": iso(self._since), "why": self._why},
            "guard": {kind: self._guarded[kind] for kind in KINDS},
            **self.monitor.status(),
            "retraining": None if self._retrainer is None else self._retrainer.status(),
            "log": {
                **self._log.status()._asdict(),
                "state": None if self._state_writer is None else self._state_writer.fault,
            },
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
            self.monitor = Monitor.from_record(record["monitor"], self._settings)
            self._state = LifecycleState(record["state"])
            self._since, self._why = float(record["since"]), str(record["why"])
            self._guarded = Counter({k: int(v) for k, v in record["guarded"].items()})
        except (InputError, TypeError, KeyError, ValueError, AttributeError):
            return

    def close(self) -> None:
        self._log.close()


def state_text(raw: bytes) -> str:
    """The state of a valid request: the bytes as received if there is nothing else in it."""
    if has_only_state(raw) and raw.count(b'"state"') == 1:
        return raw[raw.index(b":") + 1 : raw.rindex(b"}")].decode()
    return to_json(from_json(raw)["state"]).decode()
