"""The ordering agent of ordering.py as compiled code, for one moment at a time."""

from __future__ import annotations

import numpy as np

from loadmaster.envs.compiled import inner, part
from loadmaster.envs.gpu_scheduling.features import JOB_FEATURES, MACHINE_FEATURES
from loadmaster.envs.gpu_scheduling.observation import Observation
from loadmaster.models import lanes
from loadmaster.models.das.normal import LEAST_LOG_STD, MOST_LOG_STD
from loadmaster.models.das.ordering_tables import GateWeights, OrderingRoom, OrderingWeights
from loadmaster.models.lanes import dense
from loadmaster.models.layers import (
    RELU,
    STRAIGHT,
    Table,
    answer,
    normalise,
    sigmoid,
    soften,
    table,
)

_ZERO, _ONE = np.float32(0), np.float32(1)
_LEAST, _MOST = np.float32(LEAST_LOG_STD), np.float32(MOST_LOG_STD)


@part
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


@inner
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


@part
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


@inner
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


@part
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


@inner
def _add(known: Table, more: Table, rows: int) -> None:
    for row in range(rows):
        own, new = known[row], more[row]
        for column in range(known.shape[1]):
            own[column] += new[column]
