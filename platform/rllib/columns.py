"""Columns of a batch whose rows may differ in length, such as the stages of a growing queue.

Padding every row to the longest would make most of a batch zeros, on its way from the rollout
workers to the learner and in the learner's memory. A `Ragged` column travels without padding; a
minibatch pads its own rows, on the learner's device, to its own longest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Ragged:
    """K rows, R items in all; `spare` empty places follow the longest row when it is padded."""

    items: NDArray[Any]  # (R, ...)
    counts: NDArray[np.int64]  # (K,)
    spare: int = 0

    def __len__(self) -> int:
        return len(self.counts)


@dataclass(frozen=True)
class RaggedTensor:
    """A ragged column on a device."""

    items: Tensor  # (R, ...)
    counts: Tensor  # (K,)
    starts: Tensor  # (K,) where each row's items begin
    spare: int

    def __getitem__(self, rows: Tensor) -> Tensor:
        """(len(rows), longest + spare, ...) with zeros behind each row's own items."""
        counts = self.counts[rows]
        total = int(counts.sum())
        device = self.items.device
        row = torch.repeat_interleave(torch.arange(len(rows), device=device), counts)
        first = counts.cumsum(0) - counts
        place = torch.arange(total, device=device) - first[row]
        longest = int(counts.max()) if len(rows) else 0
        padded = self.items.new_zeros(len(rows), longest + self.spare, *self.items.shape[1:])
        padded[row, place] = self.items[self.starts[rows][row] + place]
        return padded


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


def on_device(columns: Columns, device: Any) -> TensorColumns:
    """The same columns as tensors: one copy, of which every minibatch then takes its rows."""
    tensors: TensorColumns = {}
    for name, column in columns.items():
        if isinstance(column, Mapping):
            tensors[name] = on_device(column, device)
        elif isinstance(column, Ragged):
            counts = torch.as_tensor(column.counts, device=device)
            items = torch.as_tensor(column.items, device=device)
            tensors[name] = RaggedTensor(items, counts, counts.cumsum(0) - counts, column.spare)
        else:
            tensors[name] = torch.as_tensor(column, device=device)
    return tensors


def taken(tensors: TensorColumns, rows: Tensor) -> TensorColumns:
    """Some rows of every column, ragged ones padded."""
    return {
        name: taken(column, rows) if isinstance(column, dict) else column[rows]
        for name, column in tensors.items()
    }
