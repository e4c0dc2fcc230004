"""Random numbers of a batch, each row's its own.

A generator deals its numbers out in the order it is asked, so what a row draws would depend on the
rows beside it: on how many environments share a worker, or on the minibatch. Here a row carries a
number, its luck, and what it draws depends on nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

RNG_KEY = "luck"  # the column of a batch that holds it: (B,) int64

# Splitmix64's, as in envs/random.py; torch has no unsigned integers of that size to multiply.
_STEP = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)
_LOW = (1 << 32) - 1


def splitmix64(luck: Tensor, count: Tensor | int) -> Tensor:
    """64 random bits that depend on nothing but these two, of their common shape."""
    x = luck + (torch.as_tensor(count) + 1) * _STEP  # wraps around, as it should
    x = (x ^ _shifted(x, 30)) * _MIX_1
    x = (x ^ _shifted(x, 27)) * _MIX_2
    return x ^ _shifted(x, 31)


def uniform(luck: Tensor, shape: Sequence[int] = (), stream: int = 0) -> Tensor:
    """(B, *shape) between 0 and 1, both excluded; different streams have nothing in common.

    Numbers that come first in `shape` are the same whatever its first length is.
    """
    bits = _bits(luck, math.prod(shape), stream)
    # One bit less than a float32 holds, so that half a step keeps clear of either end.
    return ((_shifted(bits, 41) + 0.5) * 2.0**-23).view(-1, *shape)


def standard_normal(luck: Tensor, shape: Sequence[int] = (), stream: int = 0) -> Tensor:
    """(B, *shape), by Box and Muller: two of each 64 bits. As `uniform` where shapes differ."""
    count = math.prod(shape)
    bits = _bits(luck, (count + 1) // 2, stream)
    length = ((_shifted(bits, 32) + 1) * 2.0**-32).log().mul(-2).sqrt()
    angle = (bits & _LOW) * (2 * math.pi * 2.0**-32)
    pairs = torch.stack([length * angle.cos(), length * angle.sin()], dim=-1)
    return pairs.flatten(1)[:, :count].reshape(-1, *shape)


def _bits(luck: Tensor, count: int, stream: int) -> Tensor:
    """(B, count)"""
    key = splitmix64(splitmix64(luck, stream), -1)
    return splitmix64(key[:, None], torch.arange(count, device=luck.device))


def _shifted(x: Tensor, places: int) -> Tensor:
    """To the right, as if there were no sign."""
    return (x >> places) & ((1 << (64 - places)) - 1)
