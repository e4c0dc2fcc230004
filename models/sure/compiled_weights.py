"""Weights of SURE's compiled forward pass, in the order in which it reads them.

The first map of the first graph layer is linear, so it is applied before the sum over neighbours:
W1 (x_v + sum of x_w) = W1 x_v + sum of W1 x_w. W1 x of a snapshot is computed once, when it
arrives. What its age and the last restart add is linear, too, and computed with the weights.
"""

from typing import Any, NamedTuple, cast

import numpy as np
from torch import nn

from loadmaster.envs.errors import InputError
from loadmaster.models.layers import Array32, round_up, row_weights, row_weights_of, to_numpy
from loadmaster.models.simd import COLUMNS, VECTOR
from loadmaster.models.sure.encoders import POSITIONS, GraphLayers, positions
from loadmaster.models.sure.network import SureNetwork
from loadmaster.models.sure.settings import SureSettings

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


def is_supported(settings: SureSettings) -> bool:
    """Whether the compiled pass has this configuration; torch has all."""
    return settings.sampler != "none" and settings.encoder == "gin"


def used_window(settings: SureSettings, window: int) -> int:
    """Snapshots that a decision depends on."""
    return 1 if settings.sampler == "spatial" else window


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
