"""Batches of decisions as flat tables, and the graphs that are encoded: drawn or whole.

A node is a task in a snapshot. Tasks of all decisions of a batch follow each other without padding.
Snapshots are counted by age, the newest being 0, so that a longer window adds rows behind.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loadmaster.envs.errors import InputError
from loadmaster.envs.stream_scaling.observation import (
    RESTART_COLUMNS,
    SNAPSHOT_COLUMNS,
    TASK_COLUMNS,
    TIME_COLUMNS,
)

PRESENT = TIME_COLUMNS.index("present")
NONE = -1  # no candidate, no snapshot


class JobGraph(NamedTuple):
    """What a job's DAG determines; indices are tasks of the job."""

    edges: NDArray[np.int64]  # (2, 2 E) from, to: every edge in both directions
    candidates: NDArray[np.int64]  # (N, K) neighbours of each task, then NONE


class DecisionBatch(NamedTuple):
    """B decisions with T tasks in all, up to L snapshots and K candidates; rows are tasks."""

    snapshots: Tensor  # (T, L, SNAPSHOT_COLUMNS) by age
    times: Tensor  # (B, L, TIME_COLUMNS)
    tasks: Tensor  # (T, TASK_COLUMNS)
    restart: Tensor  # (B, RESTART_COLUMNS)
    present: Tensor  # (B, L) bool: the history reaches so far back
    sizes: Tensor  # (B,) tasks of each decision
    decision: Tensor  # (T,) decision of each task
    place: Tensor  # (T,) its number in the job
    edges: Tensor  # (2, M) rows from, to: every edge of the DAGs in both directions
    candidates: Tensor  # (T, K) rows of neighbours, then NONE
    prior: Tensor  # (T,) change that a rule recommends, from -1 to 1
    gate_prior: Tensor  # (B,) log-odds of acting by that rule

    def newest(self, snapshots: int) -> "DecisionBatch":
        """The same decisions with a window of so many snapshots at most."""
        return self._replace(
            snapshots=self.snapshots[:, :snapshots],
            times=self.times[:, :snapshots],
            present=self.present[:, :snapshots],
        )

    def first(self, decisions: int) -> "DecisionBatch":
        """The first decisions alone."""
        rows = int(self.sizes[:decisions].sum())
        of_rows = ("snapshots", "tasks", "decision", "place", "candidates", "prior")
        of_decisions = ("times", "restart", "present", "sizes", "gate_prior")
        parts = {name: getattr(self, name)[:rows] for name in of_rows}
        parts |= {name: getattr(self, name)[:decisions] for name in of_decisions}
        return DecisionBatch(edges=self.edges[:, self.edges[0] < rows], **parts)

    def sum_by_decision(self, of_task: Tensor) -> Tensor:
        """(B, ...) of (T, ...)"""
        total = of_task.new_zeros(len(self.sizes), *of_task.shape[1:])
        return total.index_add(0, self.decision, of_task)


def job_graph(edges: NDArray[np.int64], tasks: int, hops: int) -> JobGraph:
    """Edges in both directions, and the tasks up to `hops` upstream or downstream of each."""
    if edges.shape[:1] != (2,) or edges.ndim != 2:
        raise InputError(f"edges: shape {edges.shape}; expected (2, E)")
    if edges.size and not (edges.min() >= 0 and edges.max() < tasks):
        raise InputError(f"edges: a task outside 0 to {tasks - 1}; expected tasks of the job")
    return _job_graph(np.ascontiguousarray(edges, np.int64).tobytes(), tasks, hops)


@lru_cache(maxsize=1024)
def _job_graph(edges: bytes, tasks: int, hops: int) -> JobGraph:
    parent, child = np.frombuffer(edges, np.int64).reshape(2, -1)
    step = np.zeros((tasks, tasks), bool)
    step[parent, child] = True
    reached = step.copy()
    for _ in range(hops - 1):
        reached |= reached @ step
    near = reached | reached.T
    np.fill_diagonal(near, False)
    most = max(int(near.sum(1).max(initial=0)), 1)
    # A stable sort by "is no neighbour" moves the neighbours to the front, in order.
    order = np.argsort(~near, axis=1, kind="stable")[:, :most]
    candidates = np.where(np.take_along_axis(near, order, 1), order, NONE)
    both = np.stack([np.r_[parent, child], np.r_[child, parent]])
    return JobGraph(both, candidates.reshape(tasks, -1))


