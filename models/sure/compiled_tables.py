"""Tables of SURE's compiled forward pass: weights, a job, kept features, decisions and scratch.

Nodes and tasks are rows, of features side by side: sums over neighbours add whole rows. Columns
are padded with 0 to whole registers (see `layers.row_weights`).

The first map of the first graph layer is linear, so it is applied before the sum over neighbours:
W1 (x_v + sum of x_w) = W1 x_v + sum of W1 x_w. W1 x of a snapshot is computed once, when it
arrives. What its age and the last restart add is linear, too, and computed with the weights.
"""

from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from torch import nn

from loadmaster.envs.compiled import Ints
from loadmaster.envs.errors import InputError
from loadmaster.models.layers import Array32, round_up, row_weights, row_weights_of, to_numpy
from loadmaster.models.simd import COLUMNS, OUTPUTS, VECTOR
from loadmaster.models.sure.encoders import POSITIONS, GraphLayers, positions
from loadmaster.models.sure.graph import job_graph
from loadmaster.models.sure.network import SureNetwork
from loadmaster.models.sure.settings import SureSettings

NODES = (
    96  # rows that a graph layer takes at once, if a task has no more; they stay in the L1 cache
)
SCORES = 4  # means of both roles, then log variances


class Weights(NamedTuple):
    """All layers by rows, for windows of L snapshots; W numbers a node, D an embedding."""

    features: Array32  # (features + 1, columns)
    norm: Array32  # (2, W) scale and shift
    scores: Array32  # (W + 1, columns)
    first: Array32  # (W + 1, columns) W1, the first map of the first graph layer, without bias
    first_bias: Array32  # (columns,)
    by_age: Array32  # (L, columns) part of the context, times W1
    by_restart: Array32  # (RESTART_COLUMNS, columns) the same
    anchor: Array32  # (columns,) the same
    score_by_age: Array32  # (SCORES, L) part of the context, times the weights of the scores
    score_by_restart: Array32  # (SCORES, RESTART_COLUMNS) the same
    graph: Array32  # (2 layers - 1, W + 1, columns) all other maps of the graph layers, in order
    readout_norm: Array32  # (2, D)
    feed_forward: Array32  # (D + 1, columns) first layer
    joined: Array32  # second layer and shortcut, of the hidden numbers and the first's inputs
    change: tuple[Array32, Array32, Array32]
    gate: tuple[Array32, Array32]
    log_std: np.float32
    gate_bound: np.float32
    change_bound: np.float32
    temperature: np.float32
    whole: bool  # the graph is encoded as it is, nothing is drawn
    scored: bool  # else all options are equally likely
    by_job: bool  # one change for all tasks


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
    best: Ints  # (max(k1, k2),)
    best_key: NDArray[np.float64]  # (max(k1, k2),)
    snapshot: Ints  # (N, k1) ages
    neighbour: Ints  # (N, k1, k2)
    snapshot_score: Array32  # (N, k1)
    neighbour_score: Array32  # (N, k1, k2)
    nodes: Array32  # (3, nodes, columns)
    whole: Array32  # (2, L * N, columns) all nodes before and after a layer, if they are encoded
    node_task: Ints  # (nodes,)
    linked: Ints  # (nodes, most) rows of each node and of the nodes with an edge to it
    count: Ints  # (nodes,) how many of these
    members: Ints  # (N, most) rows of each task's nodes
    sizes: Ints  # (N,) how many of these
    zeros: Array32  # (columns,)
    pooled: Array32  # (N, D + VECTOR)
    joined: Array32  # (N, hidden columns + D)
    embedding: Array32  # (N, columns)
    job: Array32  # (rows, 2 D)
    head_1: Array32  # (N, columns)
    head_2: Array32
    head_3: Array32


def is_supported(settings: SureSettings) -> bool:
    """Whether the compiled pass has this configuration; torch has all."""
    return settings.sampler != "none" and settings.encoder == "gin"


