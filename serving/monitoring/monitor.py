"""What an endpoint has done lately, and whether its policy should go on.

Everything is counted in bounded memory, with the time passed in. The gateway records decisions and
feedback, asks for a `verdict` after either, and keeps `record()` for the next start.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import Settings
from loadmaster.serving.monitoring.drift import LARGEST, Drift, FeatureDetectors, StreamDetector
from loadmaster.serving.monitoring.history import History, Interval, count
from loadmaster.serving.monitoring.lifecycle import (
    LifecycleSettings,
    LifecycleState,
    measure,
    summary,
)
from loadmaster.serving.monitoring.recommendation import Evidence, Verdict, reach_verdict

EVENTS = 100  # drifts that are remembered one by one
TOLD_EVENTS = 20
FORMAT = 1  # of the record

Actor = Literal["policy", "rule"]


class ServiceLifecycle(LifecycleSettings):
    """A reward here is one outcome, noisier than an episode's, and a service has more at stake: a
    policy is judged by more of them, and where it falls the rules act."""

    window: int = Field(default=200, ge=2, le=10_000)
    deviation: float = Field(default=3.0, gt=0)
    doubt: float = Field(default=4.0, ge=0)  # every reward is followed by a verdict
    retrain_offline: bool = True


class MonitorSettings(Settings):
    delta: float = Field(default=0.05, gt=0, lt=1)  # of ADWIN: how easily a change is believed
    # ADWIN is told means of so many: successive ones are alike.
    input_block: int = Field(default=10, ge=1, le=10_000)  # states
    reward_block: int = Field(default=4, ge=1, le=10_000)  # rewards
    input_shift: float = Field(default=0.25, ge=0)  # share by which an input must drift to matter
    on_input_drift: Literal["retrain", "note"] = "note"  # where no reward can tell what it meant
    lifecycle: ServiceLifecycle = ServiceLifecycle()


class Monitor:
    """Of one endpoint."""

    def __init__(self, settings: MonitorSettings | None = None) -> None:
        self.settings = settings = settings or MonitorSettings()
        self._history = History()
        self._decisions = {"policy": 0, "fallback": 0}
        self._by_cause: dict[str, int] = {}
        self._shadow = {"decisions": 0, "agreed": 0, "faults": 0}
        window = settings.lifecycle.window
        self._rewards: dict[Actor, deque[float]] = {
            "policy": deque(maxlen=window),
            "rule": deque(maxlen=window),
        }
        self._reward_watches: dict[Actor, StreamDetector] = {
            "policy": StreamDetector("rewards", "policy", settings.delta, settings.reward_block),
            "rule": StreamDetector("rewards", "rule", settings.delta, settings.reward_block),
        }
        self._inputs = FeatureDetectors(settings.delta, settings.input_block)
        self._drifts: deque[Drift] = deque(maxlen=EVENTS)
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
        """Count a decision; the drifts it made plain, seldom any.

        `agrees` where a policy in shadow decided too, `shadow_fault` where it should have.
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
            self._note(interval, drifts)
        return drifts

    def record_feedback(self, time: float, reward: float, who: Actor) -> Sequence[Drift]:
        """Count what a decision of the policy, or of the rule, has earned."""
        if not abs(reward) <= LARGEST:
            raise InputError(f"reward {reward} cannot be judged; expected a finite number")
        interval = self._history.at(time)
        interval.add_reward(reward)
        self._rewards[who].append(reward)
        if who == "policy":
            self._evidence.reward_came(self.settings.lifecycle.window)
        drift = self._reward_watches[who].add(time, reward)
        if drift is None:
            return ()
        self._note(interval, [drift])
        return (drift,)

    def verdict(self, state: LifecycleState) -> Verdict:
        """Whether the policy should go on as it does in that state of the endpoint's lifecycle."""
        return reach_verdict(
            state,
            tuple(self._rewards["policy"]),
            tuple(self._rewards["rule"]),
            self._evidence,
            self.settings.lifecycle,
            retrain_on_inputs=self.settings.on_input_drift == "retrain",
        )

    def acted_on(self) -> None:
        """A verdict was carried out: the same drifts are no reason for another one."""
        self._evidence = Evidence()

    def policy_changed(self) -> None:
        """Another policy acts from now on, or none: rewards of the last say nothing about it."""
        self._rewards["policy"].clear()
        self._reward_watches["policy"].forget()
        self.acted_on()

    def shadow_changed(self) -> None:
        """Another policy is in shadow from now on, or none."""
        self._shadow = dict.fromkeys(self._shadow, 0)

    def input_means(self) -> dict[str, float]:
        """What the states are like since they last changed: what retraining should resemble."""
        return self._inputs.means()

    def status(self) -> dict[str, Any]:
        """The monitor's part of an endpoint's status."""
        shadowed = self._shadow["decisions"]
        rewards = [watch.told() for watch in self._reward_watches.values()]
        return {
            "decisions": {
                "total": sum(self._decisions.values()),
                **self._decisions,
                "by_cause": dict(self._by_cause),
                "fallback_rate": self._history.fallback_rate(),
            },
            "latency_ms": self._history.latency_ms(),
            "rewards": self._told_rewards(),
            "drift": {
                "rewards": {
                    "count": sum(told["count"] for told in rewards),
                    "last": max((told["last"] for told in rewards if told["last"]), default=None),
                },
                "inputs": self._inputs.told(),
                "events": [drift.told() for drift in list(self._drifts)[-TOLD_EVENTS:]],
            },
            "shadow": {
                "decisions": shadowed,
                "agreement": self._shadow["agreed"] / shadowed if shadowed else None,
                "faults": self._shadow["faults"],
            },
        }

    def history(self, now: float) -> dict[str, Any]:
        """For charts: the last hour in intervals, the oldest first."""
        return self._history.told(now)

    def record(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        return {
            "format": FORMAT,
            "history": self._history.record(),
            "decisions": dict(self._decisions),
            "by_cause": dict(self._by_cause),
            "shadow": dict(self._shadow),
            "rewards": {who: list(rewards) for who, rewards in self._rewards.items()},
            "watches": {who: watch.record() for who, watch in self._reward_watches.items()},
            "inputs": self._inputs.record(),
            "drifts": [list(drift) for drift in self._drifts],
            "evidence": self._evidence.record(),
        }

    @classmethod
    def from_record(
        cls, record: Mapping[str, Any], settings: MonitorSettings | None = None
    ) -> Monitor:
        """As it was, under today's settings; an InputError if the record is none."""
        monitor = cls(settings)
        try:
            if record["format"] != FORMAT:
                raise InputError(f"format {record['format']!r}; expected {FORMAT}")
            monitor._history = History(map(Interval.from_record, record["history"]))
            for counts, kept in (
                (monitor._decisions, record["decisions"]),
                (monitor._shadow, record["shadow"]),
            ):
                counts.update({name: int(kept[name]) for name in counts})
            monitor._by_cause = {str(k): int(v) for k, v in record["by_cause"].items()}
            for who, rewards in monitor._rewards.items():
                rewards.extend(_finite(record["rewards"][who]))
                monitor._reward_watches[who].restore(record["watches"][who])
            monitor._inputs.restore(record["inputs"])
            monitor._drifts.extend(Drift(*drift) for drift in record["drifts"])
            monitor._evidence = Evidence.from_record(record["evidence"])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as fault:
            said = str(fault) if isinstance(fault, InputError) else repr(fault)
            raise InputError(f"the monitor's record is damaged: {said}") from None
        return monitor

    def _note(self, interval: Interval, drifts: Sequence[Drift]) -> None:
        interval.drift += len(drifts)
        self._drifts.extend(drifts)
        for drift in drifts:
            if drift.what == "inputs":
                if drift.exceeds(self.settings.input_shift):
                    self._evidence.input_drifted(drift)
            elif drift.name == "policy":
                matters = drift.fell and drift.exceeds(self.settings.lifecycle.degradation)
                # A rise takes back the fall before it.
                self._evidence.fall = drift if matters else None

    def _told_rewards(self) -> dict[str, Any]:
        told: dict[str, Any] = {}
        for who, rewards in self._rewards.items():
            earned = summary(rewards) if rewards else None
            told[who] = {
                "mean": earned.mean if earned else None,
                "std": earned.std if earned else None,
                "count": len(rewards),
            }
        thresholds = measure(tuple(self._rewards["rule"]), self.settings.lifecycle)
        names = ("online", "serving", "deviation")
        told["thresholds"] = thresholds._asdict() if thresholds else dict.fromkeys(names)
        return told


def _finite(rewards: Iterable[Any]) -> list[float]:
    numbers = [float(reward) for reward in rewards]
    if not all(map(math.isfinite, numbers)):
        raise InputError("a reward is no finite number")
    return numbers