def pack(
    observations: Sequence[Mapping[str, Any]],
    hops: int,
    priors: Sequence[Any] | None = None,
    gate_priors: Sequence[float] | None = None,
) -> DecisionBatch:
    """Observations of any jobs as one batch; `priors` holds (N,) changes for each, default 0."""
    if not observations:
        raise InputError("pack: no observations; expected one or more")
    for observation in observations:
        check_shapes(observation)
    sizes = [len(observation["tasks"]) for observation in observations]
    graphs = [
        job_graph(np.asarray(observation["edges"]), size, hops)
        for observation, size in zip(observations, sizes, strict=True)
    ]
    starts = np.cumsum([0, *sizes[:-1]])
    window = max(len(observation["times"]) for observation in observations)
    widest = max(graph.candidates.shape[1] for graph in graphs)
    candidates = np.full((sum(sizes), widest), NONE, np.int64)
    for graph, start in zip(graphs, starts, strict=True):
        known = graph.candidates
        own = candidates[start : start + len(known), : known.shape[1]]
        own[:] = np.where(known == NONE, NONE, known + start)
    edges = [graph.edges + start for graph, start in zip(graphs, starts, strict=True)]
    times = torch.stack([_by_age(o["times"], window) for o in observations])
    counts = torch.as_tensor(sizes)
    decision = torch.repeat_interleave(torch.arange(len(sizes)), counts)
    if priors is None:
        priors = [torch.zeros(size) for size in sizes]
    if [len(prior) for prior in priors] != sizes:
        raise InputError(f"priors: {[len(p) for p in priors]} values; expected {sizes}, one a task")
    gates = [0.0] * len(sizes) if gate_priors is None else gate_priors
    if len(gates) != len(sizes):
        raise InputError(f"gate_priors: {len(gates)} values; expected {len(sizes)}")
    snapshots = [_by_age(o["snapshots"], window).transpose(0, 1) for o in observations]
    return DecisionBatch(
        snapshots=torch.cat(snapshots),
        times=times,
        tasks=torch.cat([_floats(o["tasks"]) for o in observations]),
        restart=torch.stack([_floats(o["restart"]) for o in observations]),
        present=times[:, :, PRESENT] > 0,
        sizes=counts,
        decision=decision,
        place=torch.arange(len(decision)) - torch.as_tensor(starts)[decision],
        edges=torch.from_numpy(np.concatenate(edges, axis=1)),
        candidates=torch.from_numpy(candidates),
        prior=torch.cat([_floats(prior) for prior in priors]),
        gate_prior=_floats(gates),
    )


def check_shapes(observation: Mapping[str, Any]) -> None:
    """Raise an InputError that names a table of a wrong shape."""
    tasks, window = len(observation["tasks"]), len(observation["times"])
    expected = {
        "snapshots": (window, tasks, len(SNAPSHOT_COLUMNS)),
        "times": (window, len(TIME_COLUMNS)),
        "tasks": (tasks, len(TASK_COLUMNS)),
        "restart": (len(RESTART_COLUMNS),),
    }
    for name, shape in expected.items():
        if tuple(observation[name].shape) != shape:
            raise InputError(f"{name}: shape {tuple(observation[name].shape)}; expected {shape}")
    if not tasks or not window:
        raise InputError(f"observation of {tasks} tasks and {window} snapshots; expected one each")


def _floats(table: Any) -> Tensor:
    return torch.as_tensor(table, dtype=torch.float32)


def _by_age(table: Any, window: int) -> Tensor:
    """(window, ...) with the newest snapshot first, and zeros for those before the history."""
    newest_first = _floats(table).flip(0)
    missing = newest_first.new_zeros(window - len(newest_first), *newest_first.shape[1:])
    return torch.cat([newest_first, missing]) if len(missing) else newest_first


