"""Compiled draws are those of models/keyed_random.py."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled
from loadmaster.models.keyed_random import standard_normal
from loadmaster.models.keyed_random_numba import draw_normal


@compiled
def drawn(luck: int, stream: int, first: int, count: int, out: NDArray[np.float32]) -> None:
    draw_normal(luck, stream, first, count, out)


@pytest.mark.parametrize("luck", [0, 7, -3, 2**62 + 5, -(2**63)])
@pytest.mark.parametrize("stream", [0, 1])
def test_the_same_numbers(luck: int, stream: int) -> None:
    expected = standard_normal(torch.tensor([luck]), (9, 5), stream)[0].numpy()
    for row in (0, 3, 8):  # some begin within a pair
        out = np.full(6, 7, np.float32)
        drawn(luck, stream, 5 * row, 5, out)
        np.testing.assert_allclose(out[:5], expected[row], atol=1e-6)
        assert out[5] == 7
