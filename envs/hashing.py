"""Random numbers without a generator: bits that belong to whatever they are asked for."""

from __future__ import annotations

import numpy as np

from loadmaster.envs.compiled import inner

_STEP = np.uint64(0x9E3779B97F4A7C15)  # the golden ratio's bits: splitmix64's increment
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31 = np.uint64(27), np.uint64(30), np.uint64(31)


@inner
def mixed(key: int | np.int64 | np.uint64, count: int) -> np.uint64:
    """64 random bits that depend on nothing but `key` and `count` (splitmix64's finaliser).

    Counting instead of drawing makes luck its owner's: the same jobs meet the same luck under
    every policy, and a snapshot has no generator to carry along.
    """
    x = np.uint64(key) + (np.uint64(count) + np.uint64(1)) * _STEP
    x = (x ^ (x >> _S30)) * _MIX_1
    x = (x ^ (x >> _S27)) * _MIX_2
    return x ^ (x >> _S31)
