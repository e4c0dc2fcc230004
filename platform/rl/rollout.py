"""What a rollout worker is given and returns, and the batches a learner takes from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loadmaster.envs.compiled import njit_internal
from loadmaster.platform.rl.advantages import Rollout

INITIAL_DECISIONS = 256  # of a CompiledBuffer
FULL = -1  # status of a compiled loop beside the simulator's: no space for another decision

Tree = Any  # observations and actions: a table, or Mapping[str, Tree]
Arrays = TypeVar("Arrays", bound=NamedTuple)


def tree_map(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """A tree of the same form, with `function` applied to the leaves at each place."""
    if not isinstance(tree, Mapping):
        return function(tree, *others)
    return {
        name: tree_map(function, branch, *(other[name] for other in others))
        for name, branch in tree.items()
    }


def leaves(tree: Tree) -> Iterator[Any]:
    """Leaves from left to right."""
    if isinstance(tree, Mapping):
        for branch in tree.values():
            yield from leaves(branch)
    else:
        yield tree


@dataclass(frozen=True)
class Ragged:
    """A column of K rows that differ in length, R items in all, stored without padding.

    A minibatch pads its own rows to its own longest, on the learner's device. `spare` empty places
    follow the longest row.
    """

    items: NDArray[Any]  # (R, ...)
    counts: NDArray[np.int64]  # (K,)
    spare: int = 0

    def __len__(self) -> int:
        return len(self.counts)


@dataclass(frozen=True)
class RolloutSpec:
    """One rollout to make; those of one `sequence` share their input and differ in sampling."""

    sequence: int  # seed of the environment
    action_seed: int  # seed of action sampling
    keep: float = 1.0  # share of decisions to record, drawn at random
    horizon_s: float | None = None  # mean length; None: the environment's own


@dataclass(frozen=True)
class Recording:
    """A rollout of T decisions, K of which are kept for learning."""

    observations: Tree  # of columns (K, ...), each an array or ragged
    actions: Tree  # (K, ...), a branch for each agent where there are many
    log_probability: NDArray[np.float64]  # (K,), or (K, agents)
    kept: NDArray[np.int64]  # (K,) which of the T decisions they are, in order
    rollout: Rollout  # of all T
    figures: Mapping[str, float]  # the environment's own metrics of the episode
    # (1, ...) final observation of an episode that was truncated before it was over.
    last: Tree | None = None

    @property
    def decisions(self) -> int:
        return len(self.rollout.time_s)


class EpisodeScore(NamedTuple):
    """Result of one greedy episode."""

    cost: float  # the metric that is reported; lower is better
    decisions: int
    loss: float  # what training minimises: the cost itself, or the negated return


class RolloutEngine(Protocol):
    """Runs an environment with a policy; a system may implement it in compiled code."""

    def roll_out(self, module: Any, assignments: Sequence[RolloutSpec]) -> list[Recording]:
        """Sample decisions and record them."""

    def judge(self, module: Any, seeds: Sequence[int]) -> list[EpisodeScore]:
        """Score the greedy policy on the episodes of `seeds`."""


def batches_with(
    recordings: Sequence[Recording], more: Mapping[str, NDArray[np.float32]], learners: int
) -> list[dict[str, Any]]:
    """The recorded decisions as columns, and `more` columns beside them, one batch a learner."""
    from ray.rllib.core.columns import Columns as Names  # late: evaluation needs no RLlib

    starts = np.cumsum([0, *(len(recording.kept) for recording in recordings)])
    batches = []
    for places in np.array_split(np.arange(len(recordings)), learners):
        parts = [
            {
                Names.OBS: recordings[place].observations,
                Names.ACTIONS: recordings[place].actions,
                Names.ACTION_LOGP: recordings[place].log_probability.astype(np.float32),
                **{name: rows[starts[place] : starts[place + 1]] for name, rows in more.items()},
            }
            for place in places
        ]
        batches.append(concatenated(parts))
    return batches


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


def summary_metrics(recordings: Sequence[Recording]) -> dict[str, float]:
    """Counts and returns of an iteration, and means of the environment's own metrics."""
    returns = [float(recording.rollout.reward.sum()) for recording in recordings]
    found = {
        "decisions": float(sum(recording.decisions for recording in recordings)),
        "learnt_from": float(sum(len(recording.kept) for recording in recordings)),
        "rollouts": float(len(recordings)),
        "return_mean": float(np.mean(returns)),
        "return_spread": float(np.std(returns)),
    }
    for name in recordings[0].figures:
        found[name] = float(np.nanmean([recording.figures[name] for recording in recordings]))
    return found


