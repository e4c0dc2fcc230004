"""Tables of SURE's compiled forward pass: a job, kept features, decisions and scratch.

Nodes and tasks are rows, of features side by side: sums over neighbours add whole rows. Columns
are padded with 0 to whole registers (see `layers.row_weights`).
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import Ints
from loadmaster.models.layers import TOURNAMENT, Array32, round_up
from loadmaster.models.simd import OUTPUTS, VECTOR
from loadmaster.models.simd_sparse import GROUP
from loadmaster.models.sure.compiled_weights import SCORES, Weights
from loadmaster.models.sure.graph import NONE, job_graph
from loadmaster.models.sure.settings import SureSettings

NODES = (
    96  # rows that a graph layer takes at once, if a task has no more; they stay in the L1 cache
)


class CompiledJob(NamedTuple):
    """What does not change during an episode: N tasks, K candidates."""

    tasks: Array32  # (N, TASK_COLUMNS)
    candidates: Ints  # (N, K) neighbours of each task, then NONE
    near: Ints  # (N,) how many of these
    adjacent: NDArray[np.bool_]  # (N, N)
    linked: Ints  # (N, most) neighbours by an edge in either direction
    degree: Ints  # (N,) how many of these


class KeptFeatures(NamedTuple):
    """Features of the last L snapshots of E episodes, computed when a snapshot arrives: rings."""

    first: Array32  # (E, L, N, columns) W1 x
    score_part: Array32  # (E, SCORES, N, L)
    present: NDArray[np.bool_]  # (E, L)
    newest: Ints  # (E,) its place in the ring


class Decisions(NamedTuple):
    """Decisions of E episodes, as they are recorded."""

    gate: NDArray[np.bool_]  # (E,)
    change: Array32  # (E, N)
    log_prob: Array32  # (E, 1 + 2 N) of the gate, of the tasks, of their draws; 0 if greedy
    snapshot: NDArray[np.int16]  # (E, N, k1) ages
    neighbour: NDArray[np.int16]  # (E, N, k1 * k2) columns of `candidates`
    gate_logit: Array32  # (E,)
    mean: Array32  # (E, N)


class Workspace(NamedTuple):
    """Scratch of a decision; the draw and its scores are those of the last one."""

    inputs: Array32  # (N, features)
    summed: Array32  # (N, columns)
    normed: Array32  # (N, columns)
    score_part: Array32  # (N, columns)
    slot: Ints  # (L,) place in the ring by age, or NONE
    context: Array32  # (L, columns) by age, times W1
    score: Array32  # (SCORES, L) a task's by age, without bounds
    score_context: Array32  # (SCORES, L) by age
    noise: Array32  # (2, L) eps of both roles
    task_key: NDArray[np.uint64]  # (N,)
    pair_key: NDArray[np.uint64]  # (K,)
    theta: Array32  # (N, L) scores by age
    phi: Array32  # (N, L) the same, of neighbours
    options: Array32  # (2, max(L, K)) scores and weights
    numbers: NDArray[np.float64]  # (max(L, k1 K, k1 (1 + k2)),) Gumbel numbers, then sums
    tops: NDArray[np.float64]  # (L / TOURNAMENT,)
    best: Ints  # (k2,)
    best_key: NDArray[np.float64]  # (k2,)
    snapshot: Ints  # (N, k1) ages
    neighbour: Ints  # (N, k1, k2)
    snapshot_score: Array32  # (N, k1)
    neighbour_score: Array32  # (N, k1, k2)
    nodes: Array32  # (3, nodes, columns)
    whole: Array32  # (2, L * N, columns) all nodes before and after a layer, if they are encoded
    node_task: Ints  # (nodes,)
    linked: Ints  # (nodes, most) rows of each node and of the nodes with an edge to it
    linked_count: Ints  # (nodes,) how many of these
    members: Ints  # (N, most) rows of each task's nodes
    sizes: Ints  # (N,) how many of these
    # Different nodes without edges, see compiled_graph.py.
    loner_row: Ints  # (N, L) the row of a task's node by age, or NONE
    loner_node: Ints  # (N k1 k2, 2) task and age
    loner_members: Ints  # (N, k1 k2) rows in the subgraph of each task
    loner_sizes: Ints  # (N,) how many of these
    loners: Array32  # (N k1 k2, more than D) outputs of all layers
    loners_pooled: Array32  # (N, D + VECTOR)
    pooled: Array32  # (N, D + VECTOR)
    joined: Array32  # (N, hidden columns + D)
    embedding: Array32  # (N, columns)
    job: Array32  # (rows, 2 D)
    head_1: Array32  # (N, columns)
    head_2: Array32
    head_3: Array32


def _drawn(settings: SureSettings) -> tuple[int, int]:
    """k1 and k2; 0 if nothing is drawn."""
    return (settings.drawn_snapshots, settings.drawn_neighbours) if settings.draws else (0, 0)


def compiled_job(tasks: NDArray[Any], edges: NDArray[Any], hops: int) -> CompiledJob:
    """Of the observation's `tasks` (N, TASK_COLUMNS) and `edges` (2, M)."""
    graph = job_graph(edges, len(tasks), hops)
    adjacent = np.zeros((len(tasks), len(tasks)), np.bool_)
    adjacent[graph.edges[0], graph.edges[1]] = True
    degree = adjacent.sum(axis=1)
    return CompiledJob(
        np.ascontiguousarray(tasks, np.float32),
        np.ascontiguousarray(graph.candidates),
        (graph.candidates >= 0).sum(axis=1),
        adjacent,
        np.argsort(~adjacent, axis=1, kind="stable")[:, : degree.max(initial=0)],
        degree,
    )


