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
from loadmaster.models.sure.graph import NONE, PRESENT, DecisionBatch, Draw, JobGraph, job_graph
from loadmaster.models.sure.prior import Prior

# Of the observations; `prior` and `gate_prior` are what the rule recommended.
SNAPSHOTS, TIMES, TASKS, EDGES, RESTART = "snapshots", "times", "tasks", "edges", "restart"
PRIOR, GATE_PRIOR = "prior", "gate_prior"
# Of the actions.
GATE, CHANGE, DRAWN_SNAPSHOT, DRAWN_NEIGHBOUR, KEY, WEIGHT = (
    "gate", "change", "drawn_snapshot", "drawn_neighbour", "key", "weight",
)  # fmt: skip


class SelectedDecisions(NamedTuple):
    """A minibatch as the training pass takes it."""

    batch: DecisionBatch
    key: Tensor  # (B,) of the random numbers of each decision
    draw: Draw | None
    gate: Tensor  # (B,) bool
    change: Tensor  # (T,)


class SureMinibatches:
    """Recorded decisions for SURE's training pass: unpadded, selected by row on the device.

    Graphs and fixed features are kept once for each job; everything else is indexed.
    """

    def __init__(self, columns: Mapping[str, Any], hops: int, neighbours: int, device: Any) -> None:
        """`columns` as recorded; `neighbours` is k2, which the columns hold flat."""
        self.fixed = None
        observations, actions = columns[Columns.OBS], columns[Columns.ACTIONS]
        self._device, self._neighbours = device, neighbours
        self._jobs = _JobTables(observations[TASKS], observations[EDGES], hops, device)
        self._window = int(observations[TIMES].counts.max(initial=1))
        whole = (RESTART, GATE_PRIOR)
        self._tensors = {
            name: self._tensor(column if name in whole else column.items)
            for name, column in observations.items()
            if name not in (TASKS, EDGES)
        }
        self._tensors |= {
            name: self._tensor(column if name in (GATE, KEY, WEIGHT) else column.items)
            for name, column in actions.items()
        }
        self._first = {name: self._tensor(observations[name].first) for name in (SNAPSHOTS, TIMES)}
        counts = self._tensor(observations[PRIOR].counts)
        self._task_start = counts.cumsum(0) - counts
        self._log_prob = self._tensor(columns[Columns.ACTION_LOGP].items)
        counts = self._tensor(columns[Columns.ACTION_LOGP].counts)
        self._log_start = counts.cumsum(0) - counts
        self._others = {
            name: self._tensor(column)
            for name, column in columns.items()
            if name not in (Columns.OBS, Columns.ACTIONS, Columns.ACTION_LOGP)
        }

    def _tensor(self, table: Any) -> Tensor:
        return torch.as_tensor(table).to(self._device)

    def select(self, rows: Tensor) -> dict[str, Any]:
        rows = rows.to(self._device)
        batch, task = self._batch(rows)
        tables = self._tensors
        gate = tables[GATE][rows]
        draw = None
        if DRAWN_SNAPSHOT in tables:
            snapshot = tables[DRAWN_SNAPSHOT][task].long()
            drawn = tables[DRAWN_NEIGHBOUR][task].long()
            draw = Draw(snapshot, drawn.view(*snapshot.shape, self._neighbours))
        # Of a decision: the gate, its tasks, then their draws.
        start = self._log_start[rows]
        of_task = (start + 1)[batch.decision] + batch.place
        parts = start, of_task, of_task + batch.sizes[batch.decision]
        recorded = [self._log_prob[part] for part in parts]
        others = {name: column[rows] for name, column in self._others.items()}
        if Columns.ADVANTAGES in others:
            others[Columns.ADVANTAGES] = others[Columns.ADVANTAGES] * tables[WEIGHT][rows]
        return {
            **others,
            Columns.ACTION_LOGP: counted(recorded, gate[batch.decision]),
            Columns.OBS: SelectedDecisions(
                batch, tables[KEY][rows], draw, gate, tables[CHANGE][task]
            ),
        }

    def _batch(self, rows: Tensor) -> tuple[DecisionBatch, Tensor]:
        """The observations of these decisions, and where the values of each task are."""
        tables, device = self._tensors, self._device
        job, decision, place, sizes, start = self._jobs.rows(rows)
        age = torch.arange(self._window, device=device)
        back = self._window - 1 - age  # snapshots are recorded oldest first
        first = self._first[SNAPSHOTS][rows][decision] + place
        node = first.unsqueeze(1) + back * sizes[decision].unsqueeze(1)
        times = tables[TIMES][self._first[TIMES][rows].unsqueeze(1) + back]
        task = self._task_start[rows][decision] + place
        return DecisionBatch(
            snapshots=tables[SNAPSHOTS][node],
            times=times,
            tasks=self._jobs.tasks[job[decision], place],
            restart=tables[RESTART][rows],
            present=times[:, :, PRESENT] > 0,
            sizes=sizes,
            decision=decision,
            place=place,
            edges=self._jobs.edges_of(job, start),
            candidates=self._jobs.candidates_of(job, decision, place, start),
            prior=tables[PRIOR][task],
            gate_prior=tables[GATE_PRIOR][rows],
        ), task


