"""What the gateway keeps of a system's decisions: counts, rewards, the lifecycle, the log, metrics.

Whatever goes wrong here is no reason for a decision to fail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from loadmaster.envs.errors import InputError
from loadmaster.serving.decisions import request as said
from loadmaster.serving.decisions.decide import DecisionResult, RequestOptions
from loadmaster.serving.decisions.guard import KINDS
from loadmaster.serving.decisions.request import from_json, to_json
from loadmaster.serving.monitoring.decision_log import DecisionLog
from loadmaster.serving.monitoring.lifecycle import LifecycleState
from loadmaster.serving.monitoring.log_files import DecisionRow, FeedbackRow
from loadmaster.serving.monitoring.metrics import Metrics
from loadmaster.serving.monitoring.monitor import Monitor, MonitorSettings
from loadmaster.serving.monitoring.recommendation import Verdict
from loadmaster.serving.timestamps import iso

KEEP, FALL_BACK = "keep", "fall back"


class DecisionRecorder:
    """Of one system. `on_verdict` hears of what the monitor wants done beyond the lifecycle."""

    def __init__(
        self,
        system: str,
        settings: MonitorSettings,
        log: DecisionLog,
        metrics: Metrics,
        start: str,
        now: float,
        on_verdict: Callable[[Verdict], None] = lambda verdict: None,
    ) -> None:
        self.system, self._settings, self._log, self._metrics = system, settings, log, metrics
        self.on_verdict = on_verdict
        self.monitor = Monitor(settings)
        self._state, self._since, self._why = LifecycleState(start), now, "as configured"
        self._guarded: Counter[str] = Counter()
        self._dropped = 0
        self.save_fault: Callable[[], str | None] = lambda: None
        self.retraining: Callable[[], dict[str, Any] | None] = lambda: None

    @property
    def state(self) -> str:
        return self._state.value

    @property
    def rules_act(self) -> bool:
        return self._state is LifecycleState.OFFLINE

    def go_to(self, state: LifecycleState, why: str, now: float) -> None:
        self._state, self._since, self._why = state, now, why
        self._metrics.lifecycle(self._state.value)

    def decided(self, found: DecisionResult, told: dict[str, Any], now: float) -> None:
        """Count a decision, when all is known about it."""
        shadow = told["shadow"] or {}
        drifts = self.monitor.record_decision(
            now,
            source=found.source,  # type: ignore[arg-type]
            cause=found.cause,
            latency_ms=told["latency_ms"],
            features=found.features,
            agrees=shadow.get("agrees"),
            shadow_fault=shadow.get("fault") is not None,
        )
        self._metrics.decided(found.source, found.cause, told["latency_ms"])
        for kind in found.guarded:
            self._guarded[kind] += 1
            self._metrics.guarded(kind)
        for drift in drifts:
            self._metrics.drifted(drift.name)
        if drifts:
            self._judge(now)

    def logged(
        self,
        raw: bytes,
        frame: RequestOptions,
        told: dict[str, Any],
        found: DecisionResult,
        now: float,
    ) -> None:
        shadow = told["shadow"]
        self._log.put_decision(
            DecisionRow(
                id=told["id"],
                time=now,
                system=self.system,
                mode=frame.mode,
                source=found.source,
                cause=found.cause,
                policy=found.policy["name"],
                version=found.policy["version"],
                state=state_text(raw),
                decision=to_json(told["decision"]).decode(),
                shadow=None if shadow is None else to_json(shadow).decode(),
                reason=to_json(told["reason"]).decode(),
                guard=found.guard,
                latency_ms=told["latency_ms"],
            )
        )

    def fed_back(
        self, decision_id: str | None, outcome: Any, source: str, reward: float, now: float
    ) -> None:
        """An InputError where the reward is no number."""
        who = "policy" if source == said.POLICY else "rule"
        drifts = self.monitor.record_feedback(now, reward, who)  # type: ignore[arg-type]
        for drift in drifts:
            self._metrics.drifted(drift.what)
        row = FeedbackRow(decision_id, now, self.system, to_json(outcome).decode(), reward)
        self._log.put_feedback(row)
        self._judge(now)

    def _judge(self, now: float) -> None:
        verdict = self.monitor.verdict(self._state)
        if verdict.to is not None and verdict.to is not self._state:
            self.go_to(verdict.to, verdict.why, now)
        if verdict.action == KEEP:
            return
        if verdict.action == FALL_BACK:
            self.monitor.policy_changed()  # its rewards say nothing about its successor
        self.monitor.acted_on()
        self.on_verdict(verdict)

    def replaced(self, why: str, now: float) -> None:
        """Another bundle serves."""
        self.monitor.policy_changed()
        self.monitor.shadow_changed()
        self.go_to(LifecycleState.SERVING, why, now)

    def shadow_begins(self) -> None:
        self.monitor.shadow_changed()

    def report(self, *, paused: bool) -> None:
        """To the metrics: what is no event but a state. Called every few seconds."""
        self._metrics.paused(paused)
        self._metrics.lifecycle(self._state.value)
        told = self.monitor.status()
        self._metrics.shadow(told["shadow"]["agreement"])
        for who in ("policy", "rule"):
            self._metrics.reward(who, told["rewards"][who]["mean"])
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
            "retraining": self.retraining(),
            "log": {**self._log.status()._asdict(), "state": self.save_fault()},
        }

    def record(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "since": self._since,
            "why": self._why,
            "guarded": dict(self._guarded),
            "monitor": self.monitor.record(),
        }

    def recall(self, record: Any) -> None:
        """As it was written down; what cannot be read begins anew."""
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
    """The state in a request that was read without a fault, as it came where that is all of it."""
    if said.is_state_alone(raw) and raw.count(b'"state"') == 1:
        return raw[raw.index(b":") + 1 : raw.rindex(b"}")].decode()
    return to_json(from_json(raw)["state"]).decode()
