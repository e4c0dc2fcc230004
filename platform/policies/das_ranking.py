"""What could come first, jobs or machines, as DAS ranks it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.platform.policies import Options

TOLD = 5  # jobs, and machines, of a decision
DRAWS = 1000  # by which the probability of coming first is estimated


class Ranking(NamedTuple):
    """K of them; the highest score comes first."""

    names: NDArray[np.int64]  # (K,)
    score: NDArray[np.float32]  # (K,) the mean of its priority or affinity
    probability: NDArray[np.float64]  # (K,) of coming first, while it learnt

    @property
    def first(self) -> int:
        """The name of what comes first."""
        return int(self.names[self.score.argmax()])

    @property
    def told(self) -> list[int]:
        """The highest scores first: the first of them is what is done."""
        return [int(place) for place in np.argsort(-self.score, kind="stable")[:TOLD]]

    def options(
        self,
        heading: str,
        columns: tuple[str, ...],
        name: Callable[[int], str],
        cells: Callable[[int], tuple[str, ...]],
    ) -> Options:
        told = self.told
        return Options(
            heading=heading,
            columns=(*columns, "score"),
            names=tuple(name(int(self.names[place])) for place in told),
            cells=tuple(
                (*cells(int(self.names[place])), f"{self.score[place]:+.3f}") for place in told
            ),
            probabilities=tuple(float(self.probability[place]) for place in told),
            chosen=0,
            others=len(self.names) - len(told),
        )

    def records(self, tell: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            {
                **tell(int(self.names[place])),
                "score": round(float(self.score[place]), 6),
                "probability": round(float(self.probability[place]), 4),
            }
            for place in self.told
        ]


def rank(names: NDArray[np.int64], score: NDArray[Any], drawn: NDArray[Any]) -> Ranking:
    """Of scores (K,) and draws of them (DRAWS, K)."""
    highest = np.bincount(drawn.argmax(1), minlength=drawn.shape[1])
    return Ranking(names, score, highest / len(drawn))
