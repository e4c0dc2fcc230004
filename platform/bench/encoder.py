"""Supervised test of Decima's encoder: the critical path of random DAGs, also of deeper ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from loadmaster.models.decima.critical_path import train_and_measure
from loadmaster.platform.bench.measurements import Figure

ITERATIONS = 3000


def measure(say: Callable[[str], None]) -> Iterator[Figure]:
    """Relative errors; `error_blind` is that of predicting the mean."""
    say(f"decima: {ITERATIONS} iterations of supervised training (about a minute)")
    errors = train_and_measure(ITERATIONS)
    yield Figure("decima/encoder/critical_path/error_8_levels", 100 * errors.trained_depth, "%")
    yield Figure("decima/encoder/critical_path/error_12_levels", 100 * errors.deeper, "%")
    yield Figure("decima/encoder/critical_path/error_blind", 100 * errors.blind, "%")
