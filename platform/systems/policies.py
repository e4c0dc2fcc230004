"""Learned policies at work: running episodes, explaining decisions."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from loadmaster.models.policy import ExplainedDecision


class LearnedPolicy(Protocol):
    """A bundle that runs episodes. `workload` is what the environment loads for its episodes."""

    def run(self, settings: Any, seed: int, workload: Any, *, record: bool = False) -> Any:
        """Run the episode of `seed` without sampling; called from several threads."""
        ...

    def explain(
        self, settings: Any, seed: int, workload: Any, count: int
    ) -> tuple[ExplainedDecision, ...]:
        """Explain up to `count` decisions with a choice, spread over the episode of `seed`."""
        ...

    def is_compiled(self) -> bool:
        """Whether the compiled episode loop is in the cache."""
        ...


@runtime_checkable
class TimedPolicy(Protocol):
    """A policy whose decisions are timed without the environment."""

    def decision_s(self, settings: Any, seed: int, workload: Any, count: int) -> float:
        """Median processor time of the first `count` decisions of the episode of `seed`."""
        ...


def spread(numbers: Sequence[int], count: int) -> set[int]:
    """`count` of the numbers at even distances; all where there are fewer."""
    if len(numbers) <= count:
        return set(numbers)
    return {numbers[int((place + 0.5) * len(numbers) / count)] for place in range(count)}


def spread_notable(notable: Sequence[bool], count: int) -> set[int]:
    """`count` places at even distances: as many notable ones as possible, then others."""
    kept = spread([place for place, each in enumerate(notable) if each], count)
    others = [place for place, each in enumerate(notable) if not each]
    return kept | spread(others, count - len(kept))
