"""Buffers that rollouts are recorded in: tables that double when they are full.

`RolloutBuffer` records many environments that are stepped together. `CompiledBuffer` holds the
tables of one episode that a compiled loop fills by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import njit_internal
from loadmaster.platform.rl.advantages import Rollout
from loadmaster.platform.rl.rollout import Ragged, Recording

INITIAL_STEPS = 64  # of a RolloutBuffer
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


class Rows(NamedTuple):
    """Which tables have one row per item of a queue whose length changes, such as waiting jobs.

    Rows in use come first. Only they are passed to the module, up to the longest queue of the
    batch, and only they are recorded.
    """

    mask: str  # observation table of rows in use: (rows,) bool
    tables: frozenset[str]  # observation tables with such rows, including the mask
    actions: frozenset[str]  # agents whose actions have such rows


class RolloutBuffer:
    """Tables (S steps, B environments, ...) of environments that are stepped together."""

    def __init__(self, count: int, rows: Rows | None = None) -> None:
        self.rows = rows
        self.steps, self.capacity = 0, INITIAL_STEPS
        self.tables: dict[str, Tree] = {}
        self.lengths = np.zeros(count, np.int64)  # of each episode; later steps are ignored
        self.ends_s = np.zeros(count)
        self.last: dict[int, Tree] = {}  # final observations of truncated episodes
        self.figures: dict[int, Mapping[str, float]] = {}  # metrics of finished episodes

    def add_observation(self, observations: Tree, time_s: NDArray[np.float64]) -> Tree:
        """Copy the observations of the next step, since environments may overwrite theirs."""
        if self.steps == self.capacity:
            self.capacity = 2 * self.capacity
            self.tables = tree_map(lambda table: np.concatenate([table, table]), self.tables)
        self._write(observations=observations, time_s=time_s)
        return tree_map(lambda table: table[self.steps], self.tables["observations"])

    def add_step(self, **done: Tree) -> None:
        """Write `actions`, `log_probability` and `reward` and complete the step."""
        self._write(**done)
        self.steps += 1

    def add_truncation(self, index: int, observations: Tree) -> None:
        """Keep the final observation of an episode that was truncated."""
        self.last[index] = tree_map(lambda table: np.array(table[index : index + 1]), observations)

    def extract(self, index: int, rng: np.random.Generator, keep: float) -> Recording:
        """The episode of environment `index`, with a share `keep` of decisions drawn by `rng`."""
        length = self.lengths[index]
        kept = np.flatnonzero(rng.random(length) < keep)
        # Copies even where all are kept: a view would hold the whole buffer in memory.
        part = tree_map(lambda table: table[kept, index], self.tables)
        observations, actions = part["observations"], part["actions"]
        last = self.last.get(index)
        if self.rows is not None:
            mask = self.rows.mask
            last = last and _without_padding(last, last, self.rows.tables, mask)
            actions = _without_padding(actions, observations, self.rows.actions, mask)
            observations = _without_padding(observations, observations, self.rows.tables, mask)
        reward = self.tables["reward"][:length, index].astype(np.float64)
        time_s = self.tables["time_s"][:length, index].astype(np.float64)
        return Recording(
            observations=observations,
            actions=actions,
            log_probability=part["log_probability"].astype(np.float64),
            kept=kept,
            rollout=Rollout(time_s, reward, float(self.ends_s[index])),
            figures={"return": float(reward.sum()), **self.figures.get(index, {})},
            last=last,
        )

    def _write(self, **shown: Tree) -> None:
        for name, tree in shown.items():
            if name not in self.tables:
                self.tables[name] = tree_map(self._empty_table, tree)
            for table, leaf in zip(leaves(self.tables[name]), leaves(tree), strict=True):
                table[self.steps] = leaf

    def _empty_table(self, leaf: Any) -> NDArray[Any]:
        table = np.asarray(leaf)
        return np.empty((self.capacity, *table.shape), table.dtype)


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


def _without_padding(
    tree: Mapping[str, Any], observation: Mapping[str, Any], names: frozenset[str], mask: str
) -> dict[str, Any]:
    """(K, rows, ...) tables of these names as ragged columns, others unchanged."""
    used = observation[mask].astype(np.bool_)  # (K, rows)
    counts = used.sum(1)
    return {
        name: Ragged(table[used], counts) if name in names else table
        for name, table in tree.items()
    }
