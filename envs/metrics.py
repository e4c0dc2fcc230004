"""What an episode is judged by. Each environment lists its own metrics, the primary one first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Metric:
    """One figure per episode, with what a table or a chart must know to show it."""

    name: str  # in JSON and CSV
    label: str  # in tables and charts
    unit: str  # "s"; empty for a plain number
    of: Callable[[Any], float]  # an episode's result -> its figure; nan where it has none
    better: Literal["lower", "higher"] | None = "lower"  # None: neither is better

    @property
    def title(self) -> str:
        return f"{self.label}, {self.unit}" if self.unit else self.label


def mean_of_finished(jobs: NDArray[np.float64]) -> float:
    """The mean of what is known of each job; nan if nothing is. Unfinished jobs are nan."""
    finished = jobs[~np.isnan(jobs)]
    return float(finished.mean()) if len(finished) else float("nan")


def last_of_finished(jobs: NDArray[np.float64]) -> float:
    finished = jobs[~np.isnan(jobs)]
    return float(finished.max()) if len(finished) else float("nan")