def empty_features(weights: Weights, episodes: int, tasks: int) -> KeptFeatures:
    window, columns = weights.by_age.shape
    return KeptFeatures(
        first=np.zeros((episodes, window, tasks, columns), np.float32),
        score_part=np.zeros((episodes, SCORES, tasks, window), np.float32),
        present=np.zeros((episodes, window), np.bool_),
        newest=np.full(episodes, window - 1, np.int64),
    )


def empty_decisions(settings: SureSettings, tasks: int, *sizes: int) -> Decisions:
    """With these leading sizes; tables of draws have no columns if nothing is drawn."""
    k1, k2 = _drawn(settings)
    return Decisions(
        gate=np.zeros(sizes, np.bool_),
        change=np.zeros((*sizes, tasks), np.float32),
        log_prob=np.zeros((*sizes, 1 + 2 * tasks), np.float32),
        snapshot=np.zeros((*sizes, tasks, k1), np.int16),
        neighbour=np.zeros((*sizes, tasks, k1 * k2), np.int16),
        gate_logit=np.zeros(sizes, np.float32),
        mean=np.zeros((*sizes, tasks), np.float32),
    )


def workspace_for(settings: SureSettings, weights: Weights, job: CompiledJob) -> Workspace:
    """Scratch for decisions about one job."""
    (tasks, near), window = job.candidates.shape, len(weights.by_age)
    k1, k2 = _drawn(settings)
    size, columns = settings.layers * settings.width, weights.by_age.shape[1]
    # Nodes of a task's subgraph, or of a snapshot, stay together.
    together = k1 * (1 + k2) if settings.draws else tasks
    group = max(NODES // together, 1)
    nodes, rows = round_up(max(group * together, NODES), OUTPUTS), round_up(tasks, OUTPUTS)

    def floats(*shape: int) -> Array32:
        return np.zeros(shape, np.float32)

    def ints(*shape: int) -> Ints:
        return np.zeros(shape, np.int64)

    return Workspace(
        inputs=floats(rows, len(weights.features) - 1),
        summed=floats(rows, columns),
        normed=floats(rows, columns),
        score_part=floats(rows, weights.scores.shape[1]),
        slot=ints(window),
        context=floats(window, columns),
        score=floats(SCORES, window),
        score_context=floats(SCORES, window),
        noise=floats(2, window),
        task_key=np.zeros(tasks, np.uint64),
        pair_key=np.zeros(near, np.uint64),
        theta=floats(tasks, window),
        phi=floats(tasks, window),
        options=floats(2, max(window, near)),
        numbers=np.zeros(max(window, k1 * near, k1 * (1 + k2)), np.float64),
        tops=np.zeros(-(-window // TOURNAMENT), np.float64),
        best=ints(k2),
        best_key=np.zeros(k2, np.float64),
        snapshot=ints(tasks, k1),
        neighbour=ints(tasks, k1, k2),
        snapshot_score=floats(tasks, k1),
        neighbour_score=floats(tasks, k1, k2),
        nodes=floats(3, nodes, columns),
        whole=floats(2, 0 if settings.draws else window * tasks, columns),
        node_task=ints(nodes),
        linked=ints(nodes, 2 + (k2 if settings.draws else job.linked.shape[1])),
        linked_count=ints(nodes),
        members=ints(tasks, together if settings.draws else window),
        sizes=ints(tasks),
        loner_row=np.full((tasks, window), NONE),
        loner_node=ints(tasks * k1 * k2, 2),
        loner_members=ints(tasks, k1 * k2),
        loner_sizes=ints(tasks),
        loners=floats(round_up(tasks * k1 * k2, OUTPUTS), size + max(VECTOR, GROUP)),
        loners_pooled=floats(rows, size + VECTOR),
        pooled=floats(rows, size + VECTOR),
        joined=floats(rows, len(weights.joined) - 1),
        embedding=floats(rows, weights.joined.shape[1]),
        job=floats(OUTPUTS, len(weights.gate[0]) - 1),
        head_1=floats(rows, max(weights.change[0].shape[1], weights.gate[0].shape[1])),
        head_2=floats(rows, weights.change[1].shape[1]),
        head_3=floats(rows, weights.change[2].shape[1]),
    )
