"""What many environments did side by side, and how an episode is cut from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.platform.rl.advantages import Rollout
from loadmaster.platform.rl.rollout import Ragged, Recording

# Observations and actions as trees: a table, or a mapping of names to trees.


Tree = Any  # a leaf, or Mapping[str, Tree]


def mapped(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """A tree of the same form, whose leaves are `function` of the leaves in that place."""
    if not isinstance(tree, Mapping):
        return function(tree, *others)
    return {
        name: mapped(function, branch, *(other[name] for other in others))
        for name, branch in tree.items()
    }


def leaves(tree: Tree) -> Iterator[Any]:
    """From left to right."""
    if isinstance(tree, Mapping):
        for branch in tree.values():
            yield from leaves(branch)
    else:
        yield tree


FIRST_ROOM = 64  # steps; it doubles when it is used up


class Rows(NamedTuple):
    """Which tables have a row for each of a number of things that changes, such as waiting jobs.

    Rows in use come first. Only they are shown to the module, as many as the fullest environment
    has, and only they are recorded.
    """

    mask: str  # the observation's table that says which rows are in use: (rows,) bool
    tables: frozenset[str]  # the observation's tables with such rows, the mask among them
    actions: frozenset[str]  # the agents whose actions have such rows


class RolloutBuffer:
    """All environments side by side, in tables (S steps, B environments, ...) that grow."""

    def __init__(self, count: int, rows: Rows | None = None) -> None:
        self.count, self.rows = count, rows
        self.steps, self.room = 0, FIRST_ROOM
        self.tables: dict[str, Tree] = {}
        self.lengths = np.zeros(count, np.int64)  # what follows belongs to no episode
        self.ends_s = np.zeros(count)
        self.last: dict[int, Tree] = {}  # of episodes that were cut off, what was seen then
        self.figures: dict[int, Mapping[str, float]] = {}  # of those that are over

    def see(self, observations: Tree, time_s: NDArray[np.float64]) -> Tree:
        """What is decided on in the next step: a copy, since environments may write over theirs."""
        if self.steps == self.room:
            self.room = 2 * self.room
            self.tables = mapped(lambda table: np.concatenate([table, table]), self.tables)
        self._write(observations=observations, time_s=time_s)
        return mapped(lambda table: table[self.steps], self.tables["observations"])

    def note(self, **done: Tree) -> None:
        """`actions`, `log_probability` and `reward` of that step, which is over with this."""
        self._write(**done)
        self.steps += 1

    def _write(self, **shown: Tree) -> None:
        for name, tree in shown.items():
            if name not in self.tables:
                self.tables[name] = mapped(lambda leaf: _room_for(leaf, self.room), tree)
            for table, leaf in zip(leaves(self.tables[name]), leaves(tree), strict=True):
                table[self.steps] = leaf

    def cut_off(self, index: int, observations: Tree) -> None:
        """Environment `index`'s episode ended before it was over; this is what came last."""
        self.last[index] = mapped(lambda table: np.array(table[index : index + 1]), observations)

    def cut(self, index: int, rng: np.random.Generator, keep: float) -> Recording:
        """Environment `index`'s episode; a share `keep` of its decisions, drawn by `rng`."""
        length = self.lengths[index]
        kept = np.flatnonzero(rng.random(length) < keep)
        # Copies, though a slice would do where all are kept: the film is much longer than that.
        part = mapped(lambda table: table[kept, index], self.tables)
        observations, actions = part["observations"], part["actions"]
        last = self.last.get(index)
        if self.rows is not None:
            last = last and _without_padding(last, last, self.rows.tables, self.rows.mask)
            actions = _without_padding(actions, observations, self.rows.actions, self.rows.mask)
            observations = _without_padding(
                observations, observations, self.rows.tables, self.rows.mask
            )
        reward = self.tables["reward"][:length, index].astype(np.float64)
        return Recording(
            observations=observations,
            actions=actions,
            log_probability=part["log_probability"].astype(np.float64),
            kept=kept,
            rollout=Rollout(
                self.tables["time_s"][:length, index].astype(np.float64),
                reward,
                float(self.ends_s[index]),
            ),
            figures={"return": float(reward.sum()), **self.figures.get(index, {})},
            last=last,
        )


def _room_for(leaf: Any, steps: int) -> NDArray[Any]:
    table = np.asarray(leaf)
    return np.empty((steps, *table.shape), table.dtype)


def _without_padding(
    tree: Mapping[str, Any], observation: Mapping[str, Any], names: frozenset[str], mask: str
) -> dict[str, Any]:
    """(K, rows, ...) tables of these names as ragged columns, the rest as it was."""
    used = observation[mask].astype(np.bool_)  # (K, rows)
    counts = used.sum(1)
    return {
        name: Ragged(table[used], counts) if name in names else table
        for name, table in tree.items()
    }
