"""A measured figure, and the figure a peer is known for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One line of a benchmark; `peer` is in the same unit, from the source `peer_name` tells."""

    name: str
    value: float
    unit: str
    peer: float | None = None
    peer_name: str = ""
    higher_is_better: bool = True

    @property
    def ratio(self) -> float | None:
        """How many times better than the peer."""
        if self.peer is None or not self.value:
            return None
        return self.value / self.peer if self.higher_is_better else self.peer / self.value
