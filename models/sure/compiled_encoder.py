"""Features of snapshots and embeddings of drawn subgraphs in compiled code.

The nodes of some tasks' subgraphs are the rows of one small matrix. A graph layer adds up the rows
of neighbours, then applies two dense layers in vector registers.
"""

from loadmaster.envs.compiled import compiled, njit_internal
from loadmaster.envs.stream_scaling.observation import SNAPSHOT_COLUMNS, TASK_COLUMNS, TIME_COLUMNS
from loadmaster.models.layers import LINEAR, RELU, Array32, dense_rows, layer_norm_row
from loadmaster.models.simd_rows import sum_rows
from loadmaster.models.sure.compiled_tables import (
    NODES,
    CompiledJob,
    KeptFeatures,
    Workspace,
)
from loadmaster.models.sure.compiled_weights import SCORES, Weights
from loadmaster.models.sure.graph import PRESENT

_OF_TASK = len(SNAPSHOT_COLUMNS)
_OF_TIME = _OF_TASK + len(TASK_COLUMNS)
_INPUTS = _OF_TIME + len(TIME_COLUMNS)


@njit_internal
def _copy_row(source: Array32, target: Array32) -> None:
    for i in range(len(target)):
        target[i] = source[i]


@njit_internal
def _add_row(source: Array32, target: Array32) -> None:
    for i in range(len(target)):
        target[i] += source[i]


@njit_internal
def _add_rows(first: Array32, second: Array32, target: Array32) -> None:
    for i in range(len(target)):
        target[i] = first[i] + second[i]


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
                    kept.first[episode, slot], work,
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
    first: Array32,
    work: Workspace,
) -> None:
    """W1 x of every task, x = LayerNorm(Linear(features)), and what x adds to the scores."""
    tasks = len(job.tasks)
    for task in range(tasks):
        row = work.inputs[task]
        for i in range(_OF_TASK):
            row[i] = snapshot[task, i]
        for i in range(_OF_TASK, _OF_TIME):
            row[i] = job.tasks[task, i - _OF_TASK]
        for i in range(_OF_TIME, _INPUTS):
            row[i] = time[i - _OF_TIME]
    dense_rows(weights.features, work.inputs, LINEAR, work.summed, tasks)
    for task in range(tasks):
        layer_norm_row(work.summed[task], weights.norm[0], weights.norm[1], work.normed[task])
    dense_rows(weights.scores, work.normed, LINEAR, work.score_part, tasks)
    dense_rows(weights.first, work.normed, LINEAR, work.summed, tasks)
    for task in range(tasks):
        _copy_row(work.summed[task], first[task])


@njit_internal
def embed(weights: Weights, job: CompiledJob, known: Array32, work: Workspace) -> None:
    """Embeddings of all tasks by subgraphs, or by the whole graph.

    `known` (L, N, columns): W1 x in rings.
    """
    work.pooled[:] = 0
    if weights.whole:
        _encode_whole(weights, job, known, work)
    else:
        _encode_subgraphs(weights, job, known, work)
    _read_out(weights, len(job.tasks), work)


