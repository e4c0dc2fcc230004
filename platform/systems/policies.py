"""Bundles of a system at work: loading, running episodes, explaining decisions.

The functions are found in the system's modules by name: `trained_on`, `training_settings` and
`distance` in `settings.py` of its models, `load_policy` in `evaluation.py` of its platform folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

from loadmaster.models.policy import Explanation

if TYPE_CHECKING:  # lists of bundles import this module without torch
    from loadmaster.envs.registry import System
    from loadmaster.envs.settings import Settings
    from loadmaster.models.bundle import Bundle
    from loadmaster.models.manifest import Manifest


@dataclass(frozen=True)
class ExplainedDecision:
    """A decision of an episode; `record` is its form in JSON."""

    time_s: float
    explanation: Explanation
    record: dict[str, Any] = field(default_factory=dict)


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


@dataclass(frozen=True)
class Policies:
    """The bundles of a system."""

    system: System

    def load(self, bundle: Bundle) -> LearnedPolicy:
        return cast(LearnedPolicy, self.system.load("load_policy")(bundle))

    def settings(self, manifest: Manifest) -> Settings:
        """Settings of the environment that the bundle was trained in."""
        return cast("Settings", self.system.load("training_settings")(manifest))

    def trained_on(self, manifest: Manifest) -> str:
        """The same in words, without importing torch: lists show it."""
        return str(self.system.load("trained_on")(manifest))

    def distance(self, manifest: Manifest, settings: Any) -> tuple[float, ...]:
        """Distance of `settings` from those of the training; the smaller tuple is nearer."""
        return cast(tuple[float, ...], self.system.load("distance")(manifest, settings))


def spread(numbers: Sequence[int], count: int) -> set[int]:
    """`count` of the numbers at even distances; all where there are fewer."""
    if len(numbers) <= count:
        return set(numbers)
    return {numbers[int((place + 0.5) * len(numbers) / count)] for place in range(count)}
