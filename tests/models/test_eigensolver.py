"""Functions of symmetric matrices, against numpy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loadmaster.envs.compiled import compiled
from loadmaster.models import eigensolver
from loadmaster.models.eigensolver import Array64, Rotations, rotations_for

pytestmark = pytest.mark.slow


@compiled
def inverse_factor(matrix: Array64, out: Array64) -> None:
    eigensolver.factorise(matrix)
    eigensolver.invert(matrix, out)


@compiled
def rotated(rotations: Rotations, vectors: Array64, sums: Array64, back: bool) -> None:
    if back:
        eigensolver.rotate_back(rotations, vectors, sums)
    else:
        eigensolver.diagonalise(rotations)
        eigensolver.rotate(rotations, vectors, sums)


def matrix_of(rows: int, rank: int, kinds: int, seed: int) -> Array64:
    """Positive semi-definite; few `kinds` of rows make eigenvalues coincide."""
    rng = np.random.default_rng(seed)
    factor = rng.normal(size=(rows, rank))
    if kinds:
        factor = factor[np.arange(rows) % kinds]
    found: Array64 = factor @ factor.T
    return found


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 24), st.integers(0, 24), st.integers(0, 3), st.integers(0, 1000))
@example(rows=19, rank=2, kinds=1, seed=0)  # leaves rounding of 1e-140 beside the diagonal
def test_matrix_function_equals_numpy(rows: int, rank: int, kinds: int, seed: int) -> None:
    matrix = matrix_of(rows, rank, kinds, seed)
    vectors = np.random.default_rng(seed).normal(size=(rows, 3))
    rotations = rotations_for(rows)
    rotations.matrix[:] = matrix
    result = vectors.copy()
    rotated(rotations, result, np.zeros(3), back=False)
    values, eigenvectors = np.linalg.eigh(matrix)
    largest = max(values.max(), 1.0)
    np.testing.assert_allclose(np.sort(rotations.values), values, atol=1e-12 * largest)
    result /= (1 + rotations.values)[:, None]
    rotated(rotations, result, np.zeros(3), back=True)
    expected = eigenvectors @ ((eigenvectors.T @ vectors) / (1 + values)[:, None])
    np.testing.assert_allclose(result, expected, atol=1e-10)


@pytest.mark.parametrize("rows", [1, 2, 7, 40])
def test_cholesky_factor_and_inverse_equal_numpy(rows: int) -> None:
    matrix = matrix_of(rows, rows, 0, 1) + np.eye(rows)
    upper, inverse = matrix.copy(), np.zeros((rows, rows))
    inverse_factor(upper, inverse)
    np.testing.assert_allclose(np.triu(upper), np.linalg.cholesky(matrix).T, atol=1e-10)
    np.testing.assert_allclose(inverse @ inverse.T, np.linalg.inv(matrix), atol=1e-10)


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e-140, 1e140])
def test_tiny_and_huge_matrices_stay_accurate(scale: float) -> None:
    """Where squares of the numbers underflow; right within 1e-145."""
    matrix = matrix_of(9, 9, 2, 4) * scale
    rotations = rotations_for(9)
    rotations.matrix[:] = matrix
    result = np.ones((9, 1))
    rotated(rotations, result, np.zeros(1), back=False)
    expected = np.linalg.eigvalsh(matrix)
    np.testing.assert_allclose(np.sort(rotations.values), expected, atol=max(1e-143, 1e-11 * scale))
    np.testing.assert_allclose((result**2).sum(), 9, rtol=1e-10)
