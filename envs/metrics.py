"""Metrics of episodes; each environment lists its own, the primary one first."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Measure:
    """What a figure measures: its labels, and which values are better."""

    name: str  # in JSON and CSV
    label: str  # in tables and charts
    unit: str  # "s"; empty for a plain number
    better: Literal["lower", "higher"] | None = field(default="lower", kw_only=True)  # None: none
    # False: its zero is arbitrary, as that of a reward, so only differences mean something.
    relative: bool = field(default=True, kw_only=True)

    @property
    def title(self) -> str:
        return f"{self.label}, {self.unit}" if self.unit else self.label

    @property
    def sign(self) -> float:
        """1.0 or -1.0: times this, lower values are better."""
        return -1.0 if self.better == "higher" else 1.0

    def rank(self, value: float) -> float:
        """Sort key, the best first; nan last."""
        return math.inf if math.isnan(value) else self.sign * value

    def figure(self, value: float) -> str:
        """A value without its unit, in one line of progress."""
        return f"{value:,.{1 if self.relative else 3}f}"

    def text(self, value: float) -> str:
        """A value with its unit."""
        return f"{self.figure(value)} {self.unit}".rstrip()

    def change(self, value: float, reference: float) -> str:
        """Difference of two values: in percent, where that means something."""
        if not self.relative:
            return f"{value - reference:+.3f}"
        return f"{100 * (value / reference - 1):+.1f}%" if reference else "-"


@dataclass(frozen=True)
class Metric(Measure):
    """One figure per episode."""

    of: Callable[[Any], float]  # of an episode's result; nan if undefined


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
