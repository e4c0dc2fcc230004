"""Compiled numerics against numpy and torch: eigenvalues, keyed random numbers, dense layers."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from loadmaster.envs.compiled import Ints, compiled
from loadmaster.models import eigensolver
from loadmaster.models.eigensolver import Array64, Rotations, rotations_for
from loadmaster.models.elementary import logarithm
from loadmaster.models.keyed_random import (
    draw_gumbels,
    draw_normal,
    draw_normal_pairs,
    draw_stream_key,
    draw_uniform,
    splitmix64,
    standard_gumbel,
    standard_normal,
    uniform,
)
from loadmaster.models.simd import COLUMNS, OUTPUTS, ROWS, VECTOR
from loadmaster.models.simd_dense import dense, dense_items
from loadmaster.models.simd_rows import prefetch_row, relu_of_sums, sum_rows
from loadmaster.models.simd_sparse import GROUP, ITEMS, relu_of_sparse

Array32 = NDArray[np.float32]


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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 2, 7, 40])
def test_cholesky_factor_and_inverse_equal_numpy(rows: int) -> None:
    matrix = matrix_of(rows, rows, 0, 1) + np.eye(rows)
    upper, inverse = matrix.copy(), np.zeros((rows, rows))
    inverse_factor(upper, inverse)
    np.testing.assert_allclose(np.triu(upper), np.linalg.cholesky(matrix).T, atol=1e-10)
    np.testing.assert_allclose(inverse @ inverse.T, np.linalg.inv(matrix), atol=1e-10)


@pytest.mark.slow
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


MASK = (1 << 64) - 1


def reference_splitmix64(key: int, count: int) -> int:
    x = (key + (count + 1) * 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def test_bits_equal_reference_splitmix64() -> None:
    keys = [0, 1, 12345678901234567, (1 << 63) - 1]
    for count in (0, 1, 1 << 40):
        found = splitmix64(torch.tensor(keys), count).tolist()
        assert [bits & MASK for bits in found] == [reference_splitmix64(k, count) for k in keys]


def test_draws_do_not_depend_on_other_rows_or_later_numbers() -> None:
    keys = torch.arange(50)
    together = standard_normal(keys, (6, 3))
    assert torch.equal(standard_normal(keys[7:8], (6, 3))[0], together[7])
    assert torch.equal(standard_normal(keys, (4, 3)), together[:, :4])
    assert not (standard_normal(keys, (6, 3), stream=1) == together).any()
    assert standard_normal(keys).shape == (50,)
    assert len(together.unique()) == together.numel()


def test_moments_of_normal_numbers() -> None:
    normal = standard_normal(torch.arange(2_000), (101,)).double()
    error = 5 / np.sqrt(normal.numel())
    assert abs(float(normal.mean())) < error
    assert abs(float(normal.square().mean()) - 1) < 2 * error
    assert abs(float(normal.pow(4).mean()) - 3) < 12 * error
    assert abs(float((normal[:, 1:] * normal[:, :-1]).mean())) < error  # neighbours in a row
    assert abs(float((normal[1:] * normal[:-1]).mean())) < error  # and in the batch


@compiled
def drawn(key: int, stream: int, first: int, count: int, out: Array32) -> None:
    draw_normal(key, stream, first, count, out)


@pytest.mark.slow
@pytest.mark.parametrize("key", [0, 7, -3, 2**62 + 5, -(2**63)])
@pytest.mark.parametrize("stream", [0, 1])
def test_compiled_draws_equal_torch(key: int, stream: int) -> None:
    expected = standard_normal(torch.tensor([key]), (9, 5), stream)[0].numpy()
    for row in (0, 3, 8):  # some begin within a pair
        out = np.full(6, 7, np.float32)
        drawn(key, stream, 5 * row, 5, out)
        np.testing.assert_allclose(out[:5], expected[row], atol=1e-6)
        assert out[5] == 7


@compiled
def whole_layer(
    matrix: Array32, bias: Array32, slope: float, source: Array32, target: Array32,
    inputs: int, made: int,
) -> None:  # fmt: skip
    dense(matrix, bias, np.float32(slope), source, target, inputs, made, target.shape[1])


@pytest.mark.parametrize(("inputs", "made"), [(1, 1), (14, 16), (38, 16), (5, 6)])
@pytest.mark.parametrize("slope", [0.2, 1.0])
def test_dense_equals_leaky_linear_layer(inputs: int, made: int, slope: float) -> None:
    rng = np.random.default_rng(inputs)
    wide, columns = 40, 3 * COLUMNS
    matrix, bias = np.zeros((wide, wide), np.float32), np.zeros(wide, np.float32)
    matrix[:made, :inputs] = rng.normal(size=(made, inputs))
    bias[:made] = rng.normal(size=made)
    source = np.full((wide, columns), np.nan, np.float32)  # must not be read
    source[:inputs] = rng.normal(size=(inputs, columns))
    target = np.full((wide, columns), 7, np.float32)
    whole_layer(matrix, bias, slope, source, target, inputs, made)
    sums = matrix[:made, :inputs].astype(float) @ source[:inputs] + bias[:made, None]
    expected = np.where(sums < 0, slope * sums, sums)
    np.testing.assert_allclose(target[:made], expected, atol=1e-5)
    whole_blocks = OUTPUTS * -(-made // OUTPUTS)
    assert (target[made:whole_blocks] == 0).all()
    assert (target[whole_blocks:] == 7).all()


def test_uniform_and_gumbel_numbers_have_their_moments() -> None:
    key = torch.arange(200_000)
    drawn = uniform(key, 3, stream=5)
    assert 0 < drawn.min() < drawn.max() < 1
    assert drawn.mean() == pytest.approx(1 / 2, abs=4 / (12 * len(key)) ** 0.5)
    gumbel = standard_gumbel(key, 3, stream=6)
    std = np.pi / 6**0.5
    assert gumbel.mean() == pytest.approx(np.euler_gamma, abs=4 * std / len(key) ** 0.5)
    assert gumbel.std() == pytest.approx(std, rel=0.02)
    assert abs(np.corrcoef(drawn, gumbel)[0, 1]) < 4 / len(key) ** 0.5
    assert torch.equal(drawn[7:9], uniform(key[7:9], 3, stream=5))


@compiled
def layer_of_items(
    items: Array32, bias: Array32, slope: float, weights: Array32, target: Array32, made: int,
    count: int,
) -> None:  # fmt: skip
    given = len(weights)
    dense_items(items, bias, np.float32(slope), weights, target, given, made, count)


@pytest.mark.parametrize(("inputs", "made", "count"), [(1, 1, 1), (50, 9, 50), (7, 4, 100)])
@pytest.mark.parametrize("slope", [0.0, 1.0])
def test_dense_items_have_a_bias_for_each_column(
    inputs: int, made: int, count: int, slope: float
) -> None:
    rng = np.random.default_rng(inputs)
    columns = VECTOR * -(-count // VECTOR)
    items, weights, bias = (
        rng.normal(size=shape).astype(np.float32)
        for shape in ((made + ROWS, inputs), (inputs, columns), columns)
    )
    target = np.full((made + ROWS, columns + 1), 7, np.float32)
    layer_of_items(items, bias, slope, weights, target, made, count)
    sums = items[:made].astype(float) @ weights + bias
    expected = np.where(sums < 0, slope * sums, sums)
    np.testing.assert_allclose(target[:made, :columns], expected, atol=1e-5)
    assert (target[:, columns:] == 7).all()


@compiled
def layer_of_sparse_items(
    items: Array32, bias: Array32, weights: Array32, target: Array32, made: int, count: int
) -> None:
    relu_of_sparse(items, bias, weights, target, len(weights), made, count)


@pytest.mark.parametrize(
    ("inputs", "made", "count", "zeros"),
    [(1, 1, 1, 0.5), (50, 9, 50, 0.5), (8, 4, 100, 0.9), (16, 8, 8, 1.0), (23, 5, 52, 0.0)],
)
def test_inputs_of_zero_are_skipped(inputs: int, made: int, count: int, zeros: float) -> None:
    rng = np.random.default_rng(inputs)
    columns, rows = VECTOR * -(-count // VECTOR), ITEMS * -(-made // ITEMS)
    items = rng.normal(size=(rows, GROUP * -(-inputs // GROUP))).astype(np.float32)
    items[rng.random(items.shape) < zeros] = -0.0  # as a ReLU may return it
    items[:, ::3] = 0.0
    weights, bias = (
        rng.normal(size=shape).astype(np.float32) for shape in ((inputs, columns), columns)
    )
    weights[::3] = np.nan  # must not be read
    target = np.full((rows + 1, columns + 1), 7, np.float32)
    layer_of_sparse_items(items, bias, weights, target, made, count)
    sums = items[:made, :inputs].astype(float) @ np.nan_to_num(weights) + bias
    np.testing.assert_allclose(target[:made, :columns], sums.clip(0), atol=1e-5)
    assert (target[rows:] == 7).all()
    assert (target[:, columns:] == 7).all()


@compiled
def sums_of_rows(
    table: Array32, places: Ints, counts: Ints, bias: Array32, plain: Array32, relu: Array32
) -> None:
    for row in range(len(table)):
        prefetch_row(table, row)
    sum_rows(table, places, counts, plain, len(plain), len(bias))
    relu_of_sums(table, places, counts, bias, relu, len(relu), len(bias))


@pytest.mark.parametrize("registers", [1, 2, 14, 16, 17])
def test_rows_are_summed_by_places(registers: int) -> None:
    rng, size = np.random.default_rng(registers), registers * VECTOR
    table, bias = (rng.normal(size=shape).astype(np.float32) for shape in ((9, size + 3), size))
    places, counts = rng.integers(0, 9, (6, 5)), np.array([0, 1, 2, 5, 3, 1])
    plain, relu = np.full((2, 6, size + 2), 7, np.float32)
    sums_of_rows(table, places, counts, bias, plain, relu)
    for row in range(6):
        total = table[places[row, : counts[row]], :size].sum(axis=0)
        np.testing.assert_allclose(plain[row, :size], total, atol=1e-5)
        np.testing.assert_allclose(relu[row, :size], (bias + total).clip(0), atol=1e-5)
    assert (plain[:, size:] == 7).all()
    assert (relu[:, size:] == 7).all()


@compiled
def drawn_rows(key: int, gumbels: Array64, even: Array32, odd: Array32) -> None:
    for place in range(len(gumbels)):
        gumbels[place] = draw_uniform(draw_stream_key(key, 3), place)
    draw_gumbels(gumbels, len(gumbels))
    draw_normal_pairs(draw_stream_key(key, 2), even, odd)


@pytest.mark.parametrize("key", [0, -5, 2**62])
def test_rows_of_draws_equal_torch(key: int) -> None:
    gumbels, pairs = np.zeros(501), np.zeros((2, 700), np.float32)
    drawn_rows(key, gumbels, *pairs)
    own = torch.tensor([key])
    np.testing.assert_allclose(
        gumbels, standard_gumbel(own[:, None], torch.arange(501), 3)[0], rtol=1e-13, atol=1e-14
    )
    expected = standard_normal(own, (700, 2), 2)[0].numpy()
    np.testing.assert_allclose(pairs.T, expected, atol=2e-6)


@compiled
def logarithms(numbers: Array64, out: Array64) -> None:
    for place in range(len(numbers)):
        out[place] = logarithm(numbers[place])


def test_logarithm_is_exact_to_a_few_units() -> None:
    rng = np.random.default_rng(0)
    near = 1 + rng.normal(size=1000) * 10.0 ** rng.uniform(-15, -1, 1000)
    numbers = np.concatenate([np.exp(rng.normal(size=1000) * 50), near, [1.0, 0.5, 2.0]])
    found = np.zeros(len(numbers))
    logarithms(numbers, found)
    np.testing.assert_allclose(found, np.log(numbers), rtol=1e-15)
