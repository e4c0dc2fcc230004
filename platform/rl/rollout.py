"""What a rollout worker is given and records, and what of it the driver and a learner take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import njit_internal
from loadmaster.models.ragged import Ragged, Tree, concatenated
from loadmaster.platform.rl.advantages import Rollout

INITIAL_DECISIONS = 256  # of a CompiledBuffer
FULL = -1  # status of a compiled loop beside the simulator's: no space for another decision

Arrays = TypeVar("Arrays", bound=NamedTuple)
Item = TypeVar("Item")


@dataclass(frozen=True)
class RolloutSpec:
    """One rollout to make; those of one `sequence` share their input and differ in sampling."""

    sequence: int  # seed of the environment
    action_seed: int  # seed of action sampling
    keep: float = 1.0  # share of decisions to record, drawn at random
    horizon_s: float | None = None  # mean length; None: the environment's own
    context: int = 0  # row of the module's table of contexts, where it has one


@dataclass(frozen=True)
class Recording:
    """A rollout of T decisions, K of which are kept for learning."""

    observations: Tree  # of columns (K, ...), each an array or ragged
    actions: Tree  # (K, ...), a branch for each agent where there are many
    # (K,) or (K, agents); ragged where the number of agents differs
    log_probability: NDArray[np.floating[Any]] | Ragged
    kept: NDArray[np.int64]  # (K,) which of the T decisions they are, in order
    rollout: Rollout  # of all T
    figures: Mapping[str, float]  # the environment's own metrics of the episode
    # (1, ...) final observation of an episode that was truncated before it was over.
    last: Tree | None = None

    @property
    def decisions(self) -> int:
        return len(self.rollout.time_s)


@dataclass(frozen=True)
class Sample:
    """What the driver needs of a recording. Its observations stay where they were recorded."""

    spec: RolloutSpec
    kept: NDArray[np.int64]
    rollout: Rollout
    figures: Mapping[str, float]
    truncated: bool
    data: Any = None  # Ray's reference to the recording, for learners in other processes
    worker: int = 0  # that holds the recording; 0: the driver

    @property
    def decisions(self) -> int:
        return len(self.rollout.time_s)


class EpisodeScore(NamedTuple):
    """Result of one greedy episode."""

    value: float  # the metric that is reported
    decisions: int
    loss: float  # what training minimises: a metric, or the negated return


class RolloutEngine(Protocol):
    """Runs an environment with a policy; a system may implement it in compiled code."""

    def roll_out(self, module: Any, assignments: Sequence[RolloutSpec]) -> list[Recording]:
        """Sample decisions and record them."""

    def judge(self, module: Any, seeds: Sequence[int]) -> list[EpisodeScore]:
        """Score the greedy policy on the episodes of `seeds`."""


def balanced_shares(work: Sequence[Item], costs: Sequence[float], count: int) -> list[list[Item]]:
    """Split work into `count` shares of about the same cost: longest first (Graham 1969).

    Each item goes to the share that costs least so far. Equal costs give every share the same
    number of items, or one more.
    """
    totals, shares = [0.0] * count, [list[int]() for _ in range(count)]
    for place in sorted(range(len(work)), key=lambda each: -costs[each]):
        least = totals.index(min(totals))
        totals[least] += costs[place]
        shares[least].append(place)
    return [[work[place] for place in sorted(share)] for share in shares]


def columns_of(
    recordings: Sequence[Recording],
    more: Sequence[Mapping[str, NDArray[np.float32]]],
    pinned: bool = False,
) -> dict[str, Any]:
    """The recorded decisions as columns, with `more` columns of each recording.

    `pinned`: in memory that a GPU copies from directly.
    """
    from ray.rllib.core.columns import Columns as Names  # late: evaluation needs no RLlib

    whole: dict[str, Any] = concatenated([
        {
            Names.OBS: recording.observations,
            Names.ACTIONS: recording.actions,
            Names.ACTION_LOGP: _float32(recording.log_probability),
            **own,
        }
        for recording, own in zip(recordings, more, strict=True)
    ], pinned)  # fmt: skip
    return whole


def _float32(column: Any) -> Any:
    if isinstance(column, Ragged):
        return replace(column, items=column.items.astype(np.float32))
    return column.astype(np.float32)


def normalised(
    groups: Sequence[Sequence[NDArray[np.float64]]], per_group: bool
) -> NDArray[np.float32]:
    """All groups' advantages concatenated, with mean 0 and standard deviation 1.

    `per_group` scales each group first, so that sequences with large advantages weigh no more.
    """
    parts = [np.concatenate(group) for group in groups]
    if per_group:
        parts = [part / (part.std() + 1e-8) for part in parts]
    whole = np.concatenate(parts)
    return np.asarray((whole - whole.mean()) / (whole.std() + 1e-8), np.float32)


def summary_metrics(samples: Sequence[Sample | Recording]) -> dict[str, float]:
    """Counts and returns of an iteration, and means of the environment's own metrics."""
    returns = [float(sample.rollout.reward.sum()) for sample in samples]
    found = {
        "decisions": float(sum(sample.decisions for sample in samples)),
        "learnt_from": float(sum(len(sample.kept) for sample in samples)),
        "rollouts": float(len(samples)),
        "return_mean": float(np.mean(returns)),
        "return_spread": float(np.std(returns)),
    }
    for name in samples[0].figures:
        found[name] = float(np.nanmean([sample.figures[name] for sample in samples]))
    return found


class CompiledBuffer(Generic[Arrays]):
    """A named tuple of tables for compiled loops; its first table counts the rows in use.

    The tables keep the length they grew to: allocating them anew took a quarter of a rollout.
    """

    def __init__(self, blank: Callable[[int], Arrays]) -> None:
        """`blank` makes empty tables for a number of decisions."""
        self.arrays = blank(INITIAL_DECISIONS)

    def rewind(self) -> None:
        """Start the next rollout."""
        self.arrays[0][:] = 0

    def lengthen(self) -> None:
        """Double the capacity and keep the contents."""
        used, *tables = self.arrays
        longer = (np.concatenate([table, np.zeros_like(table)]) for table in tables)
        self.arrays = self.arrays._make([used, *longer])


@njit_internal
def copy_rows(source: NDArray[Any], target: NDArray[Any], start: int, count: int) -> None:
    """Cell by cell: assigning whole rows would allocate in compiled code."""
    for i in range(count):
        for j in range(source.shape[1]):
            target[start + i, j] = source[i, j]
