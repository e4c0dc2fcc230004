"""Metrics of episodes; each environment lists its own, the primary one first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Metric:
    """One figure per episode, with its labels for tables and charts."""

    name: str  # in JSON and CSV
    label: str  # in tables and charts
    unit: str  # "s"; empty for a plain number
    of: Callable[[Any], float]  # of an episode's result; nan if undefined
    better: Literal["lower", "higher"] | None = "lower"  # None: neither is better

    @property
    def title(self) -> str:
        return f"{self.label}, {self.unit}" if self.unit else self.label


def mean_of_finished(jobs: NDArray[np.float64]) -> float:
    """Return the mean over finished jobs (not nan); nan if there are none."""
    finished = jobs[~np.isnan(jobs)]
    return float(finished.mean()) if len(finished) else float("nan")


def last_of_finished(jobs: NDArray[np.float64]) -> float:
    finished = jobs[~np.isnan(jobs)]
    return float(finished.max()) if len(finished) else float("nan")
