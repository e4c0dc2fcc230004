"""Layers of a network in compiled code, for one decision at a time.

Arrays are float32 with one column per item (job or machine), padded to whole SIMD blocks so that
each layer is a few long loops that vectorise. Padding columns hold arbitrary values, which no other
column reads. `dense_rows` and `layer_norm_row` take items in rows.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from loadmaster.envs.compiled import njit_inline, njit_internal, njit_reduction
from loadmaster.models.simd_dense import COLUMNS, OUTPUTS, dense

Array32 = NDArray[np.float32]

ROW_INPUTS = 4  # see LANES in simd_dense.py
RELU, LINEAR = np.float32(0), np.float32(1)  # activations as slopes below 0

_ONE, _TWO, _HALF, _ZERO = np.float32(1), np.float32(2), np.float32(0.5), np.float32(0)
_EPSILON = np.float32(1e-5)  # of torch.nn.LayerNorm
_LOG2_E = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693359375)  # few bits, so that multiples are exact
_LN2_LOW = np.float32(-2.12194440054690583e-4)
_MIN_EXP, _MAX_EXP = np.float32(-87), np.float32(88)  # arguments whose exponential is finite


def round_up(count: int, block: int) -> int:
    """The next multiple of `block`."""
    return block * -(-count // block)


def to_numpy(weights: Tensor) -> Array32:
    return np.array(weights.detach().cpu().numpy(), np.float32, order="C")


def pad_outputs(weights: Tensor) -> Array32:
    """A matrix (outputs, inputs) or bias (outputs,) with outputs padded to whole blocks by 0."""
    known = to_numpy(weights)
    whole = np.zeros((round_up(len(known), OUTPUTS), *known.shape[1:]), np.float32)
    whole[: len(known)] = known
    return whole


class Dense(NamedTuple):
    """Weights of `simd_dense.dense`: one layer, or a stack of layers."""

    matrix: Array32  # (..., outputs, inputs), outputs padded to whole blocks
    bias: Array32  # (..., outputs)


def dense_of(layer: nn.Module) -> Dense:
    assert isinstance(layer, nn.Linear)
    return Dense(pad_outputs(layer.weight), pad_outputs(layer.bias))


def transposed(layer: nn.Module) -> Dense:
    """For `dense_vector`: a matrix of one row per input, without padding."""
    assert isinstance(layer, nn.Linear)
    return Dense(to_numpy(layer.weight.T), to_numpy(layer.bias))


def row_weights(matrix: Array32, bias: Array32 | None = None) -> Array32:
    """(inputs + 1, columns) of a matrix (outputs, inputs), for `dense_rows`.

    The last row is the bias. Column `outputs` passes on the 1 behind a row's inputs to its outputs.
    Columns are padded with 0 to whole blocks, and rows to whole groups of ROW_INPUTS.
    """
    outputs, inputs = matrix.shape
    shape = round_up(inputs + 1, ROW_INPUTS), round_up(outputs + 1, COLUMNS)
    found = np.zeros(shape, np.float32)
    found[:inputs, :outputs] = matrix.T
    found[inputs, :outputs] = 0 if bias is None else bias
    found[inputs, outputs] = 1
    return found


def row_weights_of(layer: nn.Module) -> Array32:
    assert isinstance(layer, nn.Linear)
    bias = None if layer.bias is None else to_numpy(layer.bias)
    return row_weights(to_numpy(layer.weight), bias)


@njit_inline  # functions that are not inlined cannot return arrays
def as_matrix(flat: Array32, rows: int, columns: int) -> Array32:
    """The first rows * columns numbers as a matrix."""
    return flat[: rows * columns].reshape((rows, columns))


@njit_internal
def dense_vector(layer: Dense, x: Array32, slope: np.float32, out: Array32) -> None:
    """`simd_dense.dense` for one column, with a `transposed` layer."""
    outputs = layer.matrix.shape[1]
    for output in range(outputs):
        out[output] = layer.bias[output]
    for place in range(len(layer.matrix)):
        weights, value = layer.matrix[place], x[place]
        for output in range(outputs):
            out[output] += weights[output] * value
    for output in range(outputs):
        out[output] = max(out[output], slope * out[output])


@njit_inline
def dense_rows(
    weights: Array32, zeros: Array32, x: Array32, slope: np.float32, out: Array32, rows: int
) -> None:
    """A layer for items in rows, the 1 of `row_weights` behind the inputs of each.

    The first factor of `simd_dense.dense` are the items, whose rows are whole blocks of OUTPUTS;
    `zeros` has as many numbers. Numbers behind the 1 must be finite. Rows suit sums over
    neighbours, which add whole rows.
    """
    dense(x, zeros, slope, weights, out, weights.shape[0], rows, weights.shape[1])


@njit_reduction
def layer_norm_row(x: Array32, scale: Array32, shift: Array32, out: Array32) -> None:
    """LayerNorm of the first len(scale) numbers of one row, with a 1 behind them in `out`."""
    count = len(scale)
    mean = _ZERO
    for place in range(count):
        mean += x[place]
    mean /= np.float32(count)
    spread = _ZERO
    for place in range(count):
        apart = x[place] - mean
        spread += apart * apart
    factor = _ONE / np.sqrt(spread / np.float32(count) + _EPSILON)
    for place in range(count):
        out[place] = (x[place] - mean) * factor * scale[place] + shift[place]
    out[count] = _ONE


@njit_internal
def layer_norm(x: Array32, scale: Array32, shift: Array32, sums: Array32, out: Array32) -> None:
    """LayerNorm of each column over the first len(scale) rows; `sums` (2, columns) is scratch."""
    rows, columns = len(scale), x.shape[1]
    mean, spread = sums[0], sums[1]
    for column in range(columns):
        mean[column], spread[column] = _ZERO, _ZERO
    for row in range(rows):
        own = x[row]
        for column in range(columns):
            mean[column] += own[column]
    for column in range(columns):
        mean[column] /= np.float32(rows)
    for row in range(rows):
        own = x[row]
        for column in range(columns):
            apart = own[column] - mean[column]
            spread[column] += apart * apart
    for column in range(columns):
        spread[column] = _ONE / np.sqrt(spread[column] / np.float32(rows) + _EPSILON)
    for row in range(rows):
        own, result, factor, constant = x[row], out[row], scale[row], shift[row]
        for column in range(columns):
            result[column] = (own[column] - mean[column]) * spread[column] * factor + constant


@njit_internal
def softmax_terms(scores: Array32, rows: int, sums: Array32) -> None:
    """Softmax of each column over its first `rows`, without the division by sums[1]."""
    columns = scores.shape[1]
    most, whole = sums[0], sums[1]
    for column in range(columns):
        most[column], whole[column] = scores[0, column], _ZERO
    for row in range(1, rows):
        own = scores[row]
        for column in range(columns):
            most[column] = max(most[column], own[column])
    for row in range(rows):
        own = scores[row]
        for column in range(columns):
            own[column] = exponential(own[column] - most[column])
            whole[column] += own[column]


@njit_internal
def sigmoid(x: np.float32) -> np.float32:
    return _ONE / (_ONE + exponential(-x))


@njit_internal
def hyperbolic_tangent(x: np.float32) -> np.float32:
    """tanh to 1e-7, without a call to libm."""
    return _ONE - _TWO / (exponential(x + x) + _ONE)


@njit_internal
def exponential(x: np.float32) -> np.float32:
    """exp to two units in the last place, without a call to libm, so that loops vectorise."""
    x = min(max(x, _MIN_EXP), _MAX_EXP)
    whole = np.floor(x * _LOG2_E + _HALF)
    x = x - whole * _LN2_HIGH - whole * _LN2_LOW
    series = np.float32(1 / 5040)
    series = series * x + np.float32(1 / 720)
    series = series * x + np.float32(1 / 120)
    series = series * x + np.float32(1 / 24)
    series = series * x + np.float32(1 / 6)
    series = series * x + _HALF
    series = series * x + _ONE
    series = series * x + _ONE
    exponent = np.int32((np.int32(whole) + np.int32(127)) << np.int32(23))
    return series * exponent.view(np.float32)


@njit_internal
def top_k(
    option: int, score: float, best: NDArray[np.int64], scores: NDArray[Any], count: int
) -> int:
    """Insert an option into the best K and return how many are known; equals keep their order.

    The first `count` of `best` (K,) are options, best first, with their `scores` (K,).
    """
    place = count
    while place > 0 and score > scores[place - 1]:
        place -= 1
    if place == len(best):
        return count
    last = min(count, len(best) - 1)
    for later in range(last, place, -1):
        best[later], scores[later] = best[later - 1], scores[later - 1]
    best[place], scores[place] = option, score
    return last + 1
