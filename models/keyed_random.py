"""Counter-based random numbers: each row of a batch draws from its own key.

A stateful generator would make a row's numbers depend on the rows before it, hence on how many
environments share a worker and on the minibatch. Here they depend on the row's key, a stream and a
position, in torch for batches and in compiled code for single rows.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loadmaster.envs.compiled import njit_internal
from loadmaster.envs.compiled import splitmix64 as _env_splitmix64
from loadmaster.models.elementary import cosine_and_sine, logarithm, logarithm_32

RNG_KEY = "rng_key"  # the column of a batch that holds the keys: (B,) int64

# Splitmix64's, as in envs/compiled.py; torch cannot multiply unsigned 64-bit integers.
_STEP = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)
_LOW = (1 << 32) - 1

_UNIT, _TURN = np.float32(2.0**-32), np.float32(2 * math.pi * 2.0**-32)
_S12, _S32, _LOW_U64 = np.uint64(12), np.uint64(32), np.uint64(_LOW)
_MINUS_TWO, _ONE = np.float32(-2), np.uint64(1)


def splitmix64(key: Tensor, count: Tensor | int) -> Tensor:
    """64 random bits for each pair of key and count, of their common shape."""
    x = key + (torch.as_tensor(count) + 1) * _STEP  # wraps around
    x = (x ^ _shifted(x, 30)) * _MIX_1
    x = (x ^ _shifted(x, 27)) * _MIX_2
    return x ^ _shifted(x, 31)


def standard_normal(key: Tensor, shape: Sequence[int] = (), stream: int = 0) -> Tensor:
    """(B, *shape) by Box-Muller, two of each 64 bits; independent between streams.

    The first numbers do not change with the first length of `shape`.
    """
    count = math.prod(shape)
    bits = _bits(key, (count + 1) // 2, stream)
    length = ((_shifted(bits, 32) + 1) * 2.0**-32).log().mul(-2).sqrt()
    angle = (bits & _LOW) * (2 * math.pi * 2.0**-32)
    pairs = torch.stack([length * angle.cos(), length * angle.sin()], dim=-1)
    return pairs.flatten(1)[:, :count].reshape(-1, *shape)


def uniform(key: Tensor, count: Tensor | int, stream: int = 0) -> Tensor:
    """Float64 numbers between 0 and 1, neither included, of the common shape of key and count."""
    bits = splitmix64(stream_key(key, stream), count)
    return (_shifted(bits, 12).double() + 0.5) * 2.0**-52


def standard_gumbel(key: Tensor, count: Tensor | int, stream: int = 0) -> Tensor:
    """Gumbel numbers of the common shape of key and count; see `uniform`."""
    return -(-uniform(key, count, stream).log()).log()


def stream_key(key: Tensor, stream: int) -> Tensor:
    """Keys of an independent stream."""
    return splitmix64(splitmix64(key, stream), -1)


def _bits(key: Tensor, count: int, stream: int) -> Tensor:
    """(B, count)"""
    return splitmix64(stream_key(key, stream)[:, None], torch.arange(count, device=key.device))


def _shifted(x: Tensor, places: int) -> Tensor:
    """Shift right without sign extension."""
    return (x >> places) & ((1 << (64 - places)) - 1)


@njit_internal
def draw_normal(
    key: int | np.int64 | np.uint64, stream: int, first: int, count: int, out: NDArray[np.float32]
) -> None:
    """`standard_normal` of one key in compiled code: numbers `first` to `first + count`."""
    own_key = draw_stream_key(key, stream)
    for place in range(count):
        out[place] = draw_normal_number(own_key, first + place)


@njit_internal
def draw_stream_key(key: int | np.int64 | np.uint64, stream: int) -> np.uint64:
    """`stream_key` in compiled code."""
    return _env_splitmix64(_env_splitmix64(key, stream), -1)


@njit_internal
def draw_normal_number(own_key: np.uint64, number: int) -> np.float32:
    """One number of `standard_normal` by the key of its stream.

    In float32 where torch is, so that rounding is the same.
    """
    bits = _env_splitmix64(own_key, number // 2)
    length: np.float32 = np.sqrt(_MINUS_TWO * np.log(np.float32((bits >> _S32) + _ONE) * _UNIT))
    angle = np.float32(bits & _LOW_U64) * _TURN
    part: np.float32 = np.cos(angle) if number % 2 == 0 else np.sin(angle)
    return length * part


@njit_internal
def draw_uniform(own_key: np.uint64, number: int) -> float:
    """One number of `uniform` by the key of its stream."""
    bits = _env_splitmix64(own_key, number)
    return (np.float64(bits >> _S12) + 0.5) * 2.0**-52


@njit_internal
def draw_gumbels(uniforms: NDArray[np.float64], count: int) -> None:
    """Turn the first `count` numbers of `draw_uniform` into Gumbel numbers; vectorises."""
    for place in range(count):
        uniforms[place] = -logarithm(uniforms[place])
    for place in range(count):
        uniforms[place] = -logarithm(uniforms[place])


@njit_internal
def draw_normal_pairs(
    own_key: np.uint64, even: NDArray[np.float32], odd: NDArray[np.float32]
) -> None:
    """Numbers of `standard_normal` by the key of their stream: 0, 2, 4 .. and 1, 3, 5 .."""
    for place in range(len(even)):
        bits = _env_splitmix64(own_key, place)
        even[place] = np.float32((bits >> _S32) + _ONE) * _UNIT
        odd[place] = np.float32(bits & _LOW_U64) * _TURN
    for place in range(len(even)):
        length = np.sqrt(_MINUS_TWO * logarithm_32(even[place]))
        across, up = cosine_and_sine(odd[place])
        even[place], odd[place] = length * across, length * up
