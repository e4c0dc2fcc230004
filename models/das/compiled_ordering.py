"""The ordering agent of ordering.py as compiled code, for one observation at a time."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from loadmaster.envs.compiled import njit_inline, njit_internal
from loadmaster.envs.gpu_scheduling.features import JOB_FEATURES, MACHINE_FEATURES
from loadmaster.envs.gpu_scheduling.observation import Observation
from loadmaster.models import layers as ops
from loadmaster.models.das.heuristic_init import MAX_LOG_STD, MIN_LOG_STD
from loadmaster.models.das.ordering import AttentionLayer, Gate, OrderingAgent, encode_position
from loadmaster.models.das.settings import DasSettings
from loadmaster.models.elementary import sigmoid
from loadmaster.models.layers import LINEAR, RELU, Array32, Dense, as_matrix, dense_of, to_numpy
from loadmaster.models.simd import COLUMNS, OUTPUTS
from loadmaster.models.simd_dense import dense

_ZERO, _ONE = np.float32(0), np.float32(1)
_MIN, _MAX = np.float32(MIN_LOG_STD), np.float32(MAX_LOG_STD)


class GateWeights(NamedTuple):
    """Weights of ordering.Gate; empty where there is no gate."""

    hidden: Dense  # (MACHINE_FEATURES, D) transposed
    message: Dense  # (D, D) transposed
    gate_message: Dense  # (D, D) transposed, columns of the gate for the message, and its bias
    gate_job: Array32  # (D, D) columns of the gate for the job


class OrderingWeights(NamedTuple):
    """Width D, L layers."""

    straight: Array32  # (JOB_FEATURES,)
    embed: Dense  # (D, JOB_FEATURES)
    gate: GateWeights
    norms: Array32  # (2 L + 1, 2, D) scale and shift
    qkv: Dense  # (L, 3 D, D) with queries already divided by the root of their length
    attend_out: Dense  # (L, D, D)
    expand: Dense  # (L, 2 D, D)
    contract: Dense  # (L, D, 2 D)
    head: Dense  # (2, D) mean and log std
    is_linear: bool  # the head's weights are 0: only the linear skip path counts


class OrderingWorkspace(NamedTuple):
    """Scratch memory and results for up to C jobs. Matrices are cut from flat arrays as needed."""

    inputs: Array32  # (JOB_FEATURES * C,)
    x: Array32  # (D * C,)
    y: Array32  # (D * C,)
    wide: Array32  # (3 D * C,)
    scores: Array32  # (C * C,)
    keys: Array32  # (heads, C * D / heads)
    sums: Array32  # (2 C,)
    pooled: Array32  # (4, D or MACHINE_FEATURES)
    positions: Array32  # (D, C) position encoding
    zeros: Array32  # (C + D,)
    mean: Array32  # (C,) result
    log_std: Array32  # (C,) result


def ordering_weights(agent: OrderingAgent) -> OrderingWeights:
    layers = [layer for layer in agent.layers if isinstance(layer, AttentionLayer)]
    norms = [norm for layer in layers for norm in (layer.before_look, layer.before_think)]

    def stack(linears: Iterable[nn.Module]) -> Dense:
        return Dense(*map(np.array, zip(*map(dense_of, linears), strict=True)))

    qkv, width = stack(layer.look for layer in layers), agent.embed.out_features
    for queries in (qkv.matrix[:, :width], qkv.bias[:, :width]):
        queries *= (width / layers[0].heads) ** -0.5
    return OrderingWeights(
        straight=to_numpy(agent.straight.weight[0]),
        embed=dense_of(agent.embed),
        gate=_gate_weights(agent.gate, width),
        norms=np.array([[to_numpy(n.weight), to_numpy(n.bias)] for n in (*norms, agent.finish)]),
        qkv=qkv,
        attend_out=stack(layer.join for layer in layers),
        expand=stack(layer.think[0] for layer in layers),
        contract=stack(layer.think[2] for layer in layers),
        head=dense_of(agent.rank),
        is_linear=not agent.rank.weight.any(),
    )


def _gate_weights(gate: Gate | None, width: int) -> GateWeights:
    if gate is None:
        none = Dense(np.zeros((0, width), np.float32), np.zeros(0, np.float32))
        return GateWeights(none, none, none, none.matrix)
    return GateWeights(
        hidden=ops.transposed(gate.tell[0]),
        message=ops.transposed(gate.tell[2]),
        gate_message=Dense(to_numpy(gate.open.weight[:, width:].T), to_numpy(gate.open.bias)),
        gate_job=ops.pad_outputs(gate.open.weight[:, :width]),
    )


def ordering_workspace(settings: DasSettings, queue: int) -> OrderingWorkspace:
    columns = ops.round_up(queue, COLUMNS)
    width, spare = settings.width, 2 * OUTPUTS  # a head may end within a block

    def flat(rows: int) -> Array32:
        return np.zeros((rows + spare) * columns, np.float32)

    return OrderingWorkspace(
        inputs=flat(JOB_FEATURES),
        x=flat(width),
        y=flat(width),
        wide=flat(3 * width),
        scores=flat(columns),
        keys=np.zeros((settings.heads, columns * (width // settings.heads)), np.float32),
        sums=flat(2),
        pooled=np.zeros((4, max(width, MACHINE_FEATURES) + spare), np.float32),
        positions=to_numpy(encode_position(torch.arange(columns), width).T),
        zeros=np.zeros(columns + width + spare, np.float32),
        mean=np.zeros(columns, np.float32),
        log_std=np.zeros(columns, np.float32),
    )


@njit_inline
def order_jobs(
    view: Observation, count: int, weights: OrderingWeights, work: OrderingWorkspace
) -> None:
    """Write mean and log std of the priorities of the first `count` rows, which hold the jobs."""
    columns = (count + COLUMNS - 1) // COLUMNS * COLUMNS
    inputs = as_matrix(work.inputs, JOB_FEATURES, columns)
    for feature in range(JOB_FEATURES):
        for row in range(count):
            inputs[feature, row] = view.jobs[row, feature]
        for row in range(count, columns):
            inputs[feature, row] = _ZERO
    if weights.is_linear:
        for column in range(columns):
            work.mean[column] = weights.head.bias[0]
            work.log_std[column] = min(max(weights.head.bias[1], _MIN), _MAX)
    else:
        _transformer(view, count, columns, weights, work, inputs)
    for feature in range(JOB_FEATURES):
        straight = weights.straight[feature]
        for column in range(columns):
            work.mean[column] += straight * inputs[feature, column]


@njit_internal
def _transformer(
    view: Observation,
    count: int,
    columns: int,
    weights: OrderingWeights,
    work: OrderingWorkspace,
    inputs: Array32,
) -> None:
    """The layers of `OrderingAgent`, without its linear skip path."""
    width, layers = weights.norms.shape[2], len(weights.qkv.matrix)
    # Heads and layers may end within a block, whose rest is written too.
    x = as_matrix(work.x, width + OUTPUTS, columns)
    y = as_matrix(work.y, width + OUTPUTS, columns)
    wide = as_matrix(work.wide, 3 * width + OUTPUTS, columns)
    embed, head = weights.embed, weights.head
    dense(embed.matrix, embed.bias, LINEAR, inputs, x, JOB_FEATURES, width, columns)
    if len(weights.gate.gate_job) > 0:
        _communicate(view, weights.gate, work.pooled, x, y, width)
    _add(x, work.positions, width)
    sums = as_matrix(work.sums, 2, columns)
    for layer in range(layers):  # ordering.AttentionLayer
        first, second = weights.norms[2 * layer], weights.norms[2 * layer + 1]
        ops.layer_norm(x, first[0], first[1], sums, y)
        matrix, bias = weights.qkv.matrix[layer], weights.qkv.bias[layer]
        dense(matrix, bias, LINEAR, y, wide, width, 3 * width, columns)
        _attention(count, work, wide, y, sums, width)
        matrix, bias = weights.attend_out.matrix[layer], weights.attend_out.bias[layer]
        dense(matrix, bias, LINEAR, y, wide, width, width, columns)
        _add(x, wide, width)
        ops.layer_norm(x, second[0], second[1], sums, y)
        matrix, bias = weights.expand.matrix[layer], weights.expand.bias[layer]
        dense(matrix, bias, RELU, y, wide, width, 2 * width, columns)
        matrix, bias = weights.contract.matrix[layer], weights.contract.bias[layer]
        dense(matrix, bias, LINEAR, wide, y, 2 * width, width, columns)
        _add(x, y, width)
    finish = weights.norms[2 * layers]
    ops.layer_norm(x, finish[0], finish[1], sums, y)
    dense(head.matrix, head.bias, LINEAR, y, wide, width, 2, columns)
    for column in range(columns):
        work.mean[column] = wide[0, column]
        work.log_std[column] = min(max(wide[1, column], _MIN), _MAX)


@njit_inline
def _communicate(
    view: Observation, gate: GateWeights, pooled: Array32, x: Array32, y: Array32, width: int
) -> None:
    """ordering.Gate, on the jobs in `x`."""
    mean, hidden, message, bias = pooled[0], pooled[1], pooled[2], pooled[3]
    mean[:MACHINE_FEATURES] = _ZERO
    for machine in range(len(view.machines)):
        for feature in range(MACHINE_FEATURES):
            mean[feature] += view.machines[machine, feature]
    for feature in range(MACHINE_FEATURES):
        mean[feature] /= np.float32(len(view.machines))
    ops.dense_vector(gate.hidden, mean, RELU, hidden)
    ops.dense_vector(gate.message, hidden, LINEAR, message)
    ops.dense_vector(gate.gate_message, message, LINEAR, bias)
    dense(gate.gate_job, bias, LINEAR, x, y, width, width, x.shape[1])
    for row in range(width):
        own, gates, value = x[row], y[row], message[row]
        for column in range(x.shape[1]):
            share = sigmoid(gates[column])
            own[column] = share * value + (_ONE - share) * own[column]


@njit_inline
def _attention(
    count: int, work: OrderingWorkspace, qkv: Array32, out: Array32, sums: Array32, width: int
) -> None:
    """V softmax(K' Q) of each head, with one column per query."""
    columns, heads = qkv.shape[1], len(work.keys)
    own = width // heads
    scores = as_matrix(work.scores, columns, columns)
    for head in range(heads):
        first = head * own
        keys = as_matrix(work.keys[head], columns, own)
        for place in range(own):
            for row in range(count):
                keys[row, place] = qkv[width + first + place, row]
        dense(keys, work.zeros, LINEAR, qkv[first:], scores, own, count, columns)
        ops.softmax_terms(scores, count, sums)
        values, result = qkv[2 * width + first :], out[first:]
        dense(values, work.zeros, LINEAR, scores, result, count, own, columns)
        for place in range(own):
            for column in range(columns):
                result[place, column] /= sums[1, column]


@njit_internal
def _add(x: Array32, more: Array32, rows: int) -> None:
    for row in range(rows):
        own, new = x[row], more[row]
        for column in range(x.shape[1]):
            own[column] += new[column]
