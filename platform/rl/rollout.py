"""What a rollout worker is asked for, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loadmaster.platform.rl.advantages import Rollout

# Columns of a batch whose rows may differ in length, such as the stages of a growing queue.
#
# Padding every row to the longest would make most of a batch zeros, on its way from the rollout
# workers to the learner and in the learner's memory. A `Ragged` column travels without padding; a
# minibatch pads its own rows, on the learner's device, to its own longest.


@dataclass(frozen=True)
class Ragged:
    """K rows, R items in all; `spare` empty places follow the longest row when it is padded."""

    items: NDArray[Any]  # (R, ...)
    counts: NDArray[np.int64]  # (K,)
    spare: int = 0

    def __len__(self) -> int:
        return len(self.counts)


@dataclass(frozen=True)
class Layout:
    """Where the items of each row are. Columns with the same counts share one."""

    # Both in the driver's memory: it needs the sizes, and a device must not be waited for.
    counts: Tensor  # (K,)
    starts: Tensor  # (K,)

    def places(self, rows: Tensor, device: Any) -> Places:
        counts = self.counts[rows]
        total = int(counts.sum())

        def spread(values: Tensor) -> Tensor:
            return torch.repeat_interleave(values, counts, output_size=total)

        row = spread(torch.arange(len(rows)))
        within = torch.arange(total) - spread(counts.cumsum(0) - counts)
        source = spread(self.starts[rows]) + within
        longest = int(counts.max()) if len(rows) else 0
        return Places(row.to(device), within.to(device), source.to(device), longest)


class Places(NamedTuple):
    """Of a minibatch's items: which row and place they go to, and where they come from."""

    row: Tensor  # (items,)
    place: Tensor  # (items,)
    source: Tensor  # (items,)
    longest: int


@dataclass(frozen=True)
class RaggedTensor:
    """A ragged column on a device."""

    items: Tensor  # (R, ...)
    layout: Layout
    spare: int

    def padded(self, rows: int, places: Places) -> Tensor:
        """(rows, longest + spare, ...) with zeros behind each row's own items."""
        width, item = places.longest + self.spare, self.items.shape[1:]
        whole = self.items.new_zeros((rows * width, *item))
        # By item: to index by (row, place) would address every number of an item by itself.
        target = places.row * width + places.place
        whole.index_copy_(0, target, self.items.index_select(0, places.source))
        return whole.view(rows, width, *item)


Column = NDArray[Any] | Ragged
Columns = Mapping[str, "Column | Columns"]  # a tree, as observations are
TensorColumns = dict[str, Any]  # the same tree with tensors


def joined(parts: Sequence[Columns]) -> dict[str, Any]:
    """The rows of all parts, one after the other."""
    whole: dict[str, Any] = {}
    for name, first in parts[0].items():
        columns: list[Any] = [part[name] for part in parts]
        if isinstance(first, Mapping):
            whole[name] = joined(columns)
        elif isinstance(first, Ragged):
            whole[name] = Ragged(
                np.concatenate([column.items for column in columns]),
                np.concatenate([column.counts for column in columns]),
                first.spare,
            )
        else:
            whole[name] = np.concatenate(columns)
    return whole


def rows_of(columns: Columns) -> int:
    """How many there are in every column."""
    first = next(iter(columns.values()))
    return rows_of(first) if isinstance(first, Mapping) else len(first)


def on_device(columns: Columns, device: Any) -> TensorColumns:
    """The same columns as tensors: one copy, of which every minibatch then takes its rows."""
    return _on_device(columns, device, {})


def _on_device(columns: Columns, device: Any, layouts: dict[bytes, Layout]) -> TensorColumns:
    tensors: TensorColumns = {}
    for name, column in columns.items():
        if isinstance(column, Mapping):
            tensors[name] = _on_device(column, device, layouts)
        elif isinstance(column, Ragged):
            known = column.counts.tobytes()
            if known not in layouts:
                counts = torch.as_tensor(column.counts)
                layouts[known] = Layout(counts, counts.cumsum(0) - counts)
            items = torch.as_tensor(column.items, device=device)
            tensors[name] = RaggedTensor(items, layouts[known], column.spare)
        else:
            tensors[name] = torch.as_tensor(column, device=device)
    return tensors


def taken(tensors: TensorColumns, rows: Tensor, device: Any) -> TensorColumns:
    """Some rows of every column, ragged ones padded; `rows` is in the driver's memory."""
    return _taken(tensors, rows, rows.to(device, non_blocking=True), device, {})


def _taken(
    tensors: TensorColumns, rows: Tensor, there: Tensor, device: Any, known: dict[int, Places]
) -> TensorColumns:
    part: TensorColumns = {}
    for name, column in tensors.items():
        if isinstance(column, dict):
            part[name] = _taken(column, rows, there, device, known)
        elif isinstance(column, RaggedTensor):
            layout = column.layout
            if id(layout) not in known:
                known[id(layout)] = layout.places(rows, device)
            part[name] = column.padded(len(rows), known[id(layout)])
        else:
            part[name] = column[there]
    return part


@dataclass(frozen=True)
class RolloutSpec:
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


class EpisodeScore(NamedTuple):
    """How an episode went."""

    cost: float  # the metric that is shown, to be lowered
    decisions: int
    loss: float  # what learning lowers: the cost itself, or all that the rewards speak of


class RolloutEngine(Protocol):
    """How an environment and a policy are run together; each system may have a faster way."""

    def roll_out(self, module: Any, assignments: Sequence[RolloutSpec]) -> list[Recording]:
        """Sampled decisions, recorded."""

    def judge(self, module: Any, seeds: Sequence[int]) -> list[EpisodeScore]:
        """The best decisions on the episodes of `seeds`."""