@njit_internal
def _encode_subgraphs(weights: Weights, job: CompiledJob, known: Array32, work: Workspace) -> None:
    tasks, per_task = len(job.tasks), work.snapshot.shape[1] * (1 + work.neighbour.shape[2])
    group, width = max(NODES // max(per_task, 1), 1), weights.graph.shape[1] - 1
    table = work.nodes[0]
    for first in range(0, tasks, group):
        last = min(first + group, tasks)
        nodes = _subgraphs(weights, job, known, first, last, work)
        for layer in range((len(weights.graph) + 1) // 2):
            _graph_layer(weights, layer, table, nodes, work)
            pooled = work.pooled[first:, layer * width :]
            members, sizes = work.members, work.sizes
            sum_rows(table, members, sizes, work.zeros, LINEAR, pooled, last - first, width)


@njit_internal
def _encode_whole(weights: Weights, job: CompiledJob, known: Array32, work: Workspace) -> None:
    """All tasks in all snapshots; each task is linked from a snapshot to the next in time."""
    tasks, window, width = len(job.tasks), len(work.slot), weights.graph.shape[1] - 1
    work.sizes[:] = 0
    for age in range(window):
        if work.slot[age] >= 0:
            for task in range(tasks):
                node = age * tasks + task
                _add_rows(known[work.slot[age], task], work.context[age], work.whole[0, node])
                work.members[task, work.sizes[task]] = node
                work.sizes[task] += 1
    group = max(NODES // tasks, 1)
    for layer in range((len(weights.graph) + 1) // 2):
        before, after = work.whole[layer % 2], work.whole[1 - layer % 2]
        for first in range(0, window, group):
            nodes, last = 0, min(first + group, window)
            for age in range(first, last):
                if work.slot[age] >= 0:
                    _link_snapshot(job, age, nodes, work)
                    nodes += tasks
            _graph_layer(weights, layer, before, nodes, work)
            nodes = 0
            for age in range(first, last):
                if work.slot[age] >= 0:
                    for task in range(tasks):
                        _copy_row(work.nodes[0, nodes + task], after[age * tasks + task])
                    nodes += tasks
        pooled = work.pooled[:, layer * width :]
        sum_rows(after, work.members, work.sizes, work.zeros, LINEAR, pooled, tasks, width)


@njit_internal
def _link_snapshot(job: CompiledJob, age: int, first: int, work: Workspace) -> None:
    """Rows that the graph layer adds up for the nodes of a snapshot, from node `first` on."""
    tasks, linked = len(job.tasks), work.linked
    older = age + 1 < len(work.slot) and work.slot[age + 1] >= 0
    for task in range(tasks):
        linked[first + task, 0], count = age * tasks + task, 1
        for place in range(job.degree[task]):
            linked[first + task, count] = age * tasks + job.linked[task, place]
            count += 1
        if older:
            linked[first + task, count] = (age + 1) * tasks + task
            count += 1
        work.linked_count[first + task] = count


@njit_internal
def _subgraphs(
    weights: Weights, job: CompiledJob, known: Array32, first: int, last: int, work: Workspace
) -> int:
    """Rows and edges of the subgraphs of tasks `first` to `last`; returns the number of rows.

    Edges go both ways inside a snapshot, and from a task's node to the next in time.
    """
    nodes, table, linked, count = 0, work.nodes[0], work.linked, work.linked_count
    for task in range(first, last):
        before, older, start = -1, len(work.slot), nodes
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
            features, context, own = known[work.slot[older]], work.context[older], nodes
            for rank in range(-1, work.neighbour.shape[2]):
                column = 0 if rank < 0 else work.neighbour[task, place, rank]
                if column < 0:
                    break
                of = task if rank < 0 else job.candidates[task, column]
                work.node_task[nodes] = of
                work.members[task - first, nodes - start] = nodes
                _add_rows(features[of], context, table[nodes])
                linked[nodes, 0], count[nodes] = nodes, 1
                for other in range(own, nodes):
                    if job.adjacent[of, work.node_task[other]]:
                        linked[nodes, count[nodes]] = other
                        linked[other, count[other]] = nodes
                        count[nodes] += 1
                        count[other] += 1
                nodes += 1
            _add_row(weights.anchor, table[own])
            if before >= 0:
                linked[own, count[own]] = before
                count[own] += 1
            before = own
        work.sizes[task - first] = nodes - start
    return nodes


@njit_internal
def _graph_layer(
    weights: Weights, layer: int, before: Array32, nodes: int, work: Workspace
) -> None:
    """h' = ReLU(MLP(h_v + sum of h_w over incoming edges)) of some nodes, by the rows `before`.

    The rows of the first layer went through its first map already: the sums are its hidden rows.
    """
    table, summed, hidden = work.nodes[0], work.nodes[1], work.nodes[2]
    linked, count, size = work.linked, work.linked_count, before.shape[1]
    if layer == 0:
        sum_rows(before, linked, count, weights.first_bias, RELU, hidden, nodes, size)
    else:
        sum_rows(before, linked, count, work.zeros, LINEAR, summed, nodes, size)
        dense_rows(weights.graph[2 * layer - 1], summed, RELU, hidden, nodes)
    dense_rows(weights.graph[2 * layer], hidden, RELU, table, nodes)


@njit_internal
def _read_out(weights: Weights, tasks: int, work: Workspace) -> None:
    """LayerNorm of the sums, then a feed-forward network with shortcut."""
    scaled = work.joined[:, weights.feed_forward.shape[1] :]
    for task in range(tasks):
        layer_norm_row(
            work.pooled[task], weights.readout_norm[0], weights.readout_norm[1], scaled[task]
        )
    dense_rows(weights.feed_forward, scaled, RELU, work.joined, tasks)
    dense_rows(weights.joined, work.joined, LINEAR, work.embedding, tasks)
