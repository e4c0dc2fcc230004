"""The monitor of an endpoint: counts, rewards, drifts, and the recommendation that follows.

Memory is bounded, and times are passed in. The recorder adds decisions and feedback, evaluates
`recommendation` after either, and saves `record()` for the next start.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, TypeAdapter
from pydantic_core import to_jsonable_python

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import Settings
from loadmaster.serving.monitoring.drift import MAX_VALUE, Drift, DriftDetectors
from loadmaster.serving.monitoring.history import IntervalCounts, IntervalHistory
from loadmaster.serving.monitoring.lifecycle import (
    Estimate,
    LifecycleSettings,
    LifecycleState,
    Thresholds,
    measure_thresholds,
)
from loadmaster.serving.monitoring.monitor_state import ACTORS, Actor, MonitorState, ShadowCounts
from loadmaster.serving.monitoring.recommendation import Evidence, Recommendation, recommend
from loadmaster.serving.monitoring.reward_falls import FallDetector, FallSettings
from loadmaster.serving.monitoring.reward_stats import ConvergedReward, summarize
from loadmaster.serving.system import Profile

MAX_EVENTS = 100  # drifts kept one by one
SHOWN_EVENTS = 20
FALLS_BYTES = 2500  # of a detector, estimated
EPISODES = 10  # in a window of rewards, as in the paper


class MonitorSettings(Settings):
    delta: float = Field(default=0.05, gt=0, lt=1)  # false positive rate of an ADWIN check
    # ADWIN gets means of blocks, since successive values are correlated.
    input_block: int = Field(default=10, ge=1, le=10_000)  # states
    reward_block: int = Field(default=4, ge=1, le=10_000)  # rewards
    input_shift: float = Field(default=0.25, ge=0)  # smallest relative drift that counts
    on_input_drift: Literal["retrain", "note"] = "note"  # if there are no rewards
    falls: FallSettings = FallSettings()  # of the policy's rewards
    lifecycle: LifecycleSettings = LifecycleSettings()

    @property
    def episode(self) -> int:
        """Rewards that count as one episode for the detection of falls."""
        return max(1, self.lifecycle.window // EPISODES)


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
            del kept.rewards[actor][: -self._kept_rewards]
        self._reward_drift = DriftDetectors(
            "rewards", settings.delta, settings.reward_block, kept.watches
        )
        self._input_drift = DriftDetectors(
            "inputs", settings.delta, settings.input_block, kept.inputs, staggered=True
        )

    @property
    def _kept_rewards(self) -> int:
        return self.settings.lifecycle.window + self.settings.lifecycle.plateau

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
        rewards = self._state.rewards[actor]
        rewards.append(reward)
        if len(rewards) > self._kept_rewards:
            del rewards[0]
        fall = None
        if actor == "policy":
            self._state.evidence.add_reward(self.settings.lifecycle.window)
            fall = self._add_to_falls(time, reward)
        # A fall that the faster detector has found is not reported again.
        drift = self._reward_drift.add(time, actor, reward) if fall is None else fall
        if drift is None:
            return ()
        self._add_drifts(interval, [drift])
        return (drift,)

    def _add_to_falls(self, time: float, reward: float) -> Drift | None:
        if self._state.falls is None:
            self._state.falls = FallDetector()
        settings = self.settings
        fall = self._state.falls.add(time, reward, settings.episode, settings.falls)
        if fall is not None:
            self._reward_drift.restart("policy", time)
        return fall

    def recommendation(
        self, state: LifecycleState, profile: Profile | None = None
    ) -> Recommendation:
        """What to do with the policy in that state of the lifecycle."""
        return recommend(
            state,
            self._state.rewards["policy"],
            self._state.rewards["rule"],
            self._state.evidence,
            self.settings.lifecycle,
            retrain_on_inputs=self.settings.on_input_drift == "retrain",
            profile=profile,
            estimate=self._state.estimate,
            converged=self.converged,
        )

    @property
    def estimate(self) -> Estimate | None:
        """Of the policy's reward, from logged decisions."""
        return self._state.estimate

    @estimate.setter
    def estimate(self, estimate: Estimate | None) -> None:
        self._state.estimate = estimate

    @property
    def converged(self) -> float | None:
        """What the policy earned in SERVING; None if it was never there."""
        return None if self._state.converged is None else self._state.converged.value

    def update_converged(self) -> None:
        """Count the latest reward of the policy, which serves, in its converged reward.

        Rewards do not count while their mean is too low: a fall must not lower the bar.
        """
        settings, converged = self.settings.lifecycle, self._state.converged
        rewards = self._state.rewards["policy"][-settings.window :]
        if len(rewards) < settings.window:
            return
        if converged is None:
            self._state.converged = ConvergedReward.measure(rewards)
        elif summarize(rewards).mean >= converged.bar(settings.degradation):
            converged.add(rewards[-1], settings.window)

    def acted_on(self) -> None:
        """Drop the drifts: a recommendation based on them was carried out."""
        self._state.evidence = Evidence()

    def policy_changed(self) -> None:
        """Drop the rewards of the policy: another one acts from now on, or none."""
        state = self._state
        state.rewards["policy"].clear()
        state.falls = state.estimate = state.converged = None
        self._reward_drift.reset("policy")
        self.acted_on()

    def shadow_changed(self) -> None:
        """Reset the shadow counts: another policy is in shadow from now on, or none."""
        self._state.shadow = ShadowCounts()

    def input_means(self) -> dict[str, float]:
        """Means of the input features since they last changed."""
        return self._input_drift.means()

    def status(self, profile: Profile | None = None) -> dict[str, Any]:
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
            "rewards": self._reward_status(profile),
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
        falls = 0 if state.falls is None else FALLS_BYTES
        return self._history.memory_bytes + 1000 * streams + 32 * rewards + falls

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
                if self._state.falls is not None:
                    self._state.falls.move_to(drift.after)
                matters = drift.fell and drift.exceeds(self.settings.lifecycle.degradation)
                # A rise cancels the fall before it.
                self._state.evidence.fall = drift if matters else None

    def _reward_status(self, profile: Profile | None) -> dict[str, Any]:
        status: dict[str, Any] = {}
        window = self.settings.lifecycle.window
        for actor, rewards in self._state.rewards.items():
            count, mean, std = summarize(rewards[-window:]) if rewards else (0, None, None)
            status[actor] = {"mean": mean, "std": std, "count": count}
        thresholds = measure_thresholds(
            self._state.rewards["rule"], self.settings.lifecycle, profile, self.converged
        )
        status["thresholds"] = (
            thresholds._asdict() if thresholds else dict.fromkeys(Thresholds._fields)
        )
        status["converged"] = self.converged
        return status
