"""Recorded decisions of SURE as columns, and minibatches of them; snapshots are stored once.

Windows of successive decisions overlap almost entirely, so a decision refers to its part of the
episode's snapshots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from ray.rllib.core.columns import Columns
from torch import Tensor

from loadmaster.models.ragged import Ragged, Windows
from loadmaster.models.sure.compiled_tables import Decisions
from loadmaster.models.sure.graph import DecisionBatch, Draw, pack
from loadmaster.models.sure.prior import Prior

# Of the observations; `prior` and `gate_prior` are what the rule recommended.
SNAPSHOTS, TIMES, TASKS, EDGES, RESTART = "snapshots", "times", "tasks", "edges", "restart"
PRIOR, GATE_PRIOR = "prior", "gate_prior"
# Of the actions.
GATE, CHANGE, DRAWN_SNAPSHOT, DRAWN_NEIGHBOUR, KEY = (
    "gate", "change", "drawn_snapshot", "drawn_neighbour", "key",
)  # fmt: skip


class SelectedDecisions(NamedTuple):
    """A minibatch as the training pass takes it."""

    batch: DecisionBatch
    key: Tensor  # (B,) of the random numbers of each decision
    draw: Draw | None
    gate: Tensor  # (B,) bool
    change: Tensor  # (T,)


class SureMinibatches:
    """Recorded decisions for SURE's training pass: unpadded, selected by row."""

    def __init__(self, columns: Mapping[str, Any], hops: int, neighbours: int, device: Any) -> None:
        """`columns` as recorded; `neighbours` is k2, which the columns hold flat."""
        self.fixed = None
        self._observations, self._actions = columns[Columns.OBS], columns[Columns.ACTIONS]
        self._log_prob: Ragged = columns[Columns.ACTION_LOGP]
        self._others = {
            name: torch.as_tensor(column)
            for name, column in columns.items()
            if name not in (Columns.OBS, Columns.ACTIONS, Columns.ACTION_LOGP)
        }
        self._hops, self._neighbours, self._device = hops, neighbours, device
        self._starts = {
            name: np.cumsum(column.counts) - column.counts
            for name, column in (*self._actions.items(), *self._observations.items())
            if isinstance(column, Ragged)
        }
        self._log_starts = np.cumsum(self._log_prob.counts) - self._log_prob.counts

    def select(self, rows: Tensor) -> dict[str, Any]:
        numbers: list[int] = rows.tolist()
        batch = pack(
            [self._observation(row) for row in numbers],
            self._hops,
            [self._ragged(self._observations, PRIOR, row) for row in numbers],
            self._observations[GATE_PRIOR][numbers].tolist(),
        )
        actions = self._actions
        gate = torch.from_numpy(actions[GATE][numbers])
        selected = SelectedDecisions(
            batch=batch,
            key=torch.from_numpy(actions[KEY][numbers]),
            draw=self._draw(numbers),
            gate=gate,
            change=self._joined(actions, CHANGE, numbers),
        )
        parts = [self._log_prob_of(row) for row in numbers]
        recorded = [torch.from_numpy(np.concatenate(part)) for part in zip(*parts, strict=True)]
        return {
            **{name: column[rows].to(self._device) for name, column in self._others.items()},
            Columns.ACTION_LOGP: counted(recorded, gate[batch.decision]).to(self._device),
            Columns.OBS: moved(selected, self._device),
        }

    def _observation(self, row: int) -> dict[str, Any]:
        tables = {
            name: _window(self._observations[name], row) for name in (SNAPSHOTS, TIMES, TASKS)
        }
        count = len(tables[TASKS])
        tables[SNAPSHOTS] = tables[SNAPSHOTS].reshape(-1, count, tables[SNAPSHOTS].shape[-1])
        tables[EDGES] = _window(self._observations[EDGES], row).T
        return {**tables, RESTART: self._observations[RESTART][row]}

    def _ragged(self, columns: Mapping[str, Any], name: str, row: int) -> NDArray[Any]:
        column, start = columns[name], self._starts[name][row]
        found: NDArray[Any] = column.items[start : start + column.counts[row]]
        return found

    def _joined(self, columns: Mapping[str, Any], name: str, rows: Sequence[int]) -> Tensor:
        return torch.from_numpy(np.concatenate([self._ragged(columns, name, r) for r in rows]))

    def _draw(self, rows: Sequence[int]) -> Draw | None:
        if DRAWN_SNAPSHOT not in self._actions:
            return None
        snapshot = self._joined(self._actions, DRAWN_SNAPSHOT, rows).long()
        neighbour = self._joined(self._actions, DRAWN_NEIGHBOUR, rows).long()
        return Draw(snapshot, neighbour.view(*snapshot.shape, self._neighbours))

    def _log_prob_of(self, row: int) -> tuple[NDArray[Any], ...]:
        """Of the gate, of the tasks and of their draws."""
        start, count = self._log_starts[row], self._log_prob.counts[row]
        own = self._log_prob.items[start : start + count]
        tasks = (count - 1) // 2
        return own[:1], own[1 : 1 + tasks], own[1 + tasks :]


