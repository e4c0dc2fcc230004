"""Metrics of episodes; each environment lists its own, the primary one first."""

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


def over_finished(statistic: Callable[[Any], Any], jobs: NDArray[np.float64]) -> float:
    """Return a statistic of finished jobs (not nan); nan if there are none."""
    finished = jobs[~np.isnan(jobs)]
    return float(statistic(finished)) if len(finished) else float("nan")


def mean_of_finished(jobs: NDArray[np.float64]) -> float:
    return over_finished(np.mean, jobs)


def last_of_finished(jobs: NDArray[np.float64]) -> float:
    return over_finished(np.max, jobs)


def p95_of_finished(jobs: NDArray[np.float64]) -> float:
    return over_finished(lambda finished: np.percentile(finished, 95), jobs)
