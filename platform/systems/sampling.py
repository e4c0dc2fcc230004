"""Selection of the decisions of an episode that are explained."""

from __future__ import annotations

from collections.abc import Sequence


def spread(numbers: Sequence[int], count: int) -> set[int]:
    """`count` of the numbers at even distances; all where there are fewer."""
    if len(numbers) <= count:
        return set(numbers)
    return {numbers[int((place + 0.5) * len(numbers) / count)] for place in range(count)}