def weights_of(network: SureNetwork, window: int) -> Weights:
    """Copy a network's weights, for windows of so many snapshots."""
    settings = network.settings
    if not is_supported(settings):
        raise InputError(
            f"sampler={settings.sampler}, encoder={settings.encoder} is not compiled; expected "
            "learned, random, temporal, spatial or full, with gin"
        )
    nodes, readout, width = network.nodes, network.readout, settings.width
    parts = (nodes.of_snapshot, nodes.of_task, nodes.of_time)
    of_features = np.concatenate([to_numpy(part.weight) for part in parts], axis=1)
    of_age = to_numpy(nodes.of_age.weight).T
    ages = positions(used_window(settings, window), nodes.of_age.weight).detach().numpy()
    by_age, by_restart = ages @ of_age[:POSITIONS], of_age[POSITIONS:]
    anchor = np.zeros((1, width), np.float32)
    if network.anchor is not None:
        anchor[0] = to_numpy(network.anchor)
    scores = row_weights(np.zeros((SCORES, width), np.float32))
    if network.score_heads is not None:
        scores = row_weights_of(network.score_heads.heads)
    layers = cast(GraphLayers, network.encoder).layers
    maps = [row_weights_of(part) for layer in layers for part in cast(Any, layer)[::2]]
    first = maps[0][:-1]
    change, gate = (
        tuple(row_weights_of(layer) for layer in head if isinstance(layer, nn.Linear))
        for head in (network.change, network.gate)
    )
    return Weights(
        features=row_weights(of_features, to_numpy(nodes.of_snapshot.bias)),
        norm=_norm_of(nodes.norm),
        scores=scores,
        first=np.concatenate([first, np.zeros_like(first[:1])]),
        first_bias=_node_rows(maps[0][-1:])[0],
        by_age=_node_rows(by_age @ first),
        by_restart=_node_rows(by_restart @ first),
        anchor=_node_rows(anchor @ first)[0],
        score_by_age=_score_rows(by_age, scores),
        score_by_restart=_score_rows(by_restart, scores),
        graph=np.stack(maps[1:]),
        readout_norm=_norm_of(readout.norm),
        feed_forward=row_weights_of(readout.feed_forward[0]),
        joined=_joined(readout.feed_forward[2], readout.shortcut),
        change=cast(tuple[Array32, Array32, Array32], change),
        gate=cast(tuple[Array32, Array32], gate),
        log_std=np.float32(network.log_std.item()),
        gate_bound=np.float32(settings.gate_bound),
        change_bound=np.float32(settings.change_bound),
        temperature=np.float32(settings.temperature),
        whole=not settings.draws,
        scored=settings.scored,
        by_job=settings.actions == "job",
    )


def _drawn(settings: SureSettings) -> tuple[int, int]:
    """k1 and k2; 0 if nothing is drawn."""
    return (settings.drawn_snapshots, settings.drawn_neighbours) if settings.draws else (0, 0)


def used_window(settings: SureSettings, window: int) -> int:
    """Snapshots that a decision depends on."""
    return 1 if settings.sampler == "spatial" else window


def _norm_of(norm: nn.LayerNorm) -> Array32:
    return np.stack([to_numpy(norm.weight), to_numpy(norm.bias)])


def _node_rows(rows: Array32) -> Array32:
    """With as many columns as tables of nodes: sums over them are whole SIMD blocks."""
    known = rows.shape[1]
    return np.pad(rows, ((0, 0), (0, round_up(known, COLUMNS) - known)))


def _score_rows(parts: Array32, scores: Array32) -> Array32:
    """(SCORES, rows) of parts (rows, W) of the context."""
    return np.ascontiguousarray((parts @ scores[:-1, :SCORES]).T)


def _joined(second: nn.Module, shortcut: nn.Linear) -> Array32:
    """One layer of the hidden numbers, padded to whole registers, and of the shortcut's inputs."""
    assert isinstance(second, nn.Linear)
    size = shortcut.in_features
    start = round_up(size, VECTOR)
    matrix = np.zeros((size, start + size), np.float32)
    matrix[:, :size], matrix[:, start:] = to_numpy(second.weight), to_numpy(shortcut.weight)
    return row_weights(matrix, to_numpy(second.bias) + to_numpy(shortcut.bias))


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
    nodes, rows = round_up(group * together, OUTPUTS), round_up(tasks, OUTPUTS)
    most = max(k1, k2)

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
        best=ints(most),
        best_key=np.zeros(most, np.float64),
        snapshot=ints(tasks, k1),
        neighbour=ints(tasks, k1, k2),
        snapshot_score=floats(tasks, k1),
        neighbour_score=floats(tasks, k1, k2),
        nodes=floats(3, nodes, columns),
        whole=floats(2, 0 if settings.draws else window * tasks, columns),
        node_task=ints(nodes),
        linked=ints(nodes, 2 + (k2 if settings.draws else job.linked.shape[1])),
        count=ints(nodes),
        members=ints(tasks, together if settings.draws else window),
        sizes=ints(tasks),
        zeros=floats(columns),
        pooled=floats(rows, size + VECTOR),
        joined=floats(rows, len(weights.joined) - 1),
        embedding=floats(rows, weights.joined.shape[1]),
        job=floats(OUTPUTS, len(weights.gate[0]) - 1),
        head_1=floats(rows, max(weights.change[0].shape[1], weights.gate[0].shape[1])),
        head_2=floats(rows, weights.change[1].shape[1]),
        head_3=floats(rows, weights.change[2].shape[1]),
    )