class _JobTables:
    """Graphs and fixed features of the jobs in recordings, padded to the largest job."""

    def __init__(self, tasks: Windows, edges: Windows, hops: int, device: Any) -> None:
        numbers: dict[bytes, int] = {}
        of_table: dict[int, int] = {}  # first item of a recording's table -> job
        found: list[tuple[NDArray[Any], JobGraph]] = []
        job = np.zeros(len(tasks), np.int64)
        for row, first in enumerate(tasks.first.tolist()):
            if first not in of_table:
                features, pairs = _window(tasks, row), _window(edges, row).T
                key = features.tobytes() + pairs.tobytes()
                if key not in numbers:
                    numbers[key] = len(numbers)
                    found.append((features, job_graph(pairs, len(features), hops)))
                of_table[first] = numbers[key]
            job[row] = of_table[first]
        most = max(len(features) for features, _ in found)
        links = max(graph.edges.shape[1] for _, graph in found)
        widest = max(graph.candidates.shape[1] for _, graph in found)
        table = np.zeros((len(found), most, found[0][0].shape[1]), np.float32)
        candidates = np.full((len(found), most, widest), NONE, np.int64)
        pairs = np.zeros((len(found), 2, links), np.int64)
        for number, (features, graph) in enumerate(found):
            table[number, : len(features)] = features
            candidates[number, : len(features), : graph.candidates.shape[1]] = graph.candidates
            pairs[number, :, : graph.edges.shape[1]] = graph.edges
        self._device = device
        self._job = torch.from_numpy(job).to(device)
        self._sizes = torch.tensor([len(features) for features, _ in found], device=device)
        self._links = torch.tensor([graph.edges.shape[1] for _, graph in found], device=device)
        self.tasks = torch.from_numpy(table).to(device)
        self._candidates = torch.from_numpy(candidates).to(device)
        self._edges = torch.from_numpy(pairs).to(device)

    def rows(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Jobs (B,) of decisions; decision and place of each task (T,); sizes and starts (B,)."""
        job = self._job[rows]
        sizes = self._sizes[job]
        start = sizes.cumsum(0) - sizes
        decision = torch.repeat_interleave(sizes)
        return (
            job,
            decision,
            torch.arange(len(decision), device=self._device) - start[decision],
            sizes,
            start,
        )

    def edges_of(self, job: Tensor, start: Tensor) -> Tensor:
        """(2, M) in rows of the batch."""
        shifted = self._edges[job] + start.view(-1, 1, 1)
        real = torch.arange(shifted.shape[2], device=self._device) < self._links[job].unsqueeze(1)
        return shifted.transpose(0, 1)[:, real]

    def candidates_of(self, job: Tensor, decision: Tensor, place: Tensor, start: Tensor) -> Tensor:
        """(T, K) rows of the batch, then NONE."""
        found = self._candidates[job[decision], place]
        return torch.where(found == NONE, NONE, found + start[decision].unsqueeze(1))


def counted(parts: Sequence[Tensor], acting: Tensor) -> Tensor:
    """Parts for gates (B,), tasks (T,) and draws (T,) end to end, without tasks that only held."""
    gate, task, draw = parts
    return torch.cat([gate, task[acting], draw])


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

    def chosen(self, episode: int, keep: float, rng: np.random.Generator) -> NDArray[np.int64]:
        """Decisions to learn from: all that act, and a share of those that hold.

        Few decisions act, and these have more to learn from; they weigh less in return.
        """
        acts = self.decisions.gate[:, episode]
        return np.flatnonzero(acts | (rng.random(len(acts)) < keep))

    def columns(
        self, episode: int, kept: NDArray[np.int64], keep: float
    ) -> tuple[dict[str, Any], dict[str, Any], Ragged]:
        """Observations, actions and log-probabilities of the kept decisions of an episode.

        `keep` is the share that was kept of the decisions that hold.
        """
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
            WEIGHT: np.where(made.gate[kept, episode], keep, 1.0).astype(np.float32),
        }
        if made.snapshot.size:
            actions[DRAWN_SNAPSHOT] = _ragged(made.snapshot[kept, episode])
            actions[DRAWN_NEIGHBOUR] = _ragged(made.neighbour[kept, episode])
        return observations, actions, _ragged(made.log_prob[kept, episode])


def _ragged(rows: NDArray[Any]) -> Ragged:
    """Of rows (K, items, ..)"""
    count, each, *item = rows.shape
    return Ragged(rows.reshape(count * each, *item), np.full(count, each, np.int64))
