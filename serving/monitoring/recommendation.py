"""What follows from rewards and drifts: the policy goes on, learns again, or hands over to rules.

- Rewards judged by the lifecycle come first: they are compared with what the rules earn.
- A fall of the rewards that ADWIN saw is quicker than a full window. The rules take over where
  they are known to earn more than what the policy fell to, or where nobody knows what they earn;
  else the policy goes on while it learns again, since handing over would make things worse.
- Inputs that drifted are no harm in themselves. Where rewards come in, these decide, once a window
  of them is newer than the drift. Where none do, nobody could tell whether the policy still fits:
  then, if the operator wishes so, it learns again on what is seen now, and goes on meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from loadmaster.serving.monitoring.drift import Drift
from loadmaster.serving.monitoring.lifecycle import (
    LifecycleSettings,
    LifecycleState,
    Thresholds,
    judge,
    measure,
)

ACTING = (LifecycleState.ONLINE, LifecycleState.SERVING)  # the policy does
MOST_TOLD = 3  # inputs in one sentence


class Verdict(NamedTuple):
    """`keep`: whoever acts goes on. `retrain`: the policy goes on too, while a better one is
    trained. `fall back`: the rules act meanwhile."""

    action: Literal["keep", "retrain", "fall back"]
    to: LifecycleState | None  # where the lifecycle goes, if it goes anywhere
    why: str


@dataclass
class Evidence:
    """Drifts that nobody has acted on yet."""

    fall: Drift | None = None  # of the policy's rewards
    inputs: dict[str, Drift] = field(default_factory=dict)
    rewards_since: int = 0  # rewards of the policy since an input last drifted

    def input_drifted(self, drift: Drift) -> None:
        self.inputs[drift.name] = drift
        self.rewards_since = 0

    def reward_came(self, window: int) -> None:
        """Inputs that drifted before a whole window of rewards have been judged by it."""
        self.rewards_since += 1
        if self.rewards_since > window:
            self.inputs.clear()

    def record(self) -> dict[str, Any]:
        return {
            "fall": None if self.fall is None else list(self.fall),
            "inputs": {name: list(drift) for name, drift in self.inputs.items()},
            "rewards_since": self.rewards_since,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Evidence:
        return cls(
            fall=None if record["fall"] is None else Drift(*record["fall"]),
            inputs={name: Drift(*drift) for name, drift in record["inputs"].items()},
            rewards_since=int(record["rewards_since"]),
        )


def reach_verdict(
    state: LifecycleState,
    rewards: Sequence[float],
    rules: Sequence[float],
    evidence: Evidence,
    settings: LifecycleSettings,
    retrain_on_inputs: bool,
) -> Verdict:
    """For an endpoint in that state: rewards of the policy and of the rules, the latest last."""
    judgement = judge(state, rewards, rules, settings)
    if state in ACTING:
        if judgement.fallen and judgement.to is not None:
            fell = f"{evidence.fall.words}; " if evidence.fall is not None else ""
            return _down(judgement.to, f"{fell}{judgement.why}", evidence)
        if evidence.fall is not None:
            return _after_a_fall(evidence.fall, measure(rules, settings), evidence, settings)
        if evidence.inputs and retrain_on_inputs and len(rewards) < settings.window:
            return Verdict("retrain", None, f"{_inputs(evidence)}; no rewards tell what it did")
    return Verdict("keep", judgement.to, judgement.why)


def _after_a_fall(
    fall: Drift, thresholds: Thresholds | None, evidence: Evidence, settings: LifecycleSettings
) -> Verdict:
    offline = LifecycleState.OFFLINE if settings.retrain_offline else None
    if thresholds is None:
        why = f"{fall.words}, what the rules would earn is not measured"
        return _down(offline, why, evidence)
    bar = f"{thresholds.serving:.4g}, the rules' less {settings.degradation:.2%}"
    if fall.after >= thresholds.serving:
        return _down(None, f"{fall.words}, still no worse than {bar}", evidence)
    return _down(offline, f"{fall.words}, below {bar}", evidence)


def _down(to: LifecycleState | None, why: str, evidence: Evidence) -> Verdict:
    """Only in OFFLINE do the rules act."""
    drifted = f"; {_inputs(evidence)}" if evidence.inputs else ""
    if to is LifecycleState.OFFLINE:
        return Verdict("fall back", to, f"{why}{drifted}")
    return Verdict("retrain", to, f"{why}{drifted}")


def _inputs(evidence: Evidence) -> str:
    """Those that drifted, the latest first."""
    latest = sorted(evidence.inputs.values(), key=lambda drift: -drift.time)
    more = len(latest) - MOST_TOLD
    told = "; ".join(drift.words for drift in latest[:MOST_TOLD])
    return f"{told}; and {more} more" if more > 0 else told
