"""Which episode each of many environments, stepped together, lives through next."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from gymnasium.utils.seeding import np_random


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
