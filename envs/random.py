"""Keyed random bits for compiled code, and the episode seeds of vector environments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from gymnasium.utils.seeding import np_random

from loadmaster.envs.compiled import njit_internal

_STEP = np.uint64(0x9E3779B97F4A7C15)  # splitmix64's increment, bits of the golden ratio
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31 = np.uint64(27), np.uint64(30), np.uint64(31)


@njit_internal
def splitmix64(key: int | np.int64 | np.uint64, count: int) -> np.uint64:
    """Return 64 random bits that depend only on `key` and `count` (splitmix64's finaliser).

    Without a generator, the same jobs get the same draws under every policy, and a copied state
    needs no generator state.
    """
    x = np.uint64(key) + (np.uint64(count) + np.uint64(1)) * _STEP
    x = (x ^ (x >> _S30)) * _MIX_1
    x = (x ^ (x >> _S27)) * _MIX_2
    return x ^ (x >> _S31)


class EpisodeSeeds:
    """Seeds of successive episodes; environment i seeded with s gets those of a single one."""

    def __init__(self, environments: int) -> None:
        self.now = np.zeros(environments, np.int64)  # of the current episodes
        self._generators = [np_random(None)[0] for _ in range(environments)]

    def begin(self, seed: int | Sequence[int | None] | None) -> Sequence[int | None]:
        """Seed the generators; an integer counts up over environments, None keeps a generator."""
        if seed is None or isinstance(seed, int):
            seed = [None if seed is None else seed + i for i in range(len(self.now))]
        for i, own in enumerate(seed):
            if own is not None:
                self._generators[i] = np_random(own)[0]
        return seed

    def next(self, index: int, given: int | None) -> int:
        """Return the seed of the environment's next episode: the given one, or else a drawn one."""
        drawn = int(self._generators[index].integers(1 << 31)) if given is None else given
        self.now[index] = drawn
        return drawn