def counted(parts: Sequence[Tensor], acting: Tensor) -> Tensor:
    """Parts for gates (B,), tasks (T,) and draws (T,) end to end, without tasks that only held."""
    gate, task, draw = parts
    return torch.cat([gate, task[acting], draw])


def moved(tree: Any, device: Any) -> Any:
    """Named tuples of tensors, on the device."""
    if isinstance(tree, Tensor):
        return tree.to(device)
    if isinstance(tree, tuple):
        return type(tree)(*(moved(each, device) for each in tree))
    return tree


def _window(column: Windows, row: int) -> NDArray[Any]:
    found: NDArray[Any] = column.items[column.first[row] : column.first[row] + column.counts[row]]
    return found


class EpisodeRecorder:
    """Records the decisions of E episodes of one job, with their snapshots once."""

    def __init__(
        self, observations: Mapping[str, NDArray[Any]], every: int, decisions: Decisions
    ) -> None:
        """`observations` (E, ..) are the first; `every`: minutes between decisions.

        `decisions` (T, E, ..) are filled by the caller.
        """
        self.decisions = decisions
        (steps, episodes), window = decisions.gate.shape, observations[TIMES].shape[1]
        self._window, self._new = window, min(every, window)
        self._fixed = {
            TASKS: observations[TASKS][0].copy(),
            EDGES: observations[EDGES][0].T.copy(),
        }
        self._tables: dict[str, NDArray[np.float32]] = {}
        for name in (SNAPSHOTS, TIMES):
            first = observations[name]
            shape = (episodes, window + steps * self._new, *first.shape[2:])
            self._tables[name] = np.zeros(shape, np.float32)
            self._tables[name][:, :window] = first
        self._rows = {
            name: np.zeros((steps, *table.shape), np.float32)
            for name, table in (
                (RESTART, observations[RESTART]),
                (PRIOR, decisions.change[0]),
                (GATE_PRIOR, decisions.gate[0]),
            )
        }
        self._keys = np.zeros((steps, episodes), np.int64)

    def add(self, step: int, restart: NDArray[Any], prior: Prior, keys: NDArray[np.int64]) -> None:
        """What the decisions of a step depend on beside the snapshots."""
        self._rows[RESTART][step] = restart
        self._rows[PRIOR][step], self._rows[GATE_PRIOR][step] = prior
        self._keys[step] = keys

    def follow(self, step: int, observations: Mapping[str, NDArray[Any]]) -> None:
        """The snapshots that are new in the observations after a step."""
        end = self._window + (step + 1) * self._new
        for name, table in self._tables.items():
            table[:, end - self._new : end] = observations[name][:, -self._new :]

    def columns(
        self, episode: int, kept: NDArray[np.int64]
    ) -> tuple[dict[str, Any], dict[str, Any], Ragged]:
        """Observations, actions and log-probabilities of the kept decisions of an episode."""
        tasks, count = len(self._fixed[TASKS]), len(kept)
        snapshots = self._tables[SNAPSHOTS][episode]
        size, first = np.full(count, self._window, np.int64), kept * self._new
        made = self.decisions
        observations: dict[str, Any] = {
            SNAPSHOTS: Windows(
                snapshots.reshape(-1, snapshots.shape[-1]), first * tasks, size * tasks
            ),
            TIMES: Windows(self._tables[TIMES][episode], first, size),
            **{
                name: Windows(table, np.zeros(count, np.int64), np.full(count, len(table)))
                for name, table in self._fixed.items()
            },
            RESTART: self._rows[RESTART][kept, episode],
            PRIOR: _ragged(self._rows[PRIOR][kept, episode]),
            GATE_PRIOR: self._rows[GATE_PRIOR][kept, episode],
        }
        actions: dict[str, Any] = {
            GATE: made.gate[kept, episode],
            CHANGE: _ragged(made.change[kept, episode]),
            KEY: self._keys[kept, episode],
        }
        if made.snapshot.size:
            actions[DRAWN_SNAPSHOT] = _ragged(made.snapshot[kept, episode])
            actions[DRAWN_NEIGHBOUR] = _ragged(made.neighbour[kept, episode])
        return observations, actions, _ragged(made.log_prob[kept, episode])


def _ragged(rows: NDArray[Any]) -> Ragged:
    """Of rows (K, items, ..)"""
    count, each, *item = rows.shape
    return Ragged(rows.reshape(count * each, *item), np.full(count, each, np.int64))
