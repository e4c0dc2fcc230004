"""Graph layers over drawn subgraphs, or over the whole graph, in compiled code.

The nodes of some tasks' subgraphs are the rows of one small matrix. A graph layer adds up the rows
of neighbours, then applies its dense layers in vector registers.

A drawn neighbour without any edge inside its subgraph is the same node in the subgraphs of all
tasks that draw it in this snapshot. It is encoded once. With 57 tasks, 740 of 2,280 sampled nodes
have no edge, of which 620 are different; of the best nodes 676, of which 200 are different.
"""

from loadmaster.envs.compiled import njit_internal
from loadmaster.models.layers import Array32, relu_rows
from loadmaster.models.simd_rows import prefetch_row, relu_of_sums, sum_rows
from loadmaster.models.sure.compiled_tables import NODES, CompiledJob, Workspace
from loadmaster.models.sure.compiled_weights import Weights
from loadmaster.models.sure.graph import NONE


@njit_internal
def copy_row(source: Array32, target: Array32) -> None:
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


@njit_internal
def encode_subgraphs(weights: Weights, job: CompiledJob, known: Array32, work: Workspace) -> None:
    """Sums of all layers' rows over the subgraph of each task; `known` as in `embed`."""
    tasks, per_task = len(job.tasks), work.snapshot.shape[1] * (1 + work.neighbour.shape[2])
    group, width = max(NODES // max(per_task, 1), 1), weights.graph.shape[1] - 1
    layers, table, loners = (len(weights.graph) + 1) // 2, work.nodes[0], 0
    for first in range(0, tasks, group):
        last = min(first + group, tasks)
        nodes, loners = _subgraphs(weights, job, known, first, last, loners, work)
        _prefetch(job, known, last, min(last + group, tasks), work)
        for layer in range(layers):
            _graph_layer(weights, layer, table, nodes, work)
            pooled = work.pooled[first:, layer * width :]
            members, sizes = work.members, work.sizes
            sum_rows(table, members, sizes, pooled, last - first, width)
    _encode_loners(weights, known, loners, work)
    size, members, sizes = layers * width, work.loner_members, work.loner_sizes
    sum_rows(work.loners, members, sizes, work.loners_pooled, tasks, size)
    for task in range(tasks):
        _add_row(work.loners_pooled[task], work.pooled[task])


@njit_internal
def _prefetch(job: CompiledJob, known: Array32, first: int, last: int, work: Workspace) -> None:
    """Fetch the nodes of tasks `first` to `last`: a window of many tasks exceeds the L2 cache."""
    for task in range(first, last):
        for place in range(work.snapshot.shape[1]):
            age = work.snapshot[task, place]
            if age < 0:
                break
            features = known[work.slot[age]]
            prefetch_row(features, task)
            for column in work.neighbour[task, place]:
                if column >= 0:
                    prefetch_row(features, job.candidates[task, column])


@njit_internal
def _subgraphs(
    weights: Weights, job: CompiledJob, known: Array32, first: int, last: int, loners: int,
    work: Workspace,
) -> tuple[int, int]:  # fmt: skip
    """Rows and edges of the subgraphs of tasks `first` to `last`; returns the number of rows.

    Edges go both ways inside a snapshot, and from a task's node to the next in time. Nodes without
    edges are added to those of other tasks, whose number is given and returned.
    """
    nodes, table, linked, count = 0, work.nodes[0], work.linked, work.linked_count
    for task in range(first, last):
        before, older, start = -1, len(work.slot), nodes
        work.loner_sizes[task] = 0
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
                if rank >= 0 and _has_no_edge(job, task, place, of, work):
                    loners = _add_loner(task, of, older, loners, work)
                    continue
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
    return nodes, loners


@njit_internal
def _has_no_edge(job: CompiledJob, task: int, place: int, of: int, work: Workspace) -> bool:
    """Whether a neighbour drawn for a task has no edge to the other nodes of its snapshot."""
    adjacent, candidates = job.adjacent[of], job.candidates[task]
    if adjacent[task]:
        return False
    for column in work.neighbour[task, place]:
        if column >= 0 and adjacent[candidates[column]]:
            return False
    return True


@njit_internal
def _add_loner(task: int, of: int, age: int, loners: int, work: Workspace) -> int:
    """Add a node to those of a task; returns the number of different nodes, so far `loners`."""
    row = work.loner_row[of, age]
    if row < 0:
        row = work.loner_row[of, age] = loners
        work.loner_node[row, 0], work.loner_node[row, 1] = of, age
        loners += 1
    work.loner_members[task, work.loner_sizes[task]] = row
    work.loner_sizes[task] += 1
    return loners


@njit_internal
def _encode_loners(weights: Weights, known: Array32, loners: int, work: Workspace) -> None:
    """Rows of all layers, side by side, of nodes without edges."""
    width, hidden, linked = weights.graph.shape[1] - 1, work.nodes[2], work.linked
    for first in range(0, loners, NODES):
        nodes = min(loners - first, NODES)
        for node in range(nodes):
            of, age = work.loner_node[first + node, 0], work.loner_node[first + node, 1]
            work.loner_row[of, age] = NONE
            _add_rows(known[work.slot[age], of], work.context[age], work.nodes[0, node])
            linked[node, 0], work.linked_count[node] = node, 1
        for layer in range((len(weights.graph) + 1) // 2):
            target = work.loners[first:, layer * width :]
            if layer == 0:
                bias, count = weights.first_bias, work.linked_count
                columns = hidden.shape[1]
                relu_of_sums(work.nodes[0], linked, count, bias, hidden, nodes, columns)
            else:
                given = work.loners[first:, (layer - 1) * width :]
                relu_rows(weights.graph[2 * layer - 1], given, hidden, nodes)
            relu_rows(weights.graph[2 * layer], hidden, target, nodes)


@njit_internal
def encode_whole(weights: Weights, job: CompiledJob, known: Array32, work: Workspace) -> None:
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
                        copy_row(work.nodes[0, nodes + task], after[age * tasks + task])
                    nodes += tasks
        pooled = work.pooled[:, layer * width :]
        sum_rows(after, work.members, work.sizes, pooled, tasks, width)


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
def _graph_layer(
    weights: Weights, layer: int, before: Array32, nodes: int, work: Workspace
) -> None:
    """h' = ReLU(MLP(h_v + sum of h_w over incoming edges)) of some nodes, by the rows `before`.

    The rows of the first layer went through its first map already: the sums are its hidden rows.
    """
    table, summed, hidden = work.nodes[0], work.nodes[1], work.nodes[2]
    linked, count, size = work.linked, work.linked_count, before.shape[1]
    if layer == 0:
        relu_of_sums(before, linked, count, weights.first_bias, hidden, nodes, size)
    else:
        sum_rows(before, linked, count, summed, nodes, size)
        relu_rows(weights.graph[2 * layer - 1], summed, hidden, nodes)
    relu_rows(weights.graph[2 * layer], hidden, table, nodes)
