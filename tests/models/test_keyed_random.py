"""Numbers that are a row's own: the right distributions, and nothing of the rows beside it."""

from __future__ import annotations

import numpy as np
import torch

from loadmaster.models.keyed_random import splitmix64, standard_normal, uniform

MASK = (1 << 64) - 1


def by_the_book(key: int, count: int) -> int:
    """Splitmix64 in Python's integers."""
    x = (key + (count + 1) * 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def test_the_bits_are_splitmix64s() -> None:
    keys = [0, 1, 12345678901234567, (1 << 63) - 1]
    for count in (0, 1, 1 << 40):
        found = splitmix64(torch.tensor(keys), count).tolist()
        assert [bits & MASK for bits in found] == [by_the_book(key, count) for key in keys]


def test_a_row_draws_the_same_whoever_is_beside_it_and_whatever_follows() -> None:
    luck = torch.arange(50)
    for draw in (uniform, standard_normal):
        together = draw(luck, (6, 3))
        assert torch.equal(draw(luck[7:8], (6, 3))[0], together[7])
        assert torch.equal(draw(luck, (4, 3)), together[:, :4])
        assert not (draw(luck, (6, 3), stream=1) == together).any()
        assert draw(luck).shape == (50,)
        assert len(together.unique()) == together.numel()


def test_moments() -> None:
    luck = torch.arange(2_000)
    normal, flat = standard_normal(luck, (101,)).double(), uniform(luck, (101,)).double()
    error = 5 / np.sqrt(normal.numel())
    assert abs(float(normal.mean())) < error
    assert abs(float(normal.square().mean()) - 1) < 2 * error
    assert abs(float(normal.pow(4).mean()) - 3) < 12 * error
    assert abs(float((normal[:, 1:] * normal[:, :-1]).mean())) < error  # neighbours in a row
    assert abs(float((normal[1:] * normal[:-1]).mean())) < error  # and in the batch
    assert abs(float(flat.mean()) - 0.5) < error
    assert abs(float(flat.var()) - 1 / 12) < error
    assert 0 < float(flat.min()) < 1e-4
    assert 1 - 1e-4 < float(flat.max()) < 1
