"""The numbers of models/keyed_random.py in compiled code: the same, for a single row."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import njit_internal
from loadmaster.envs.random import splitmix64

_UNIT, _TURN = np.float32(2.0**-32), np.float32(2 * math.pi * 2.0**-32)
_S32, _LOW = np.uint64(32), np.uint64((1 << 32) - 1)
_MINUS_TWO, _ONE = np.float32(-2), np.uint64(1)


@njit_internal
def draw_normal(
    luck: int | np.int64 | np.uint64, stream: int, first: int, count: int, out: NDArray[np.float32]
) -> None:
    """Numbers `first` and following of a stream of standard normals into the beginning of `out`.

    In float32 where torch is, so that rounding is the same as well.
    """
    key = splitmix64(splitmix64(luck, stream), -1)
    for place in range(count):
        number = first + place
        bits = splitmix64(key, number // 2)
        length = np.sqrt(_MINUS_TWO * np.log(np.float32((bits >> _S32) + _ONE) * _UNIT))
        angle = np.float32(bits & _LOW) * _TURN
        out[place] = length * (np.cos(angle) if number % 2 == 0 else np.sin(angle))
