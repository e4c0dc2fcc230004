"""Columns of recorded decisions, whose rows may differ in length, and minibatches of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LARGE_BYTES, PINNED_BYTES = 32 << 20, 1 << 20
COPY_THREADS = min(16, os.cpu_count() or 1)

Tree = Any  # observations and actions: a table, or Mapping[str, Tree]


class Minibatches(Protocol):
    """Recorded decisions, ready to be learnt from."""

    def select(self, rows: Tensor) -> dict[str, Any]:
        """The batch of these decisions that a module's training pass takes; `rows` on the CPU.

        Of a batch with a mask (Columns.LOSS_MASK), only the rows where it is 1 count.
        """

    @property
    def fixed(self) -> object | None:
        """What the tables of the last batch belong to: batches with equal ones have the same
        tensors, with other values. None: every batch has its own."""


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
class Windows:
    """A column of K rows, each of which is a part of a table of M items; parts may overlap.

    Histories of successive decisions overlap almost entirely: the table has every item once.
    """

    items: NDArray[Any]  # (M, ...)
    first: NDArray[np.int64]  # (K,) its first item
    counts: NDArray[np.int64]  # (K,)

    def __len__(self) -> int:
        return len(self.counts)


def concatenated(parts: Sequence[Tree], pinned: bool = False) -> Tree:
    """The rows of all parts, one part after the other.

    `pinned`: large tables in memory that a GPU copies from directly.
    """

    def joined(*columns: Any) -> Any:
        if isinstance(columns[0], Windows):
            sizes = [len(column.items) for column in columns]
            before = np.cumsum(sizes) - sizes
            return Windows(
                _joined([column.items for column in columns], pinned),
                np.concatenate([own.first + at for own, at in zip(columns, before, strict=True)]),
                np.concatenate([column.counts for column in columns]),
            )
        if not isinstance(columns[0], Ragged):
            return _joined(columns, pinned)
        return Ragged(
            _joined([column.items for column in columns], pinned),
            np.concatenate([column.counts for column in columns]),
            columns[0].spare,
        )

    return tree_map(joined, *parts)


def _joined(tables: Sequence[NDArray[Any]], pinned: bool) -> NDArray[Any]:
    """Concatenate tables; several threads copy large ones.

    96 MB take 8 ms instead of 40 on 16 cores. Torch keeps pinned memory for the next tables, whose
    pages then need not be mapped again.
    """
    size = sum(table.nbytes for table in tables)
    if size < (PINNED_BYTES if pinned else LARGE_BYTES):
        return np.concatenate(tables)
    ends = np.cumsum([len(table) for table in tables]).tolist()
    shape = (ends[-1], *tables[0].shape[1:])
    if pinned:
        kind = torch.from_numpy(tables[0][:0]).dtype
        whole: NDArray[Any] = torch.empty(shape, dtype=kind, pin_memory=True).numpy()
    else:
        whole = np.empty(shape, tables[0].dtype)

    def copy(end: int, table: NDArray[Any]) -> None:
        whole[end - len(table) : end] = table

    with ThreadPoolExecutor(COPY_THREADS) as threads:
        list(threads.map(copy, ends, tables))
    return whole


def rows_of(columns: Tree) -> int:
    """Number of rows, the same in every column."""
    return len(next(leaves(columns)))


class _Layout:
    """Where the items of each row are. Columns with the same counts share one.

    Counts stay on the CPU: sizes are needed there, without waiting for the device.
    """

    def __init__(self, counts: NDArray[np.int64], first: NDArray[np.int64] | None = None) -> None:
        """`first`: (K,) where the items of each row begin; None: behind those of the last."""
        self.counts = torch.as_tensor(counts)  # (K,)
        ends = self.counts.cumsum(0)
        self.starts = ends - self.counts if first is None else torch.as_tensor(first)  # (K,)

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


class PaddedMinibatches:
    """Minibatches as plain tensors: ragged columns padded to the longest row of the minibatch."""

    def __init__(self, columns: Tree, device: Any) -> None:
        self._tensors, self._device = on_device(columns, device), device
        self.fixed = None

    def select(self, rows: Tensor) -> dict[str, Any]:
        batch: dict[str, Any] = taken(self._tensors, rows, self._device)
        return batch


def on_device(columns: Tree, device: Any) -> Tree:
    """Copy columns to a device once; minibatches select their rows there."""
    layouts: dict[tuple[bytes, bytes | None], _Layout] = {}

    def copied(column: Any) -> Any:
        if not isinstance(column, Ragged | Windows):
            return torch.as_tensor(column, device=device)
        first = column.first if isinstance(column, Windows) else None
        key = (column.counts.tobytes(), None if first is None else first.tobytes())
        if key not in layouts:
            layouts[key] = _Layout(column.counts, first)
        items = torch.as_tensor(column.items, device=device)
        return _RaggedTensor(items, layouts[key], getattr(column, "spare", 0))

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
