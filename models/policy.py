"""Types of a policy's decisions and their explanations.

Each system has one policy class, in `models/<system>/policy.py`. Evaluation, replay and the
decision service use the same one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Of a module's training pass; RLlib has none of these names.
ENTROPY = "entropy"  # column
DECISION = "decision"  # column: row of the batch, where a decision has several log-probabilities
LOSS_TERMS = "loss_terms"  # terms of the loss beside the policy's, weighted, by name


class Option(NamedTuple):
    """One option of a choice."""

    name: str  # "job 17, stage 3"
    score: float  # of the policy
    uncertainty: float | None = None  # standard deviation of the score, if the policy has one
    probability: float | None = None  # of being chosen, if the policy is stochastic
    chosen: bool = False
    details: Mapping[str, str | float] = {}  # further columns of a table: heading -> value


@dataclass(frozen=True)
class Explanation:
    """Summary of a decision in one sentence, and the best options of each choice, best first."""

    summary: str
    choices: Mapping[str, Sequence[Option]] = field(default_factory=dict)  # "stage": [...]
    others: Mapping[str, int] = field(default_factory=dict)  # "stage": options not listed
    notes: Sequence[str] = ()  # what was missing in the input, and what was taken instead


@dataclass(frozen=True)
class ExplainedDecision:
    """A decision of an episode; `record` is its form in JSON."""

    time_s: float
    explanation: Explanation
    record: dict[str, Any] = field(default_factory=dict)


class EpisodeStep(NamedTuple):
    """A decision as a step of an episode that the policy will learn from."""

    observation: NDArray[np.float32]  # 1-D
    action: NDArray[np.float32]  # 1-D; zeros stand for a decision of another


class Learned(NamedTuple):
    """What a policy has learned of a tenant from its episodes."""

    memory: NDArray[np.float32]  # 1-D, of every decision
    episodes: NDArray[np.float32]  # 1-D, of the next episode that it learns from


class Proposal(NamedTuple):
    """Decision of a policy or a rule. `decision` is an instance of the system's schema."""

    decision: Any
    explanation: Explanation
    memory: NDArray[np.float32] | None = None  # 1-D: what the policy remembers of the tenant
    unknown: str = ""  # why the policy leaves the decision to the rule; "": it does not
    step: EpisodeStep | None = None  # None: the policy does not learn from episodes
