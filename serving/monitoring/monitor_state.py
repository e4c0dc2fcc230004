"""Persistent state of a monitor: what is saved with a tenant.

Records of earlier versions lack the later fields, which take their defaults.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from pydantic import FiniteFloat

from loadmaster.serving.monitoring.drift import Drift, Stream
from loadmaster.serving.monitoring.lifecycle import Estimate
from loadmaster.serving.monitoring.recommendation import Evidence
from loadmaster.serving.monitoring.reward_falls import FallDetector
from loadmaster.serving.monitoring.reward_stats import ConvergedReward

Actor = Literal["policy", "rule"]
ACTORS: tuple[Actor, ...] = ("policy", "rule")


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
    falls: FallDetector | None = None  # None: no rewards of the policy yet
    estimate: Estimate | None = None  # of the policy's reward without acting
    converged: ConvergedReward | None = None  # None: the policy never reached SERVING
