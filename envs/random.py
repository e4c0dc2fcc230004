"""Which episode each of many environments, stepped together, lives through next."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from gymnasium.utils.seeding import np_random

from loadmaster.envs.compiled import njit_internal

# Random numbers without a generator: bits that belong to whatever they are asked for.


_STEP = np.uint64(0x9E3779B97F4A7C15)  # the golden ratio's bits: splitmix64's increment
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31 = np.uint64(27), np.uint64(30), np.uint64(31)


@njit_internal
def splitmix64(key: int | np.int64 | np.uint64, count: int) -> np.uint64:
    """64 random bits that depend on nothing but `key` and `count` (splitmix64's finaliser).

    Counting instead of drawing makes luck its owner's: the same jobs meet the same luck under
    every policy, and a snapshot has no generator to carry along.
    """
    x = np.uint64(key) + (np.uint64(count) + np.uint64(1)) * _STEP
    x = (x ^ (x >> _S30)) * _MIX_1
    x = (x ^ (x >> _S27)) * _MIX_2
    return x ^ (x >> _S31)


class EpisodeSeeds:
    """Environment i seeded with s gets the same seeds one after the other as a single one."""

    def __init__(self, environments: int) -> None:
        self.now = np.zeros(environments, np.int64)  # of the episodes that are under way
        self._generators = [np_random(None)[0] for _ in range(environments)]

    def begin(self, seed: int | Sequence[int | None] | None) -> Sequence[int | None]:
        """Each environment's first; an integer counts upwards over them, None goes on as it was."""
        if seed is None or isinstance(seed, int):
            seed = [None if seed is None else seed + i for i in range(len(self.now))]
        for i, own in enumerate(seed):
            if own is not None:
                self._generators[i] = np_random(own)[0]
        return seed

    def next(self, index: int, given: int | None) -> int:
        """The seed of the environment's next episode: the given one, else one that it draws."""
        drawn = int(self._generators[index].integers(1 << 31)) if given is None else given
        self.now[index] = drawn
        return drawn
