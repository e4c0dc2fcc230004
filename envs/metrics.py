"""What an episode is judged by. Each environment lists its own metrics, the primary one first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal


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
