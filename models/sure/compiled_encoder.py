"""Features of snapshots and embeddings of drawn subgraphs in compiled code.

The nodes of some tasks' subgraphs are the rows of one small matrix. A graph layer adds up the rows
of neighbours, then applies two dense layers in vector registers.
"""

import numpy as np

from loadmaster.envs.compiled import compiled, njit_internal
from loadmaster.envs.stream_scaling.observation import SNAPSHOT_COLUMNS, TASK_COLUMNS, TIME_COLUMNS
from loadmaster.models.layers import LINEAR, RELU, Array32, dense_rows, layer_norm_row
from loadmaster.models.sure.compiled_tables import (
    NODES,
    SCORES,
    CompiledJob,
    KeptFeatures,
    Weights,
    Workspace,
)
from loadmaster.models.sure.graph import PRESENT

_OF_TASK = len(SNAPSHOT_COLUMNS)
_OF_TIME = _OF_TASK + len(TASK_COLUMNS)
_INPUTS = _OF_TIME + len(TIME_COLUMNS)
_ONE = np.float32(1)


@njit_internal
def _copy_row(source: Array32, target: Array32) -> None:
    for i in range(len(target)):
        target[i] = source[i]


@njit_internal
def _add_row(source: Array32, target: Array32) -> None:
    for i in range(len(target)):
        target[i] += source[i]


@compiled
def keep_snapshots(
    weights: Weights,
    job: CompiledJob,
    kept: KeptFeatures,
    snapshots: Array32,
    times: Array32,
    work: Workspace,
) -> None:
    """Add new snapshots (E, M, N, columns) and their times (E, M, columns), the oldest first."""
    window = kept.present.shape[1]
    for episode in range(len(snapshots)):
        for row in range(max(snapshots.shape[1] - window, 0), snapshots.shape[1]):
            slot = (kept.newest[episode] + 1) % window
            kept.newest[episode] = slot
            kept.present[episode, slot] = times[episode, row, PRESENT] > 0
            if kept.present[episode, slot]:
                _compute_features(
                    weights, job, snapshots[episode, row], times[episode, row],
                    kept.x[episode, slot], work,
                )  # fmt: skip
                for task in range(len(job.tasks)):
                    for i in range(SCORES):
                        kept.score_part[episode, i, task, slot] = work.score_part[task, i]


@njit_internal
def _compute_features(
    weights: Weights,
    job: CompiledJob,
    snapshot: Array32,
    time: Array32,
    x: Array32,
    work: Workspace,
) -> None:
    """x = LayerNorm(Linear(features)) of every task, and what it adds to the scores."""
    tasks = len(job.tasks)
    for task in range(tasks):
        row = work.inputs[task]
        for i in range(_OF_TASK):
            row[i] = snapshot[task, i]
        for i in range(_OF_TASK, _OF_TIME):
            row[i] = job.tasks[task, i - _OF_TASK]
        for i in range(_OF_TIME, _INPUTS):
            row[i] = time[i - _OF_TIME]
        row[_INPUTS] = _ONE
    dense_rows(weights.features, work.zeros, work.inputs, LINEAR, work.summed, tasks)
    for task in range(tasks):
        layer_norm_row(work.summed[task], weights.norm[0], weights.norm[1], work.normed[task])
    dense_rows(weights.scores, work.zeros, work.normed, LINEAR, work.score_part, tasks)
    for task in range(tasks):
        _copy_row(work.normed[task], x[task])


@njit_internal
def embed(weights: Weights, job: CompiledJob, x: Array32, work: Workspace) -> None:
    """Embeddings of all tasks by subgraphs, or by the whole graph; `x` (L, N, columns) in rings."""
    work.pooled[:] = 0
    if weights.whole:
        _encode_whole(weights, job, x, work)
    else:
        _encode_subgraphs(weights, job, x, work)
    _read_out(weights, len(job.tasks), work)


