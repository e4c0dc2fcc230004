"""How much of its time a gang spends communicating, which no trace tells.

Gavel measured training jobs on 2 to 8 GPUs both consolidated on one machine and spread over
several. Spread, the middle one kept 0.43 of its speed on V100s and 0.68 on P100s, one in ten more
than 0.99, one in ten less than 0.20 and 0.50. Shares of Beta(2, 3), 0.39 in the middle and from
0.14 to 0.68 in those tenths, lie between the two.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

_BETA = (2.0, 3.0)


def draw_shares(instances: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.float64]:
    """(N,) For jobs of so many instances; a single one has nobody to talk to."""
    shares: NDArray[np.float64] = np.where(instances > 1, rng.beta(*_BETA, len(instances)), 0.0)
    return shares


def typical_share(name: str, instances: int) -> float:
    """The same for a job of that name, always the same whatever else is loaded."""
    digest = hashlib.sha256(name.encode()).digest()
    rng = np.random.default_rng(int.from_bytes(digest[:8], "big"))
    return float(draw_shares(np.array([instances]), rng)[0])
