"""A breaker: a worker that does not answer is left alone for a while."""

from __future__ import annotations


class Breaker:
    """Open after `failures` in a row; then one request in `retry_s` tries again."""

    def __init__(self, failures: int = 3, retry_s: float = 1.0) -> None:
        self._most, self._retry_s = failures, retry_s
        self._failed = 0
        self._next_try_s = 0.0

    @property
    def is_open(self) -> bool:
        return self._failed >= self._most

    def lets_through(self, now_s: float) -> bool:
        """Whether to ask the worker; while open, True is said once in `retry_s`."""
        if not self.is_open:
            return True
        if now_s < self._next_try_s:
            return False
        self._next_try_s = now_s + self._retry_s
        return True

    def succeeded(self) -> None:
        self._failed = 0

    def failed(self, now_s: float) -> None:
        self._failed += 1
        self._next_try_s = now_s + self._retry_s
