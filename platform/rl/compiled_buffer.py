"""Tapes that compiled loops write on: tables that grow, for one rollout after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import njit_internal

FIRST_ROOM = 256  # decisions; it doubles when it is used up
FULL = -1  # a loop's status beside those of the simulator: no room for another decision

Tape = TypeVar("Tape", bound=NamedTuple)


class CompiledBuffer(Generic[Tape]):
    """A tape whose first table counts the rows in use of the others.

    It keeps the length it grew to: to ask for fresh memory in every rollout took a quarter of the
    time.
    """

    def __init__(self, blank: Callable[[int], Tape]) -> None:
        self.tape = blank(FIRST_ROOM)

    def rewind(self) -> None:
        self.tape[0][:] = 0

    def lengthen(self) -> None:
        """Twice the room, the same contents."""
        used, *tables = self.tape
        longer = (np.concatenate([table, np.zeros_like(table)]) for table in tables)
        self.tape = self.tape._make([used, *longer])


@njit_internal
def copy_rows(source: NDArray[Any], target: NDArray[Any], start: int, count: int) -> None:
    """Cell by cell: to assign a whole row, a compiled function would have to allocate."""
    for i in range(count):
        for j in range(source.shape[1]):
            target[start + i, j] = source[i, j]
