"""What validation measures, in words."""

from __future__ import annotations

WORDS = {"jct_s": "mean JCT", "makespan_s": "makespan"}


def word(metric: str) -> str:
    return WORDS.get(metric, metric.removesuffix("_s"))


def unit(metric: str) -> str:
    """With a space before it; a metric whose name does not end in `_s` has none."""
    return " s" if metric.endswith("_s") else ""


def with_unit(metric: str) -> str:
    """As a heading."""
    return f"{word(metric)},{unit(metric)}" if unit(metric) else word(metric)


def percent(value: float, reference: float) -> str:
    """`value` against `reference`."""
    return f"{100 * (value / reference - 1):+.1f}%"
