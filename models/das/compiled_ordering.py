"""The ordering agent of ordering.py as compiled code, for one moment at a time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from loadmaster.envs.compiled import njit_inline, njit_internal
from loadmaster.envs.gpu_scheduling.features import JOB_FEATURES, MACHINE_FEATURES
from loadmaster.envs.gpu_scheduling.observation import Observation
from loadmaster.models import simd_dense as lanes
from loadmaster.models.das.heuristic_init import LEAST_LOG_STD, MOST_LOG_STD
from loadmaster.models.das.ordering import AttentionLayer, Gate, OrderingAgent, encode_place
from loadmaster.models.das.settings import DasSettings
from loadmaster.models.layers import (
    RELU,
    STRAIGHT,
    Table,
    answer,
    blocks,
    normalise,
    numbers,
    sigmoid,
    soften,
    table,
    whole_blocks,
)
from loadmaster.models.simd_dense import dense

# What the compiled ordering agent reads and writes: its weights, and room to work in.


class GateWeights(NamedTuple):
    """Matrices have a row for each input, but for the last. No gate: tables without rows."""

    tell: Table  # (MACHINE_FEATURES, D)
    tell_bias: Table  # (D,)
    told: Table  # (D, D)
    told_bias: Table  # (D,)
    open_told: Table  # (D, D) the part that hears of the cluster
    open_bias: Table  # (D,)
    open_own: Table  # (D, D) the part that hears of the job


class OrderingWeights(NamedTuple):
    """D numbers describe a job, in L layers. Outputs come first, up to whole blocks of them."""

    straight: Table  # (JOB_FEATURES,)
    embed: Table  # (D, JOB_FEATURES)
    embed_bias: Table  # (D,)
    gate: GateWeights
    norms: Table  # (2 L + 1, 2, D) scale and shift
    look: Table  # (L, 3 D, D) of which queries come out scaled
    look_bias: Table  # (L, 3 D)
    join: Table  # (L, D, D)
    join_bias: Table  # (L, D)
    think: Table  # (L, 2 D, D)
    think_bias: Table  # (L, 2 D)
    thought: Table  # (L, D, 2 D)
    thought_bias: Table  # (L, D)
    rank: Table  # (2, D)
    rank_bias: Table  # (2,)
    silent: bool  # the layers have no say yet: the straight path is all there is


class OrderingRoom(NamedTuple):
    """Room for one moment with up to C jobs; tables are cut from rows of numbers as needed."""

    inputs: Table  # (JOB_FEATURES * C,)
    known: Table  # (D * C,)
    other: Table  # (D * C,)
    wide: Table  # (3 D * C,)
    scores: Table  # (C * C,)
    keys: Table  # (heads, C * D / heads)
    sums: Table  # (2 C,)
    cluster: Table  # (4, D or MACHINE_FEATURES)
    waves: Table  # (D, C) the encoding of each place
    nothing: Table  # (C + D,) zeros
    mean: Table  # (C,) what comes out
    log_std: Table  # (C,)


def ordering_weights(agent: OrderingAgent) -> OrderingWeights:
    layers = [one for one in agent.layers if isinstance(one, AttentionLayer)]
    norms = [norm for one in layers for norm in (one.before_look, one.before_think)]
    return OrderingWeights(
        straight=numbers(agent.straight.weight[0]),
        embed=blocks(agent.embed.weight),
        embed_bias=blocks(agent.embed.bias),
        gate=_gate_weights(agent.gate, agent.embed.out_features),
        norms=np.array(
            [[numbers(one.weight), numbers(one.bias)] for one in (*norms, agent.finish)]
        ),
        look=np.array([blocks(_scaled(one.look.weight, one.heads)) for one in layers]),
        look_bias=np.array([blocks(_scaled(one.look.bias, one.heads)) for one in layers]),
        join=np.array([blocks(one.join.weight) for one in layers]),
        join_bias=np.array([blocks(one.join.bias) for one in layers]),
        think=np.array([blocks(_linear(one.think[0]).weight) for one in layers]),
        think_bias=np.array([blocks(_linear(one.think[0]).bias) for one in layers]),
        thought=np.array([blocks(_linear(one.think[2]).weight) for one in layers]),
        thought_bias=np.array([blocks(_linear(one.think[2]).bias) for one in layers]),
        rank=blocks(agent.rank.weight),
        rank_bias=blocks(agent.rank.bias),
        silent=not agent.rank.weight.any(),
    )


def _gate_weights(gate: Gate | None, width: int) -> GateWeights:
    if gate is None:
        none, nothing = np.zeros((0, width), np.float32), np.zeros(0, np.float32)
        return GateWeights(none, nothing, none, nothing, none, nothing, none)
    return GateWeights(
        tell=numbers(_linear(gate.tell[0]).weight.T),
        tell_bias=numbers(_linear(gate.tell[0]).bias),
        told=numbers(_linear(gate.tell[2]).weight.T),
        told_bias=numbers(_linear(gate.tell[2]).bias),
        open_told=numbers(gate.open.weight[:, width:].T),
        open_bias=numbers(gate.open.bias),
        open_own=blocks(gate.open.weight[:, :width]),
    )


def _scaled(look: Tensor, heads: int) -> Tensor:
    """Queries divided by the root of their length, once and for all."""
    width = len(look) // 3
    scaled = look.detach().clone()
    scaled[:width] *= (width / heads) ** -0.5
    return scaled


def ordering_room(settings: DasSettings, queue: int) -> OrderingRoom:
    columns = whole_blocks(queue, lanes.COLUMNS)
    width, spare = settings.width, 2 * lanes.OUTPUTS  # a head may end within a block

    def flat(rows: int) -> Table:
        return np.zeros((rows + spare) * columns, np.float32)

    return OrderingRoom(
        inputs=flat(JOB_FEATURES),
        known=flat(width),
        other=flat(width),
        wide=flat(3 * width),
        scores=flat(columns),
        keys=np.zeros((settings.heads, columns * (width // settings.heads)), np.float32),
        sums=flat(2),
        cluster=np.zeros((4, max(width, MACHINE_FEATURES) + spare), np.float32),
        waves=numbers(encode_place(torch.arange(columns), width).T),
        nothing=np.zeros(columns + width + spare, np.float32),
        mean=np.zeros(columns, np.float32),
        log_std=np.zeros(columns, np.float32),
    )


def _linear(layer: nn.Module) -> nn.Linear:
    assert isinstance(layer, nn.Linear)
    return layer


_ZERO, _ONE = np.float32(0), np.float32(1)
_LEAST, _MOST = np.float32(LEAST_LOG_STD), np.float32(MOST_LOG_STD)


@njit_inline
def order_jobs(view: Observation, count: int, weights: OrderingWeights, room: OrderingRoom) -> None:
    """Mean and log std of the priorities of the first `count` rows, which are the jobs."""
    columns = (count + lanes.COLUMNS - 1) // lanes.COLUMNS * lanes.COLUMNS
    inputs = table(room.inputs, JOB_FEATURES, columns)
    for feature in range(JOB_FEATURES):
        for row in range(count):
            inputs[feature, row] = view.jobs[row, feature]
        for row in range(count, columns):
            inputs[feature, row] = _ZERO
    if weights.silent:
        for column in range(columns):
            room.mean[column] = weights.rank_bias[0]
            room.log_std[column] = min(max(weights.rank_bias[1], _LEAST), _MOST)
    else:
        _think(view, count, columns, weights, room, inputs)
    for feature in range(JOB_FEATURES):
        straight = weights.straight[feature]
        for column in range(columns):
            room.mean[column] += straight * inputs[feature, column]


@njit_internal
def _think(
    view: Observation,
    count: int,
    columns: int,
    weights: OrderingWeights,
    room: OrderingRoom,
    inputs: Table,
) -> None:
    """What the layers say."""
    width, layers = weights.norms.shape[2], len(weights.look)
    # A head or a layer may end within a block, whose rest is written too.
    known = table(room.known, width + lanes.OUTPUTS, columns)
    other = table(room.other, width + lanes.OUTPUTS, columns)
    wide = table(room.wide, 3 * width + lanes.OUTPUTS, columns)
    dense(weights.embed, weights.embed_bias, STRAIGHT, inputs, known, JOB_FEATURES, width, columns)
    if len(weights.gate.tell) > 0:
        _hear_of_machines(view, weights.gate, room.cluster, known, other, width)
    for row in range(width):
        for column in range(columns):
            known[row, column] += room.waves[row, column]
    for layer in range(layers):
        _attend(layer, count, weights, room, known, other, wide, width)
    finish = weights.norms[2 * layers]
    normalise(known, finish[0], finish[1], table(room.sums, 2, columns), other)
    dense(weights.rank, weights.rank_bias, STRAIGHT, other, wide, width, 2, columns)
    for column in range(columns):
        room.mean[column] = wide[0, column]
        room.log_std[column] = min(max(wide[1, column], _LEAST), _MOST)


@njit_inline
def _hear_of_machines(
    view: Observation, gate: GateWeights, cluster: Table, known: Table, other: Table, width: int
) -> None:
    """Squeeze and communicate: see ordering.Gate."""
    squeezed, hidden, told, bias = cluster[0], cluster[1], cluster[2], cluster[3]
    squeezed[:MACHINE_FEATURES] = _ZERO
    for machine in range(len(view.machines)):
        for feature in range(MACHINE_FEATURES):
            squeezed[feature] += view.machines[machine, feature]
    for feature in range(MACHINE_FEATURES):
        squeezed[feature] /= np.float32(len(view.machines))
    answer(gate.tell, gate.tell_bias, squeezed, RELU, hidden)
    answer(gate.told, gate.told_bias, hidden, STRAIGHT, told)
    answer(gate.open_told, gate.open_bias, told, STRAIGHT, bias)
    dense(gate.open_own, bias, STRAIGHT, known, other, width, width, known.shape[1])
    for row in range(width):
        own, opened, heard = known[row], other[row], told[row]
        for column in range(known.shape[1]):
            share = sigmoid(opened[column])
            own[column] = share * heard + (_ONE - share) * own[column]


@njit_internal
def _attend(
    layer: int,
    count: int,
    weights: OrderingWeights,
    room: OrderingRoom,
    known: Table,
    other: Table,
    wide: Table,
    width: int,
) -> None:
    """ordering.AttentionLayer, on the jobs in `known`."""
    columns, sums = known.shape[1], table(room.sums, 2, known.shape[1])
    look, think = weights.norms[2 * layer], weights.norms[2 * layer + 1]
    normalise(known, look[0], look[1], sums, other)
    matrix, bias = weights.look[layer], weights.look_bias[layer]
    dense(matrix, bias, STRAIGHT, other, wide, width, 3 * width, columns)
    _look(count, room, wide, other, sums, width)
    matrix, bias = weights.join[layer], weights.join_bias[layer]
    dense(matrix, bias, STRAIGHT, other, wide, width, width, columns)
    _add(known, wide, width)
    normalise(known, think[0], think[1], sums, other)
    matrix, bias = weights.think[layer], weights.think_bias[layer]
    dense(matrix, bias, RELU, other, wide, width, 2 * width, columns)
    matrix, bias = weights.thought[layer], weights.thought_bias[layer]
    dense(matrix, bias, STRAIGHT, wide, other, 2 * width, width, columns)
    _add(known, other, width)


@njit_inline
def _look(
    count: int, room: OrderingRoom, looked: Table, seen: Table, sums: Table, width: int
) -> None:
    """Each head: softmax(K' Q) weighs V, with a column for each job that looks."""
    columns, heads = looked.shape[1], len(room.keys)
    own = width // heads
    scores = table(room.scores, columns, columns)
    for head in range(heads):
        first = head * own
        keys = table(room.keys[head], columns, own)
        for place in range(own):
            for row in range(count):
                keys[row, place] = looked[width + first + place, row]
        dense(keys, room.nothing, STRAIGHT, looked[first:], scores, own, count, columns)
        soften(scores, count, sums)
        values, result = looked[2 * width + first :], seen[first:]
        dense(values, room.nothing, STRAIGHT, scores, result, count, own, columns)
        for place in range(own):
            for column in range(columns):
                result[place, column] /= sums[1, column]


@njit_internal
def _add(known: Table, more: Table, rows: int) -> None:
    for row in range(rows):
        own, new = known[row], more[row]
        for column in range(known.shape[1]):
            own[column] += new[column]
