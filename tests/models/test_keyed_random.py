"""Keyed random numbers: distributions, independence of rows, torch against compiled code."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled
from loadmaster.models.keyed_random import draw_normal, splitmix64, standard_normal

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
def drawn(key: int, stream: int, first: int, count: int, out: NDArray[np.float32]) -> None:
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
