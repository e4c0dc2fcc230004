"""Layers of a network in compiled code, for one decision at a time.

Arrays are float32 with one column per item (job or machine), padded to whole SIMD blocks so that
each layer is a few long loops that vectorise. Padding columns hold arbitrary values, which no other
column reads. `dense_rows` and `layer_norm_row` take items in rows.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from loadmaster.envs.compiled import njit_inline, njit_internal, njit_reduction
from loadmaster.models.elementary import exponential
from loadmaster.models.simd import OUTPUTS, VECTOR
from loadmaster.models.simd_dense import dense_items
from loadmaster.models.simd_sparse import relu_of_sparse

Array32 = NDArray[np.float32]

TOURNAMENT = 16  # keys of a block in `take_largest`
RELU, LINEAR = np.float32(0), np.float32(1)  # activations as slopes below 0

_ONE, _ZERO = np.float32(1), np.float32(0)
_EPSILON = np.float32(1e-5)  # of torch.nn.LayerNorm


def round_up(count: int, block: int) -> int:
    """The next multiple of `block`."""
    return block * -(-count // block)


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to one thread: on small matrices, threads wait longer than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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

    The last row is the bias. Columns are padded with 0 to whole registers.
    """
    outputs, inputs = matrix.shape
    found = np.zeros((inputs + 1, round_up(outputs, VECTOR)), np.float32)
    found[:inputs, :outputs] = matrix.T
    found[inputs, :outputs] = 0 if bias is None else bias
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
def dense_rows(weights: Array32, x: Array32, slope: np.float32, out: Array32, rows: int) -> None:
    """A layer of `row_weights` for items in rows, of which `x` and `out` have whole OUTPUTS.

    Rows suit sums over neighbours, which add whole rows. Padding columns of `out` become 0.
    """
    given, count = weights.shape[0] - 1, weights.shape[1]
    dense_items(x, weights[given], slope, weights, out, given, rows, count)


@njit_inline
def relu_rows(weights: Array32, x: Array32, out: Array32, rows: int) -> None:
    """As `dense_rows` with a ReLU, faster where many inputs are 0.

    `x` has as many columns as whole GROUPs of inputs (see simd_sparse.py).
    """
    given, count = weights.shape[0] - 1, weights.shape[1]
    relu_of_sparse(x, weights[given], weights, out, given, rows, count)


@njit_reduction
def layer_norm_row(x: Array32, scale: Array32, shift: Array32, out: Array32) -> None:
    """LayerNorm of the first len(scale) numbers of one row."""
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


@njit_internal
def take_largest(
    keys: NDArray[np.float64], count: int, tops: NDArray[np.float64], best: NDArray[np.int64]
) -> int:
    """Write the places of the largest of keys[:count], best first, and return how many these are.

    Keys of -inf are no options. Keys that were taken become -inf; of equal ones, the first wins.
    `tops` is scratch: the largest of every TOURNAMENT keys, so that an option costs the same
    whatever the order of the keys, unlike in `top_k`.
    """
    blocks = (count + TOURNAMENT - 1) // TOURNAMENT
    for block in range(blocks):
        tops[block] = _largest(keys, block, count)
    for rank in range(len(best)):
        winner, most = 0, -np.inf
        for block in range(blocks):
            if tops[block] > most:
                winner, most = block, tops[block]
        if most == -np.inf:
            return rank
        place = winner * TOURNAMENT
        while keys[place] != most:
            place += 1
        best[rank], keys[place] = place, -np.inf
        tops[winner] = _largest(keys, winner, count)
    return len(best)


@njit_internal
def _largest(keys: NDArray[np.float64], block: int, count: int) -> float:
    most = -np.inf
    for place in range(block * TOURNAMENT, min((block + 1) * TOURNAMENT, count)):
        most = max(most, keys[place])
    return most
