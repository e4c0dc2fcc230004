"""The best few of many options, found on one walk, in compiled code."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import inner


@inner
def rank(
    option: int,
    score: np.float32,
    best: NDArray[np.int64],
    scores: NDArray[np.float32],
    count: int,
) -> int:
    """Put an option among the best K, of which `count` are known; how many are known then.

    `best` (K,) are the options, best first, and `scores` (K,) theirs. It comes behind its equals.
    """
    place = count
    while place > 0 and score > scores[place - 1]:
        place -= 1
    if place == len(best):
        return count
    last = min(count, len(best) - 1)
    for later in range(last, place, -1):
        best[later], scores[later] = best[later - 1], scores[later - 1]
    best[place], scores[place] = option, score
    return last + 1
