"""Connections kept open between calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

MOST = 16


class Keepable(Protocol):
    def stale(self) -> bool: ...
    def close(self) -> None: ...


C = TypeVar("C", bound=Keepable)


class Idle(Generic[C]):
    """The latest used first, so that surplus ones age and go.

    They belong to whoever opened them: a process (a fork would read its parent's answers) or an
    event loop. No lock: appending to a list and popping from it are each one step for threads.
    """

    def __init__(self, owner: Callable[[], object]) -> None:
        self._ask_owner = owner
        self._owner: object = None
        self._kept: list[C] = []

    def take(self) -> C | None:
        """One that is still good."""
        if self._owner != (owner := self._ask_owner()):
            self.clear()
            self._owner = owner
        while True:
            try:
                kept = self._kept.pop()
            except IndexError:
                return None
            if not kept.stale():
                return kept
            kept.close()

    def keep(self, connection: C) -> None:
        if len(self._kept) < MOST and self._owner == self._ask_owner():
            self._kept.append(connection)
        else:
            connection.close()

    def clear(self) -> None:
        while self._kept:
            self._kept.pop().close()
