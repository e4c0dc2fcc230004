"""A load: records a minute of an episode, drawn by its seed."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Load(Protocol):
    """Draws the load of an episode."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...

    def draw(self, minutes: int, rng: np.random.Generator) -> tuple[Floats, int]:
        """(minutes,) records, and the minute of the week at which the first is."""


@dataclass(frozen=True)
class Counts:
    """Counts of a trace; episodes begin anywhere in a part of it, and go on from its begin."""

    name: str
    description: str
    counts: Floats  # (minutes of the part,)
    first_minute: int  # of the part, in the week

    def draw(self, minutes: int, rng: np.random.Generator) -> tuple[Floats, int]:
        start = int(rng.integers(len(self.counts)))
        places = (start + np.arange(minutes)) % len(self.counts)
        return self.counts[places], (self.first_minute + start) % (7 * 1440)
