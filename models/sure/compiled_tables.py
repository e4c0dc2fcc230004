"""Tables of SURE's compiled forward pass: weights, a job, kept features, decisions and scratch.

Nodes and tasks are rows, of features side by side: sums over neighbours add whole rows. Rows are
padded to whole SIMD blocks, and behind the features of a row stands a 1 for the bias of the next
layer (see `layers.row_weights`).
"""

from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from torch import nn

from loadmaster.envs.compiled import Ints
from loadmaster.envs.errors import InputError
from loadmaster.models.layers import Array32, round_up, row_weights, row_weights_of, to_numpy
from loadmaster.models.simd_dense import COLUMNS, OUTPUTS
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
    by_age: Array32  # (L, W) part of the context
    by_restart: Array32  # (RESTART_COLUMNS, W)
    anchor: Array32  # (W,)
    graph: Array32  # (layers, 2, W + 1, columns)
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
    adjacent: NDArray[np.bool_]  # (N, N)
    edges: Ints  # (2, M) from, to: every edge in both directions


class KeptFeatures(NamedTuple):
    """Features of the last L snapshots of E episodes, computed when a snapshot arrives: rings."""

    x: Array32  # (E, L, N, columns)
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

    zeros: Array32  # (rows,)
    inputs: Array32  # (N, features + 1)
    summed: Array32  # (N, columns)
    normed: Array32  # (N, columns)
    score_part: Array32  # (N, columns)
    slot: Ints  # (L,) place in the ring by age, or NONE
    context: Array32  # (L, columns) by age
    score_rows: Array32  # (L, columns) by age
    score_context: Array32  # (SCORES, L) the same
    task_key: NDArray[np.uint64]  # (N,)
    pair_key: NDArray[np.uint64]  # (K,)
    theta: Array32  # (N, L) scores by age
    phi: Array32  # (N, L) the same, of neighbours; nan: not computed
    options: Array32  # (2, max(L, K)) scores and weights
    best: Ints  # (max(k1, k2),)
    best_key: NDArray[np.float64]  # (max(k1, k2),)
    best_score: Array32  # (max(k1, k2),)
    snapshot: Ints  # (N, k1) ages
    neighbour: Ints  # (N, k1, k2)
    snapshot_score: Array32  # (N, k1)
    neighbour_score: Array32  # (N, k1, k2)
    nodes: Array32  # (3, nodes, columns)
    whole: Array32  # (2, L * N, columns) all nodes before and after a layer, if they are encoded
    node_task: Ints  # (nodes,)
    owner: Ints  # (nodes,)
    edges: Ints  # (edges, 2) from, to
    pooled: Array32  # (N, D)
    joined: Array32  # (N, hidden columns + D + 1)
    embedding: Array32  # (N, columns)
    job: Array32  # (rows, 2 D + 1)
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
    nodes, readout, anchor = network.nodes, network.readout, network.anchor
    parts = (nodes.of_snapshot, nodes.of_task, nodes.of_time)
    of_features = np.concatenate([to_numpy(part.weight) for part in parts], axis=1)
    of_age = to_numpy(nodes.of_age.weight)
    ages = positions(used_window(settings, window), nodes.of_age.weight).detach().numpy()
    heads = network.score_heads
    nothing = row_weights(np.zeros((SCORES, settings.width), np.float32))
    layers = cast(GraphLayers, network.encoder).layers
    change, gate = (
        tuple(row_weights_of(layer) for layer in head if isinstance(layer, nn.Linear))
        for head in (network.change, network.gate)
    )
    return Weights(
        features=row_weights(of_features, to_numpy(nodes.of_snapshot.bias)),
        norm=_norm_of(nodes.norm),
        scores=nothing if heads is None else row_weights_of(heads.heads),
        by_age=np.ascontiguousarray(ages @ of_age[:, :POSITIONS].T),
        by_restart=np.ascontiguousarray(of_age[:, POSITIONS:].T),
        anchor=np.zeros(settings.width, np.float32) if anchor is None else to_numpy(anchor),
        graph=np.stack(
            [[row_weights_of(cast(Any, layer)[place]) for place in (0, 2)] for layer in layers]
        ),
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


def _joined(second: nn.Module, shortcut: nn.Linear) -> Array32:
    """One layer of the hidden numbers, padded to whole blocks, and of the shortcut's inputs."""
    assert isinstance(second, nn.Linear)
    size = shortcut.in_features
    start = round_up(size + 1, COLUMNS)
    matrix = np.zeros((size, start + size), np.float32)
    matrix[:, :size], matrix[:, start:] = to_numpy(second.weight), to_numpy(shortcut.weight)
    return row_weights(matrix, to_numpy(second.bias) + to_numpy(shortcut.bias))


def compiled_job(tasks: NDArray[Any], edges: NDArray[Any], hops: int) -> CompiledJob:
    """Of the observation's `tasks` (N, TASK_COLUMNS) and `edges` (2, M)."""
    graph = job_graph(edges, len(tasks), hops)
    adjacent = np.zeros((len(tasks), len(tasks)), np.bool_)
    adjacent[graph.edges[0], graph.edges[1]] = True
    return CompiledJob(
        np.ascontiguousarray(tasks, np.float32),
        np.ascontiguousarray(graph.candidates),
        adjacent,
        np.ascontiguousarray(graph.edges),
    )


def empty_features(weights: Weights, episodes: int, tasks: int) -> KeptFeatures:
    window, columns = len(weights.by_age), weights.features.shape[1]
    return KeptFeatures(
        x=np.zeros((episodes, window, tasks, columns), np.float32),
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
    size, columns = settings.layers * settings.width, weights.features.shape[1]
    # Nodes of a task's subgraph, or of a snapshot, stay together.
    together = k1 * (1 + k2) if settings.draws else tasks
    group = max(NODES // together, 1)
    nodes, rows = round_up(group * together, OUTPUTS), round_up(tasks, OUTPUTS)
    ages, most = round_up(window, OUTPUTS), max(k1, k2)

    def floats(*shape: int) -> Array32:
        return np.zeros(shape, np.float32)

    def ints(*shape: int) -> Ints:
        return np.zeros(shape, np.int64)

    return Workspace(
        zeros=floats(max(nodes, rows, ages)),
        inputs=floats(rows, len(weights.features)),
        summed=floats(rows, columns),
        normed=floats(rows, columns),
        score_part=floats(rows, weights.scores.shape[1]),
        slot=ints(window),
        context=floats(ages, columns),
        score_rows=floats(ages, weights.scores.shape[1]),
        score_context=floats(SCORES, window),
        task_key=np.zeros(tasks, np.uint64),
        pair_key=np.zeros(near, np.uint64),
        theta=floats(tasks, window),
        phi=floats(tasks, window),
        options=floats(2, max(window, near)),
        best=ints(most),
        best_key=np.zeros(most, np.float64),
        best_score=floats(most),
        snapshot=ints(tasks, k1),
        neighbour=ints(tasks, k1, k2),
        snapshot_score=floats(tasks, k1),
        neighbour_score=floats(tasks, k1, k2),
        nodes=floats(3, nodes, columns),
        whole=floats(2, 0 if settings.draws else window * tasks, columns),
        node_task=ints(nodes),
        owner=ints(nodes),
        edges=ints(group * k1 * (k2 * (k2 + 1) + 1), 2),
        pooled=floats(rows, size),
        joined=floats(rows, len(weights.joined)),
        embedding=floats(rows, weights.joined.shape[1]),
        job=floats(OUTPUTS, len(weights.gate[0])),
        head_1=floats(rows, max(weights.change[0].shape[1], weights.gate[0].shape[1])),
        head_2=floats(rows, weights.change[1].shape[1]),
        head_3=floats(rows, weights.change[2].shape[1]),
    )
