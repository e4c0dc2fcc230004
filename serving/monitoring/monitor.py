"""The monitor of an endpoint: counts, rewards, drifts, and the recommendation that follows.

Memory is bounded, and times are passed in. The recorder adds decisions and feedback, evaluates
`recommendation` after either, and saves `record()` for the next start.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, FiniteFloat, TypeAdapter
from pydantic_core import to_jsonable_python
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import Settings
from loadmaster.serving.monitoring.drift import MAX_VALUE, Drift, DriftDetectors, Stream
from loadmaster.serving.monitoring.history import IntervalCounts, IntervalHistory
from loadmaster.serving.monitoring.lifecycle import (
    Evidence,
    LifecycleSettings,
    LifecycleState,
    Recommendation,
    Thresholds,
    measure_thresholds,
    recommend,
    summarize,
)

MAX_EVENTS = 100  # drifts kept one by one
SHOWN_EVENTS = 20

Actor = Literal["policy", "rule"]
ACTORS: tuple[Actor, ...] = ("policy", "rule")


class MonitorSettings(Settings):
    delta: float = Field(default=0.05, gt=0, lt=1)  # false positive rate of an ADWIN check
    # ADWIN gets means of blocks, since successive values are correlated.
    input_block: int = Field(default=10, ge=1, le=10_000)  # states
    reward_block: int = Field(default=4, ge=1, le=10_000)  # rewards
    input_shift: float = Field(default=0.25, ge=0)  # smallest relative drift that counts
    on_input_drift: Literal["retrain", "note"] = "note"  # if there are no rewards
    lifecycle: LifecycleSettings = LifecycleSettings()


class MonitorRecord(TypedDict):
    """Persistent state of a monitor."""

    format: Literal[1]  # version of this record
    history: list[IntervalCounts]
    decisions: dict[Literal["policy", "fallback"], int]
    by_cause: Counter[str]
    shadow: dict[Literal["decisions", "agreed", "faults"], int]
    rewards: dict[Actor, list[FiniteFloat]]
    watches: dict[str, Stream]
    inputs: dict[str, Stream]
    drifts: list[Drift]
    evidence: Evidence


_RECORD = TypeAdapter(MonitorRecord)


class Monitor:
    """Monitor of one endpoint."""

    def __init__(self, settings: MonitorSettings | None = None) -> None:
        self.settings = settings = settings or MonitorSettings()
        self._history = IntervalHistory()
        self._decisions = Counter(policy=0, fallback=0)
        self._by_cause: Counter[str] = Counter()
        self._shadow = Counter(decisions=0, agreed=0, faults=0)
        window = settings.lifecycle.window
        self._rewards: dict[Actor, deque[float]] = {actor: deque(maxlen=window) for actor in ACTORS}
        self._reward_drift = DriftDetectors("rewards", settings.delta, settings.reward_block)
        self._input_drift = DriftDetectors(
            "inputs", settings.delta, settings.input_block, staggered=True
        )
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
            self._by_cause[cause or "other"] += 1
            interval.by_cause[cause or "other"] += 1
        interval.add_latency(latency_ms)
        if shadow_fault:
            self._shadow["faults"] += 1
        if agrees is not None:
            self._shadow["decisions"] += 1
            self._shadow["agreed"] += agrees
            interval.shadowed += 1
            interval.agreed += agrees
        add = self._input_drift.add
        drifts = [drift for name, each in features.items() if (drift := add(time, name, each))]
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
        drift = self._reward_drift.add(time, actor, reward)
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
        self._reward_drift.reset("policy")
        self.acted_on()

    def shadow_changed(self) -> None:
        """Reset the shadow counts: another policy is in shadow from now on, or none."""
        self._shadow = Counter(dict.fromkeys(self._shadow, 0))

    def input_means(self) -> dict[str, float]:
        """Means of the input features since they last changed."""
        return self._input_drift.means()

    def status(self) -> dict[str, Any]:
        """Return the monitor's part of an endpoint's status."""
        shadowed = self._shadow["decisions"]
        rewards = self._reward_drift.status().values()
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
                "inputs": self._input_drift.status(),
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
        state = {
            "format": 1,
            "decisions": self._decisions,
            "by_cause": self._by_cause,
            "shadow": self._shadow,
            "rewards": {actor: list(rewards) for actor, rewards in self._rewards.items()},
            "watches": self._reward_drift.streams,
            "inputs": self._input_drift.streams,
            "drifts": list(self._drifts),
            "evidence": self._evidence,
        }
        return {**to_jsonable_python(state), "history": self._history.record()}

    @classmethod
    def from_record(cls, record: Any, settings: MonitorSettings | None = None) -> Monitor:
        """Restore from `record()` under the present settings; raise ValueError if it is damaged."""
        monitor, kept = cls(settings), _RECORD.validate_python(record)
        monitor._history = IntervalHistory(kept["history"])
        monitor._decisions.update(kept["decisions"])
        monitor._by_cause = kept["by_cause"]
        monitor._shadow.update(kept["shadow"])
        for actor, rewards in kept["rewards"].items():
            monitor._rewards[actor].extend(rewards)
        monitor._reward_drift.restore(kept["watches"])
        monitor._input_drift.restore(kept["inputs"])
        monitor._drifts.extend(kept["drifts"])
        monitor._evidence = kept["evidence"]
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
            count, mean, std = summarize(rewards) if rewards else (0, None, None)
            status[actor] = {"mean": mean, "std": std, "count": count}
        thresholds = measure_thresholds(tuple(self._rewards["rule"]), self.settings.lifecycle)
        status["thresholds"] = (
            thresholds._asdict() if thresholds else dict.fromkeys(Thresholds._fields)
        )
        return status
