"""The dense layer in vector registers equals numpy."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled
from loadmaster.models.simd_dense import COLUMNS, OUTPUTS, dense


@compiled
def whole_layer(
    matrix: NDArray[np.float32],
    bias: NDArray[np.float32],
    slope: float,
    source: NDArray[np.float32],
    target: NDArray[np.float32],
    given: int,
    made: int,
) -> None:
    dense(matrix, bias, np.float32(slope), source, target, given, made, target.shape[1])


@pytest.mark.parametrize(("given", "made"), [(1, 1), (14, 16), (38, 16), (5, 6)])
@pytest.mark.parametrize("slope", [0.2, 1.0])
def test_dense_equals_leaky_linear_layer(given: int, made: int, slope: float) -> None:
    rng = np.random.default_rng(given)
    wide, columns = 40, 3 * COLUMNS
    matrix = np.zeros((wide, wide), np.float32)
    bias = np.zeros(wide, np.float32)
    matrix[:made, :given] = rng.normal(size=(made, given))
    bias[:made] = rng.normal(size=made)
    source = np.full((wide, columns), np.nan, np.float32)  # must not be read
    source[:given] = rng.normal(size=(given, columns))
    target = np.full((wide, columns), 7, np.float32)

    whole_layer(matrix, bias, slope, source, target, given, made)

    sums = matrix[:made, :given].astype(float) @ source[:given] + bias[:made, None]
    expected = np.where(sums < 0, slope * sums, sums)
    np.testing.assert_allclose(target[:made], expected, atol=1e-5)
    whole_blocks = OUTPUTS * -(-made // OUTPUTS)
    assert (target[made:whole_blocks] == 0).all()
    assert (target[whole_blocks:] == 7).all()


def test_column_depends_on_its_own_inputs() -> None:
    matrix, bias = np.ones((8, 8), np.float32), np.zeros(8, np.float32)
    source = np.zeros((8, COLUMNS), np.float32)
    source[:, 2], source[:, 5] = np.nan, 1
    target = np.zeros_like(source)
    whole_layer(matrix, bias, 0.2, source, target, 8, 8)
    assert np.isnan(target[:, 2]).all()
    assert (target[:, 5] == 8).all()
    assert (np.delete(target, [2, 5], axis=1) == 0).all()
