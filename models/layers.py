"""Small layers of a network in compiled code, for one decision at a time.

Tables are float32 and have a column for each thing that is described, as many columns as whole
blocks need: a layer then is a few long loops that vectorise. Columns beyond the things there are
hold anything, and no other column hears of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray
from torch import Tensor

from loadmaster.envs.compiled import njit_inline, njit_internal
from loadmaster.models import simd_dense as lanes

Table = NDArray[np.float32]

RELU, STRAIGHT = np.float32(0), np.float32(1)  # slopes below 0, of `dense` and `answer`

_ONE, _HALF, _ZERO = np.float32(1), np.float32(0.5), np.float32(0)
_EPSILON = np.float32(1e-5)  # torch's, of a LayerNorm
_LOG2_E = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693359375)  # few bits, so that a multiple of it is exact
_LN2_LOW = np.float32(-2.12194440054690583e-4)
_LEAST, _MOST = np.float32(-87), np.float32(88)  # what float32 can hold the exponential of


def whole_blocks(count: int, block: int) -> int:
    """`count`, rounded up."""
    return block * -(-count // block)


def numbers(weights: Tensor) -> Table:
    """As they are."""
    return np.array(weights.detach().cpu().numpy(), np.float32, order="C")


def blocks(weights: Tensor) -> Table:
    """A matrix (outputs, inputs) or a bias (outputs,), outputs filled up with 0 to whole blocks."""
    known = numbers(weights)
    whole = np.zeros((whole_blocks(len(known), lanes.OUTPUTS), *known.shape[1:]), np.float32)
    whole[: len(known)] = known
    return whole


@njit_inline  # on its own, compiled code may return no table
def table(flat: Table, rows: int, columns: int) -> Table:
    """The beginning of a row of numbers, as a table."""
    return flat[: rows * columns].reshape((rows, columns))


@njit_internal
def answer(turned: Table, bias: Table, single: Table, slope: np.float32, out: Table) -> None:
    """`lanes.dense` for a single column; `turned` is the matrix with a row for each input."""
    made = turned.shape[1]
    for output in range(made):
        out[output] = bias[output]
    for place in range(len(turned)):
        weights, value = turned[place], single[place]
        for output in range(made):
            out[output] += weights[output] * value
    for output in range(made):
        out[output] = max(out[output], slope * out[output])


@njit_internal
def normalise(x: Table, scale: Table, shift: Table, sums: Table, out: Table) -> None:
    """LayerNorm of each column over the rows that have a `scale`; `sums` is (2, columns)."""
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
def soften(scores: Table, rows: int, sums: Table) -> None:
    """Softmax of each column over its first `rows`, but for the division by sums[1]."""
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
def exponential(x: np.float32) -> np.float32:
    """exp, to the last bit but one, in operations that vectorise: a call to libm does not."""
    x = min(max(x, _LEAST), _MOST)
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
    power: np.float32 = _of_bits((np.int32(whole) + np.int32(127)) << np.int32(23))
    return series * power


@intrinsic  # type: ignore[untyped-decorator]
def _of_bits(typing: Any, bits: Any) -> Any:
    """The float32 that these 32 bits are."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        low = builder.trunc(arguments[0], ir.IntType(32)) if bits.bitwidth > 32 else arguments[0]
        return builder.bitcast(low, ir.FloatType())

    return types.float32(bits), generate


# The best few of many options, found on one walk, in compiled code.


@njit_internal
def top_k(
    option: int,
    score: np.float32,
    best: NDArray[np.int64],
    scores: NDArray[np.float32],
    count: int,
) -> int:
    """Put an option among the best K, of which `count` are known; how many are known then.

    `best` (K,) are the options, best first, and `scores` (K,) theirs. It comes behind its equals.
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
