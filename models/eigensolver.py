"""Functions of a symmetric matrix, applied to a few vectors, in compiled code.

W = V diag(w) V', so f(W) x = V f(w) V' x. A library writes all of V out, at some 9 n^3 operations,
and takes microseconds just to be called. But only V' and V times a few vectors are asked for. Here
V is kept as what it is made of: the n - 2 reflections that leave W tridiagonal, at 4/3 n^3, and
the plane rotations that leave it diagonal, at O(n^2). Both are applied to a vector in O(n^2).

Tables are float64, loops run along rows; only the upper part of a matrix is read where it says so.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import njit_inline, njit_internal

Numbers = NDArray[np.float64]

SWEEPS = 10  # for each row, of rotations: five times what it takes
_EPSILON = float(np.finfo(np.float64).eps)
# Numbers whose squares would drown: a matrix of few kinds of rows leaves such rounding behind, and
# a reflection along it would be one along nothing.
_DROWNED = 1e-145


class Rotations(NamedTuple):
    """What turns a matrix of n rows into a diagonal one."""

    reflected: Numbers  # (n, n) the matrix, then behind each diagonal a reflection's vector
    strength: Numbers  # (n,) of each reflection
    values: Numbers  # (n,) the diagonal: eigenvalues in the end
    beside: Numbers  # (n,) what is beside it: 0 in the end
    rotated: Numbers  # (SWEEPS n^2, 2) cosine and sine of each rotation
    plane: NDArray[np.int64]  # (SWEEPS n^2,) the first of the two rows that it turns
    used: NDArray[np.int64]  # (1,) rotations
    scratch: Numbers  # (n,)


def rotations_for(rows: int) -> Rotations:
    most = SWEEPS * rows * rows
    return Rotations(
        reflected=np.zeros((rows, rows)),
        strength=np.zeros(rows),
        values=np.zeros(rows),
        beside=np.zeros(rows),
        rotated=np.empty((most, 2)),  # memory that is never touched is never taken
        plane=np.empty(most, np.int64),
        used=np.zeros(1, np.int64),
        scratch=np.zeros(rows),
    )


@njit_internal
def add_scaled(to: Numbers, factor: float, what: Numbers) -> None:
    """From 0 on: a loop that began elsewhere would not vectorise."""
    for j in range(len(to)):
        to[j] += factor * what[j]


@njit_inline
def factorise(matrix: Numbers) -> None:
    """The upper part becomes U, matrix = U'U (Cholesky)."""
    rows = len(matrix)
    for k in range(rows):
        above = matrix[k, k:]
        scale = 1 / np.sqrt(above[0])
        for j in range(len(above)):
            above[j] *= scale
        for i in range(k + 1, rows):
            add_scaled(matrix[i, i:], -above[i - k], matrix[k, i:])


@njit_inline
def invert(upper: Numbers, out: Numbers) -> None:
    """The upper part of `out` becomes upper^-1."""
    rows = len(upper)
    for i in range(rows - 1, -1, -1):
        row = out[i, i:]
        for j in range(len(row)):
            row[j] = 0
        row[0] = 1
        for k in range(i + 1, rows):
            add_scaled(out[i, k:], -upper[i, k], out[k, k:])
        scale = 1 / upper[i, i]
        for j in range(len(row)):
            row[j] *= scale


@njit_inline
def diagonalise(turns: Rotations) -> None:
    """Find the eigenvalues of turns.reflected, and the turns that lead there."""
    _make_tridiagonal(turns)
    _make_diagonal(turns)


@njit_inline
def _make_tridiagonal(turns: Rotations) -> None:
    """Householder's reflections I - strength v v', one for each row but the last two."""
    a, rows = turns.reflected, len(turns.reflected)
    for k in range(rows - 2):
        v, p = a[k, k + 1 :], turns.scratch[k + 1 :]
        turns.values[k] = a[k, k]
        tail = 0.0
        for j in range(1, len(v)):
            tail += v[j] * v[j]
        turns.strength[k], turns.beside[k] = 0.0, v[0]
        if tail <= _DROWNED * _DROWNED:
            continue
        length = np.sqrt(v[0] * v[0] + tail)
        turns.beside[k] = -length if v[0] > 0 else length
        v[0] -= turns.beside[k]
        strength = 2 / (v[0] * v[0] + tail)
        turns.strength[k] = strength
        # A <- H A H = A - v w' - w v' with w = p - (strength p'v / 2) v, p = strength A v.
        for j in range(len(v)):
            p[j] = 0
        for i in range(len(v)):
            add_scaled(p, strength * v[i], a[k + 1 + i, k + 1 :])
        along = 0.0
        for j in range(len(v)):
            along += p[j] * v[j]
        add_scaled(p, -along * strength / 2, v)
        for i in range(len(v)):
            row, of_v, of_w = a[k + 1 + i, k + 1 :], v[i], p[i]
            for j in range(len(v)):
                row[j] -= of_v * p[j] + of_w * v[j]
    for k in range(max(0, rows - 2), rows):
        turns.values[k] = a[k, k]
    if rows > 1:
        turns.beside[rows - 2] = a[rows - 2, rows - 1]