@njit_internal
def _encode_subgraphs(weights: Weights, job: CompiledJob, x: Array32, work: Workspace) -> None:
    tasks, per_task = len(job.tasks), work.snapshot.shape[1] * (1 + work.neighbour.shape[2])
    group = max(NODES // max(per_task, 1), 1)
    table, summed = work.nodes[0], work.nodes[1]
    for first in range(0, tasks, group):
        nodes, edges = _subgraphs(weights, job, x, first, min(first + group, tasks), work)
        for layer in range(len(weights.graph)):
            for node in range(nodes):
                _copy_row(table[node], summed[node])
            for edge in range(edges):
                _add_row(table[work.edges[edge, 0]], summed[work.edges[edge, 1]])
            _graph_layer(weights, layer, nodes, work)


@njit_internal
def _encode_whole(weights: Weights, job: CompiledJob, x: Array32, work: Workspace) -> None:
    """All tasks in all snapshots; each task is linked from a snapshot to the next in time."""
    tasks, window, width = len(job.tasks), len(work.slot), len(weights.anchor)
    for age in range(window):
        if work.slot[age] >= 0:
            for task in range(tasks):
                row = work.whole[0, age * tasks + task]
                known, context = x[work.slot[age], task], work.context[age]
                for i in range(width):
                    row[i] = known[i] + context[i]
    table, summed = work.nodes[0], work.nodes[1]
    group = max(NODES // tasks, 1)
    for layer in range(len(weights.graph)):
        before, after = work.whole[layer % 2], work.whole[1 - layer % 2]
        for first in range(0, window, group):
            nodes = 0
            for age in range(first, min(first + group, window)):
                if work.slot[age] < 0:
                    continue
                for task in range(tasks):
                    work.owner[nodes + task] = task
                    _copy_row(before[age * tasks + task], summed[nodes + task])
                    if age + 1 < window and work.slot[age + 1] >= 0:
                        _add_row(before[(age + 1) * tasks + task], summed[nodes + task])
                for edge in range(job.edges.shape[1]):
                    source, target = job.edges[0, edge], job.edges[1, edge]
                    _add_row(before[age * tasks + source], summed[nodes + target])
                nodes += tasks
            _graph_layer(weights, layer, nodes, work)
            nodes = 0
            for age in range(first, min(first + group, window)):
                if work.slot[age] >= 0:
                    for task in range(tasks):
                        _copy_row(table[nodes + task], after[age * tasks + task])
                    nodes += tasks


@njit_internal
def _subgraphs(
    weights: Weights, job: CompiledJob, x: Array32, first: int, last: int, work: Workspace
) -> tuple[int, int]:
    """Rows and edges of the subgraphs of tasks `first` to `last`: how many of both.

    Edges go both ways inside a snapshot, and from a task's node to the next in time.
    """
    nodes, edges = 0, 0
    table, width = work.nodes[0], len(weights.anchor)
    for task in range(first, last):
        before, older = -1, len(work.slot)
        for _ in range(work.snapshot.shape[1]):
            # The oldest drawn snapshot that is newer than the last.
            place = -1
            for other in range(work.snapshot.shape[1]):
                age = work.snapshot[task, other]
                if 0 <= age < older and (place < 0 or age > work.snapshot[task, place]):
                    place = other
            if place < 0:
                break
            older = work.snapshot[task, place]
            features, context, own = x[work.slot[older]], work.context[older], nodes
            for rank in range(-1, work.neighbour.shape[2]):
                column = 0 if rank < 0 else work.neighbour[task, place, rank]
                if column < 0:
                    break
                of = task if rank < 0 else job.candidates[task, column]
                work.node_task[nodes], work.owner[nodes] = of, task
                row, known = table[nodes], features[of]
                for i in range(width):
                    row[i] = known[i] + context[i]
                for other in range(own, nodes):
                    if job.adjacent[of, work.node_task[other]]:
                        work.edges[edges, 0], work.edges[edges, 1] = nodes, other
                        work.edges[edges + 1, 0], work.edges[edges + 1, 1] = other, nodes
                        edges += 2
                nodes += 1
            for i in range(width):
                table[own, i] += weights.anchor[i]
            if before >= 0:
                work.edges[edges, 0], work.edges[edges, 1] = before, own
                edges += 1
            before = own
    return nodes, edges


@njit_internal
def _graph_layer(weights: Weights, layer: int, nodes: int, work: Workspace) -> None:
    """h' = ReLU(MLP(h_v + sum of h_w over incoming edges)) of these sums; add h' up by task."""
    table, summed, hidden = work.nodes[0], work.nodes[1], work.nodes[2]
    width = len(weights.anchor)
    for node in range(nodes):
        summed[node, width] = _ONE
    first, second = weights.graph[layer, 0], weights.graph[layer, 1]
    dense_rows(first, work.zeros, summed, RELU, hidden, nodes)
    dense_rows(second, work.zeros, hidden, RELU, table, nodes)
    for node in range(nodes):
        row, own = work.pooled[work.owner[node]], table[node]
        for i in range(width):
            row[layer * width + i] += own[i]


@njit_internal
def _read_out(weights: Weights, tasks: int, work: Workspace) -> None:
    """LayerNorm of the sums, then a feed-forward network with shortcut."""
    scaled = work.joined[:, weights.feed_forward.shape[1] :]
    for task in range(tasks):
        layer_norm_row(
            work.pooled[task], weights.readout_norm[0], weights.readout_norm[1], scaled[task]
        )
    dense_rows(weights.feed_forward, work.zeros, scaled, RELU, work.joined, tasks)
    dense_rows(weights.joined, work.zeros, work.joined, LINEAR, work.embedding, tasks)
