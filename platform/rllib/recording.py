"""What a rollout worker is asked for, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from loadmaster.platform.rllib.advantages import Rollout
from loadmaster.platform.rllib.columns import Column


@dataclass(frozen=True)
class Assignment:
    """One rollout to make. Those of one `sequence` meet the same input and differ by `luck`."""

    sequence: int  # seed of the environment
    luck: int  # seed of the policy's draws
    keep: float = 1.0  # share of decisions to record, drawn at random
    horizon_s: float | None = None  # mean length; None: the environment's own


@dataclass(frozen=True)
class Recording:
    """A rollout of T decisions, K of which are there to learn from."""

    observations: Mapping[str, Any] | Column  # (K, ...), or a tree of such columns
    actions: Mapping[str, Any] | Column  # (K, ...), a branch for each agent where there are many
    log_probability: NDArray[np.float64]  # (K,), or (K, agents)
    kept: NDArray[np.int64]  # (K,) which of the T decisions they are, in order
    rollout: Rollout  # of all T
    figures: Mapping[str, float]  # the outcome in the environment's own words
    # (1, ...) what came last, where the episode was cut off before it was over.
    last: Mapping[str, Any] | Column | None = None

    @property
    def decisions(self) -> int:
        return len(self.rollout.time_s)


class Verdict(NamedTuple):
    """How an episode went."""

    cost: float  # the metric that is shown, to be lowered
    decisions: int
    loss: float  # what learning lowers: the cost itself, or all that the rewards speak of


class RolloutEngine(Protocol):
    """How an environment and a policy are run together; each system may have a faster way."""

    def roll_out(self, module: Any, assignments: Sequence[Assignment]) -> list[Recording]:
        """Sampled decisions, recorded."""

    def judge(self, module: Any, seeds: Sequence[int]) -> list[Verdict]:
        """The best decisions on the episodes of `seeds`."""