class Draw(NamedTuple):
    """The drawn subgraph of every task, in the order of drawing."""

    snapshot: Tensor  # (T, k1) ages, then NONE where the history is shorter
    neighbour: Tensor  # (T, k1, k2) columns of `candidates`, then NONE where there are fewer


class Nodes(NamedTuple):
    """V nodes of graphs and M edges between them; `owner` is the task whose embedding they make."""

    task: Tensor  # (V,) rows
    age: Tensor  # (V,)
    owner: Tensor  # (V,) rows
    edges: Tensor  # (2, M) nodes from, to

    def per_decision(self, batch: DecisionBatch) -> Tensor:
        """(B,) number of nodes."""
        return torch.bincount(batch.decision[self.owner], minlength=len(batch.sizes))


def subgraph_nodes(batch: DecisionBatch, draw: Draw) -> Nodes:
    """A subgraph for each task: itself and the drawn neighbours in the drawn snapshots.

    Edges of the DAG inside a snapshot carry messages both ways [D]: a task that is held up is held
    up from downstream. The task is linked from each drawn snapshot to the next in time.
    """
    # Oldest first; slots without a snapshot last.
    order = torch.where(draw.snapshot >= 0, -draw.snapshot, 1).argsort(dim=1, stable=True)
    age = draw.snapshot.gather(1, order)
    chosen = draw.neighbour.gather(1, order.unsqueeze(2).expand_as(draw.neighbour))
    (tasks, slots, drawn), width = chosen.shape, chosen.shape[2] + 1
    own = torch.arange(tasks, device=age.device).view(-1, 1, 1).expand(-1, slots, 1)
    rows = batch.candidates.gather(1, chosen.clamp(min=0).flatten(1)).view(tasks, slots, drawn)
    rows = torch.cat([own, torch.where(chosen >= 0, rows, own)], dim=2)  # (T, k1, 1 + k2)
    real = torch.cat([(age >= 0).unsqueeze(2), chosen >= 0], dim=2)
    number = (real.flatten().cumsum(0) - 1).view_as(real)
    linked = _adjacent(batch, rows) & real.unsqueeze(3) & real.unsqueeze(2)
    slot, source, target = linked.view(-1, width, width).nonzero().unbind(1)
    by_slot = number.view(-1, width)
    inside = torch.stack([by_slot[slot, source], by_slot[slot, target]])
    later = real[:, 1:, 0]
    in_time = torch.stack([number[:, :-1, 0][later], number[:, 1:, 0][later]])
    return Nodes(
        task=rows[real],
        age=age.unsqueeze(2).expand_as(rows)[real],
        owner=own.expand_as(rows)[real],
        edges=torch.cat([inside, in_time], dim=1),
    )


def _adjacent(batch: DecisionBatch, rows: Tensor) -> Tensor:
    """(..., S, S) bool: whether an edge joins two of the S rows of one job."""
    squares = batch.sizes.square()
    first = (squares.cumsum(0) - squares)[batch.decision]  # of the job's square table
    across = batch.sizes[batch.decision]
    source, target = batch.edges
    table = torch.zeros(int(squares.sum()), dtype=torch.bool, device=rows.device)
    table[first[source] + batch.place[source] * across[source] + batch.place[target]] = True
    start = first[rows] + batch.place[rows] * across[rows]
    return table[start.unsqueeze(-1) + batch.place[rows].unsqueeze(-2)]


def whole_nodes(batch: DecisionBatch) -> Nodes:
    """All tasks in all snapshots; each task is linked from a snapshot to the next in time."""
    real = batch.present[batch.decision]  # (T, L)
    number = (real.flatten().cumsum(0) - 1).view_as(real)
    task, age = real.nonzero().unbind(1)
    source, target = batch.edges
    both = real[source]
    inside = torch.stack([number[source][both], number[target][both]])
    later = real[:, 1:] & real[:, :-1]
    in_time = torch.stack([number[:, 1:][later], number[:, :-1][later]])
    return Nodes(task, age, task, torch.cat([inside, in_time], dim=1))