def concatenated(parts: Sequence[Tree]) -> Tree:
    """The rows of all parts, one part after the other."""

    def joined(*columns: Any) -> Any:
        if not isinstance(columns[0], Ragged):
            return np.concatenate(columns)
        return Ragged(
            np.concatenate([column.items for column in columns]),
            np.concatenate([column.counts for column in columns]),
            columns[0].spare,
        )

    return tree_map(joined, *parts)


def rows_of(columns: Tree) -> int:
    """Number of rows, the same in every column."""
    return len(next(leaves(columns)))


class _Layout:
    """Where the items of each row are. Columns with the same counts share one.

    Counts stay on the CPU: sizes are needed there, without waiting for the device.
    """

    def __init__(self, counts: NDArray[np.int64]) -> None:
        self.counts = torch.as_tensor(counts)  # (K,)
        self.starts = self.counts.cumsum(0) - self.counts  # (K,)

    def places(self, rows: Tensor, device: Any) -> _Places:
        counts = self.counts[rows]
        total = int(counts.sum())

        def spread(values: Tensor) -> Tensor:
            return torch.repeat_interleave(values, counts, output_size=total)

        row = spread(torch.arange(len(rows)))
        within = torch.arange(total) - spread(counts.cumsum(0) - counts)
        source = spread(self.starts[rows]) + within
        longest = int(counts.max()) if len(rows) else 0
        return _Places(row.to(device), within.to(device), source.to(device), longest)


class _Places(NamedTuple):
    """Source and target of a minibatch's items."""

    row: Tensor  # (items,)
    place: Tensor  # (items,)
    source: Tensor  # (items,)
    longest: int


class _RaggedTensor(NamedTuple):
    """A ragged column on a device."""

    items: Tensor  # (R, ...)
    layout: _Layout
    spare: int

    def padded(self, rows: int, places: _Places) -> Tensor:
        """(rows, longest + spare, ...) with zeros behind each row's own items."""
        width, item = places.longest + self.spare, self.items.shape[1:]
        whole = self.items.new_zeros((rows * width, *item))
        # By item: indexing by (row, place) would address every number of an item by itself.
        target = places.row * width + places.place
        whole.index_copy_(0, target, self.items.index_select(0, places.source))
        return whole.view(rows, width, *item)


def on_device(columns: Tree, device: Any) -> Tree:
    """Copy columns to a device once; minibatches select their rows there."""
    layouts: dict[bytes, _Layout] = {}

    def copied(column: Any) -> Any:
        if not isinstance(column, Ragged):
            return torch.as_tensor(column, device=device)
        key = column.counts.tobytes()
        if key not in layouts:
            layouts[key] = _Layout(column.counts)
        items = torch.as_tensor(column.items, device=device)
        return _RaggedTensor(items, layouts[key], column.spare)

    return tree_map(copied, columns)


def taken(tensors: Tree, rows: Tensor, device: Any) -> Tree:
    """Select rows of every column, ragged ones padded; `rows` is on the CPU."""
    there = rows.to(device, non_blocking=True)
    places: dict[int, _Places] = {}

    def selected(column: Any) -> Any:
        if not isinstance(column, _RaggedTensor):
            return column[there]
        layout = column.layout
        if id(layout) not in places:
            places[id(layout)] = layout.places(rows, device)
        return column.padded(len(rows), places[id(layout)])

    return tree_map(selected, tensors)


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
