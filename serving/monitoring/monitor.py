"""The monitor of an endpoint: counts, rewards, drifts, and the recommendation that follows.

Memory is bounded, and times are passed in. The recorder adds decisions and feedback, evaluates
`recommendation` after either, and saves `record()` for the next start.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import Field, FiniteFloat, TypeAdapter
from pydantic_core import to_jsonable_python

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


@dataclass
class ShadowCounts:
    """Decisions of the shadow policy; `agreed` is the sum of their agreements, each at most 1."""

    decisions: int = 0
    agreed: float = 0.0
    faults: int = 0


@dataclass
class MonitorState:
    """Persistent state of a monitor, without its history."""

    format: Literal[1] = 1  # version of the record
    decisions: Counter[str] = field(default_factory=lambda: Counter(policy=0, fallback=0))
    by_cause: Counter[str] = field(default_factory=Counter)
    shadow: ShadowCounts = field(default_factory=ShadowCounts)
    rewards: dict[Actor, list[FiniteFloat]] = field(
        default_factory=lambda: {actor: [] for actor in ACTORS}
    )
    watches: dict[str, Stream] = field(default_factory=dict)  # of rewards
    inputs: dict[str, Stream] = field(default_factory=dict)
    drifts: list[Drift] = field(default_factory=list)
    evidence: Evidence = field(default_factory=Evidence)


_STATE, _HISTORY = TypeAdapter(MonitorState), TypeAdapter(list[IntervalCounts])


class Monitor:
    """Monitor of one endpoint."""

    def __init__(self, settings: MonitorSettings | None = None, record: Any = None) -> None:
        """`record`: from `record()`, continued under the present settings; a damaged one raises
        ValueError."""
        self.settings = settings = settings or MonitorSettings()
        record = record or {"history": []}
        self._state = kept = _STATE.validate_python(record)
        self._history = IntervalHistory(_HISTORY.validate_python(record["history"]))
        for actor in ACTORS:
            del kept.rewards[actor][: -settings.lifecycle.window]
        self._reward_drift = DriftDetectors(
            "rewards", settings.delta, settings.reward_block, kept.watches
        )
        self._input_drift = DriftDetectors(
            "inputs", settings.delta, settings.input_block, kept.inputs, staggered=True
        )

    def record_decision(
        self,
        time: float,
        *,
        source: Literal["policy", "fallback"],
        cause: str | None,
        latency_ms: float,
        features: Mapping[str, float],
        agreement: float | None = None,
        shadow_fault: bool = False,
    ) -> Sequence[Drift]:
        """Count a decision; return the drifts that it revealed.

        `agreement` is None unless a shadow policy decided too, `shadow_fault` means that it failed.
        """
        interval = self._history.at(time)
        interval.decisions += 1
        state = self._state
        state.decisions[source] += 1
        if source == "fallback":
            interval.fallbacks += 1
            state.by_cause[cause or "other"] += 1
            interval.by_cause[cause or "other"] += 1
        interval.add_latency(latency_ms)
        if shadow_fault:
            state.shadow.faults += 1
        if agreement is not None:
            state.shadow.decisions += 1
            state.shadow.agreed += agreement
            interval.shadowed += 1
            interval.agreed += agreement
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
        rewards, window = self._state.rewards[actor], self.settings.lifecycle.window
        rewards.append(reward)
        if len(rewards) > window:
            del rewards[0]
        if actor == "policy":
            self._state.evidence.add_reward(window)
        drift = self._reward_drift.add(time, actor, reward)
        if drift is None:
            return ()
        self._add_drifts(interval, [drift])
        return (drift,)

    def recommendation(self, state: LifecycleState) -> Recommendation:
        """What to do with the policy in that state of the lifecycle."""
        return recommend(
            state,
            self._state.rewards["policy"],
            self._state.rewards["rule"],
            self._state.evidence,
            self.settings.lifecycle,
            retrain_on_inputs=self.settings.on_input_drift == "retrain",
        )

    def acted_on(self) -> None:
        """Drop the drifts: a recommendation based on them was carried out."""
        self._state.evidence = Evidence()

    def policy_changed(self) -> None:
        """Drop the rewards of the policy: another one acts from now on, or none."""
        self._state.rewards["policy"].clear()
        self._reward_drift.reset("policy")
        self.acted_on()

    def shadow_changed(self) -> None:
        """Reset the shadow counts: another policy is in shadow from now on, or none."""
        self._state.shadow = ShadowCounts()

    def input_means(self) -> dict[str, float]:
        """Means of the input features since they last changed."""
        return self._input_drift.means()

    def status(self) -> dict[str, Any]:
        """Return the monitor's part of an endpoint's status."""
        state = self._state
        rewards = self._reward_drift.status().values()
        return {
            "decisions": {
                "total": self.total,
                **state.decisions,
                "by_cause": dict(state.by_cause),
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
                "events": [drift.as_json() for drift in state.drifts[-SHOWN_EVENTS:]],
            },
            "shadow": {
                "decisions": state.shadow.decisions,
                "agreement": self.agreement(),
                "faults": state.shadow.faults,
            },
        }

    @property
    def memory_bytes(self) -> int:
        """Estimated: of what grows with decisions and feedback."""
        state = self._state
        streams = len(state.inputs) + len(state.watches)
        rewards = sum(map(len, state.rewards.values()))
        return self._history.memory_bytes + 1000 * streams + 32 * rewards

    @property
    def total(self) -> int:
        """Number of decisions."""
        return self._state.decisions.total()

    def agreement(self) -> float | None:
        """Mean agreement of the shadow policy's decisions; None if it made none."""
        shadowed = self._state.shadow.decisions
        return self._state.shadow.agreed / shadowed if shadowed else None

    def reward_mean(self, actor: Actor) -> float | None:
        rewards = self._state.rewards[actor]
        return math.fsum(rewards) / len(rewards) if rewards else None

    def history(self, now: float) -> dict[str, Any]:
        """Return the last hour in intervals, oldest first."""
        return self._history.as_json(now)

    def record(self) -> dict[str, Any]:
        """Return the complete state for JSON."""
        return {**to_jsonable_python(self._state), "history": self._history.record()}

    def _add_drifts(self, interval: IntervalCounts, drifts: Sequence[Drift]) -> None:
        interval.drift += len(drifts)
        self._state.drifts += drifts
        del self._state.drifts[:-MAX_EVENTS]
        for drift in drifts:
            if drift.what == "inputs":
                if drift.exceeds(self.settings.input_shift):
                    self._state.evidence.add_input_drift(drift)
            elif drift.name == "policy":
                matters = drift.fell and drift.exceeds(self.settings.lifecycle.degradation)
                # A rise cancels the fall before it.
                self._state.evidence.fall = drift if matters else None

    def _reward_status(self) -> dict[str, Any]:
        status: dict[str, Any] = {}
        for actor, rewards in self._state.rewards.items():
            count, mean, std = summarize(rewards) if rewards else (0, None, None)
            status[actor] = {"mean": mean, "std": std, "count": count}
        thresholds = measure_thresholds(self._state.rewards["rule"], self.settings.lifecycle)
        status["thresholds"] = (
            thresholds._asdict() if thresholds else dict.fromkeys(Thresholds._fields)
        )
        return status
