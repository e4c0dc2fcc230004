"""What heuristics reach on the sequences that a run judges itself by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np


def mean_costs(
    names: Sequence[str], seeds: Sequence[int], cost: Callable[[str, int], float]
) -> dict[str, float]:
    """Each one's mean cost of an episode; compiled episodes release the lock, so in threads."""

    def mean(name: str) -> float:
        return float(np.mean([cost(name, seed) for seed in seeds]))

    with ThreadPoolExecutor() as threads:
        return dict(zip(names, threads.map(mean, names), strict=True))
