"""The monitor of an endpoint: counts, rewards, drifts, and the recommendation that follows.

Memory is bounded, and times are passed in. The recorder adds decisions and feedback, evaluates
`recommendation` after either, and saves `record()` for the next start.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import Settings
from loadmaster.serving.monitoring.drift import MAX_VALUE, Drift, FeatureDetectors, StreamDetector
from loadmaster.serving.monitoring.history import IntervalCounts, IntervalHistory, count
from loadmaster.serving.monitoring.lifecycle import (
    Evidence,
    LifecycleSettings,
    LifecycleState,
    Recommendation,
    measure_thresholds,
    recommend,
    summarize,
)

MAX_EVENTS = 100  # drifts kept one by one
SHOWN_EVENTS = 20
FORMAT = 1  # version of the record

Actor = Literal["policy", "rule"]
ACTORS: tuple[Actor, ...] = ("policy", "rule")


class ServiceLifecycle(LifecycleSettings):
    """Defaults for a service: one outcome is noisier than an episode's reward, so the window is
    longer; and the rules act while a degraded policy is retrained."""

    window: int = Field(default=200, ge=2, le=10_000)
    deviation: float = Field(default=3.0, gt=0)
    z_threshold: float = Field(default=4.0, ge=0)  # high, since every reward is followed by a test
    retrain_offline: bool = True


class MonitorSettings(Settings):
    delta: float = Field(default=0.05, gt=0, lt=1)  # false positive rate of an ADWIN check
    # ADWIN gets means of blocks, since successive values are correlated.
    input_block: int = Field(default=10, ge=1, le=10_000)  # states
    reward_block: int = Field(default=4, ge=1, le=10_000)  # rewards
    input_shift: float = Field(default=0.25, ge=0)  # smallest relative drift that counts
    on_input_drift: Literal["retrain", "note"] = "note"  # if there are no rewards
    lifecycle: ServiceLifecycle = ServiceLifecycle()


class Monitor:
    """Monitor of one endpoint."""

    def __init__(self, settings: MonitorSettings | None = None) -> None:
        self.settings = settings = settings or MonitorSettings()
        self._history = IntervalHistory()
        self._decisions = {"policy": 0, "fallback": 0}
        self._by_cause: dict[str, int] = {}
        self._shadow = {"decisions": 0, "agreed": 0, "faults": 0}
        window = settings.lifecycle.window
        self._rewards: dict[Actor, deque[float]] = {actor: deque(maxlen=window) for actor in ACTORS}
        self._reward_detectors = {
            actor: StreamDetector("rewards", actor, settings.delta, settings.reward_block)
            for actor in ACTORS
        }
        self._inputs = FeatureDetectors(settings.delta, settings.input_block)
        self._drifts: deque[Drift] = deque(maxlen=MAX_EVENTS)
        self._evidence = Evidence()

    def record_decision(
        self,
        time: float,
        *,
        source: Literal["policy", "fallback"],
        cause: str | None,
        latency_ms: float,
        features: Mapping[str, float],
        agrees: bool | None = None,
        shadow_fault: bool = False,
    ) -> Sequence[Drift]:
        """Count a decision; return the drifts that it revealed.

        `agrees` is None unless a shadow policy decided too, `shadow_fault` means that it failed.
        """
        interval = self._history.at(time)
        interval.decisions += 1
        self._decisions[source] += 1
        if source == "fallback":
            interval.fallbacks += 1
            count(self._by_cause, cause or "other")
            count(interval.by_cause, cause or "other")
        interval.latencies.add(latency_ms)
        if shadow_fault:
            self._shadow["faults"] += 1
        if agrees is not None:
            self._shadow["decisions"] += 1
            self._shadow["agreed"] += agrees
            interval.shadowed += 1
            interval.agreed += agrees
        drifts = self._inputs.add(time, features)
        if drifts:
            self._add_drifts(interval, drifts)
        return drifts

    def record_feedback(self, time: float, reward: float, actor: Actor) -> Sequence[Drift]:
        """Count the reward of a decision of the policy or the rule; return drifts."""
        if not abs(reward) <= MAX_VALUE:
            raise InputError(f"reward {reward}; expected a finite number")
        interval = self._history.at(time)
        interval.add_reward(reward)
        self._rewards[actor].append(reward)
        if actor == "policy":
            self._evidence.add_reward(self.settings.lifecycle.window)
        drift = self._reward_detectors[actor].add(time, reward)
        if drift is None:
            return ()
        self._add_drifts(interval, [drift])
        return (drift,)

    def recommendation(self, state: LifecycleState) -> Recommendation:
        """What to do with the policy in that state of the lifecycle."""
        return recommend(
            state,
            tuple(self._rewards["policy"]),
            tuple(self._rewards["rule"]),
            self._evidence,
            self.settings.lifecycle,
            retrain_on_inputs=self.settings.on_input_drift == "retrain",
        )

    def acted_on(self) -> None:
        """Drop the drifts: a recommendation based on them was carried out."""
        self._evidence = Evidence()

    def policy_changed(self) -> None:
        """Drop the rewards of the policy: another one acts from now on, or none."""
        self._rewards["policy"].clear()
        self._reward_detectors["policy"].reset()
        self.acted_on()

    def shadow_changed(self) -> None:
        """Reset the shadow counts: another policy is in shadow from now on, or none."""
        self._shadow = dict.fromkeys(self._shadow, 0)

    def input_means(self) -> dict[str, float]:
        """Means of the input features since they last changed."""
        return self._inputs.means()

    def status(self) -> dict[str, Any]:
        """Return the monitor's part of an endpoint's status."""
        shadowed = self._shadow["decisions"]
        rewards = [detector.status() for detector in self._reward_detectors.values()]
        return {
            "decisions": {
                "total": sum(self._decisions.values()),
                **self._decisions,
                "by_cause": dict(self._by_cause),
                "fallback_rate": self._history.fallback_rate(),
            },
            "latency_ms": self._history.latency_ms(),
            "rewards": self._reward_status(),
            "drift": {
                "rewards": {
                    "count": sum(each["count"] for each in rewards),
                    "last": max((each["last"] for each in rewards if each["last"]), default=None),
                },
                "inputs": self._inputs.status(),
                "events": [drift.as_json() for drift in list(self._drifts)[-SHOWN_EVENTS:]],
            },
            "shadow": {
                "decisions": shadowed,
                "agreement": self._shadow["agreed"] / shadowed if shadowed else None,
                "faults": self._shadow["faults"],
            },
        }

    def history(self, now: float) -> dict[str, Any]:
        """Return the last hour in intervals, oldest first."""
        return self._history.as_json(now)

    def record(self) -> dict[str, Any]:
        """Return the complete state for JSON."""
        return {
            "format": FORMAT,
            "history": self._history.record(),
            "decisions": dict(self._decisions),
            "by_cause": dict(self._by_cause),
            "shadow": dict(self._shadow),
            "rewards": {actor: list(rewards) for actor, rewards in self._rewards.items()},
            "watches": {actor: each.record() for actor, each in self._reward_detectors.items()},
            "inputs": self._inputs.record(),
            "drifts": [list(drift) for drift in self._drifts],
            "evidence": self._evidence.record(),
        }

    @classmethod
    def from_record(
        cls, record: Mapping[str, Any], settings: MonitorSettings | None = None
    ) -> Monitor:
        """Restore from `record()` under the present settings; raise InputError if it is damaged."""
        monitor = cls(settings)
        try:
            if record["format"] != FORMAT:
                raise InputError(f"format {record['format']!r}; expected {FORMAT}")
            monitor._history = IntervalHistory(map(IntervalCounts.from_record, record["history"]))
            for counts, kept in (
                (monitor._decisions, record["decisions"]),
                (monitor._shadow, record["shadow"]),
            ):
                counts.update({name: int(kept[name]) for name in counts})
            monitor._by_cause = {str(k): int(v) for k, v in record["by_cause"].items()}
            for actor, rewards in monitor._rewards.items():
                rewards.extend(_finite(record["rewards"][actor]))
                monitor._reward_detectors[actor].restore(record["watches"][actor])
            monitor._inputs.restore(record["inputs"])
            monitor._drifts.extend(Drift(*drift) for drift in record["drifts"])
            monitor._evidence = Evidence.from_record(record["evidence"])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as fault:
            reason = str(fault) if isinstance(fault, InputError) else repr(fault)
            raise InputError(f"damaged monitor record: {reason}") from None
        return monitor

    def _add_drifts(self, interval: IntervalCounts, drifts: Sequence[Drift]) -> None:
        interval.drift += len(drifts)
        self._drifts.extend(drifts)
        for drift in drifts:
            if drift.what == "inputs":
                if drift.exceeds(self.settings.input_shift):
                    self._evidence.add_input_drift(drift)
            elif drift.name == "policy":
                matters = drift.fell and drift.exceeds(self.settings.lifecycle.degradation)
                # A rise cancels the fall before it.
                self._evidence.fall = drift if matters else None

    def _reward_status(self) -> dict[str, Any]:
        status: dict[str, Any] = {}
        for actor, rewards in self._rewards.items():
            stats = summarize(rewards) if rewards else None
            status[actor] = {
                "mean": stats.mean if stats else None,
                "std": stats.std if stats else None,
                "count": len(rewards),
            }
        thresholds = measure_thresholds(tuple(self._rewards["rule"]), self.settings.lifecycle)
        names = ("online", "serving", "deviation")
        status["thresholds"] = thresholds._asdict() if thresholds else dict.fromkeys(names)
        return status


def _finite(rewards: Iterable[Any]) -> list[float]:
    numbers = [float(reward) for reward in rewards]
    if not all(map(math.isfinite, numbers)):
        raise InputError("a reward is not finite")
    return numbers
