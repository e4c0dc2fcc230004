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
from loadmaster.models.sure.graph import DecisionBatch, Draw, pack
from loadmaster.models.sure.network import Action

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
    """Records the decisions of one job, with its snapshots once."""

    def __init__(self, observation: Mapping[str, NDArray[Any]], every: int) -> None:
        """`observation` is the first one; `every`: snapshots between decisions."""
        self._every = every
        self._fixed = {TASKS: observation[TASKS].copy(), EDGES: observation[EDGES].T.copy()}
        self._length = len(observation[TIMES])
        self._tables = {name: [observation[name].copy()] for name in (SNAPSHOTS, TIMES)}
        self._rows: dict[str, list[Any]] = {
            name: [] for name in (RESTART, PRIOR, GATE_PRIOR, GATE, CHANGE, KEY)
        }
        self._draws: list[tuple[NDArray[np.int16], NDArray[np.int16]]] = []
        self._log_prob: list[NDArray[np.float32]] = []

    def add(
        self, action: Action, tasks: slice, number: int, batch: DecisionBatch, key: int
    ) -> None:
        """A decision: its place in the batch, and its rows of tasks."""
        assert action.log_prob is not None
        self._rows[RESTART].append(batch.restart[number].numpy())
        self._rows[PRIOR].append(batch.prior[tasks].numpy())
        self._rows[GATE_PRIOR].append(float(batch.gate_prior[number]))
        self._rows[GATE].append(bool(action.gate[number]))
        self._rows[CHANGE].append(action.change[tasks].numpy())
        self._rows[KEY].append(key)
        if action.draw is not None:
            drawn = (table[tasks].flatten(1).numpy() for table in action.draw)
            self._draws.append(tuple(table.astype(np.int16) for table in drawn))  # type: ignore[arg-type]
        gate, task, sampler = action.log_prob
        parts = (gate[number : number + 1], task[tasks], sampler[tasks])
        self._log_prob.append(torch.cat(parts).numpy())

    def follow(self, observation: Mapping[str, NDArray[Any]]) -> None:
        """The snapshots that are new in the next observation."""
        for name, parts in self._tables.items():
            parts.append(observation[name][-self._every :].copy())

    def columns(self, kept: NDArray[np.int64]) -> tuple[dict[str, Any], dict[str, Any], Ragged]:
        """Observations, actions and log-probabilities of the kept decisions."""
        tasks, count = len(self._fixed[TASKS]), len(kept)
        snapshots = np.concatenate(self._tables[SNAPSHOTS])
        size = np.full(count, self._length, np.int64)
        observations: dict[str, Any] = {
            SNAPSHOTS: Windows(
                snapshots.reshape(-1, snapshots.shape[-1]), kept * self._every * tasks, size * tasks
            ),
            TIMES: Windows(np.concatenate(self._tables[TIMES]), kept * self._every, size),
            **{
                name: Windows(table, np.zeros(count, np.int64), np.full(count, len(table)))
                for name, table in self._fixed.items()
            },
            RESTART: self._stacked(RESTART, kept),
            PRIOR: self._ragged(self._rows[PRIOR], kept),
            GATE_PRIOR: np.array(self._rows[GATE_PRIOR], np.float32)[kept],
        }
        actions: dict[str, Any] = {
            GATE: np.array(self._rows[GATE], np.bool_)[kept],
            CHANGE: self._ragged(self._rows[CHANGE], kept),
            KEY: np.array(self._rows[KEY], np.int64)[kept],
        }
        if self._draws:
            for place, name in enumerate((DRAWN_SNAPSHOT, DRAWN_NEIGHBOUR)):
                actions[name] = self._ragged([draw[place] for draw in self._draws], kept)
        return observations, actions, self._ragged(self._log_prob, kept)

    def _stacked(self, name: str, kept: NDArray[np.int64]) -> NDArray[Any]:
        width = len(self._rows[name][0])
        return np.array(self._rows[name], np.float32).reshape(-1, width)[kept]

    def _ragged(self, rows: Sequence[NDArray[Any]], kept: NDArray[np.int64]) -> Ragged:
        chosen = [rows[number] for number in kept]
        whole = np.concatenate(chosen) if chosen else rows[0][:0]
        return Ragged(whole, np.array([len(row) for row in chosen], np.int64))