@njit_inline
def _make_diagonal(turns: Rotations) -> None:
    """Implicit QR steps with Wilkinson's shift; what is left in the end is rounding."""
    d, e, rows = turns.values, turns.beside, len(turns.values)
    largest = 0.0
    for k in range(rows):
        largest = max(largest, abs(d[k]))
    for k in range(rows - 1):
        largest = max(largest, abs(e[k]))
    least = max(_EPSILON * largest, _DROWNED)
    used, sweeps, high = 0, 0, rows - 1
    while high > 0 and sweeps < SWEEPS * rows:
        if abs(e[high - 1]) <= least:
            high -= 1
            continue
        low = high - 1
        while low > 0 and abs(e[low - 1]) > least:
            low -= 1
        half, last = (d[high - 1] - d[high]) / 2, e[high - 1]
        root = np.sqrt(half * half + last * last)
        shift = d[high] - last * last / (half + (root if half >= 0 else -root))
        x, bulge = d[low] - shift, e[low]
        for k in range(low, high):
            length = np.sqrt(x * x + bulge * bulge)
            if k > low:
                e[k - 1] = length
            c, s = 1.0, 0.0
            if length > _DROWNED:
                inverse = 1 / length
                c, s = x * inverse, bulge * inverse
            first, second, between = d[k], d[k + 1], e[k]
            both = 2 * c * s * between
            d[k] = c * c * first + both + s * s * second
            d[k + 1] = s * s * first - both + c * c * second
            e[k] = c * s * (second - first) + (c * c - s * s) * between
            if k + 1 < high:
                x, bulge = e[k], s * e[k + 1]
                e[k + 1] = c * e[k + 1]
            turns.rotated[used, 0], turns.rotated[used, 1], turns.plane[used] = c, s, k
            used += 1
        sweeps += 1
    turns.used[0] = used


@njit_inline
def rotate(turns: Rotations, vectors: Numbers, sums: Numbers) -> None:
    """V' times the columns of `vectors` (n, K), in place; `sums` is (K,)."""
    for k in range(len(turns.values) - 2):
        _reflect(turns, k, vectors, sums)
    for place in range(turns.used[0]):
        k, c, s = turns.plane[place], turns.rotated[place, 0], turns.rotated[place, 1]
        first, second = vectors[k], vectors[k + 1]
        for column in range(vectors.shape[1]):
            one, other = first[column], second[column]
            first[column] = c * one + s * other
            second[column] = c * other - s * one


@njit_inline
def rotate_back(turns: Rotations, vectors: Numbers, sums: Numbers) -> None:
    """V times the columns of `vectors` (n, K), in place; `sums` is (K,)."""
    for place in range(turns.used[0] - 1, -1, -1):
        k, c, s = turns.plane[place], turns.rotated[place, 0], turns.rotated[place, 1]
        first, second = vectors[k], vectors[k + 1]
        for column in range(vectors.shape[1]):
            one, other = first[column], second[column]
            first[column] = c * one - s * other
            second[column] = c * other + s * one
    for k in range(len(turns.values) - 3, -1, -1):
        _reflect(turns, k, vectors, sums)


@njit_internal
def _reflect(turns: Rotations, k: int, vectors: Numbers, sums: Numbers) -> None:
    v, strength, rows, columns = turns.reflected[k], turns.strength[k], len(vectors), len(sums)
    for column in range(columns):
        sums[column] = 0
    for i in range(k + 1, rows):
        vector, factor = vectors[i], strength * v[i]
        for column in range(columns):
            sums[column] += factor * vector[column]
    for i in range(k + 1, rows):
        vector, factor = vectors[i], v[i]
        for column in range(columns):
            vector[column] -= factor * sums[column]
