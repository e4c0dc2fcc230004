"""From a bundle to something that decides. Each system has a module here; this is what it offers.

`System.policies_at` refers to an object with the methods of `Policies`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from loadmaster.envs.settings import Settings
    from loadmaster.models.bundle import Bundle
    from loadmaster.models.manifest import Manifest


@dataclass(frozen=True)
class Options:
    """Some of what could have been chosen, the likeliest first."""

    heading: str
    columns: tuple[str, ...]  # what is told of each, beside its name and probability
    names: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]  # a row an option
    probabilities: tuple[float, ...]
    chosen: int  # which of them it was
    others: int  # how many more could have been chosen


@dataclass(frozen=True)
class Explanation:
    """A decision of an episode with its reasons, in words; `record` is the same for scripts."""

    time_s: float
    situation: str
    options: tuple[Options, ...]
    outcome: str
    record: dict[str, Any]


class LearnedPolicy(Protocol):
    """A trained network at work. `workload` is whatever the environment loads for its episodes."""

    def run(self, settings: Any, seed: int, workload: Any, *, record: bool = False) -> Any:
        """The episode of `seed` under its best decisions; called from several threads."""
        ...

    def explain(
        self, settings: Any, seed: int, workload: Any, moments: int
    ) -> tuple[Explanation, ...]:
        """Up to `moments` decisions spread over that episode, where there was a choice."""
        ...


class Policies(Protocol):
    """What a system knows about its bundles."""

    def load(self, bundle: Bundle) -> LearnedPolicy: ...

    def settings(self, manifest: Manifest) -> Settings:
        """Those of the environment it was trained in."""
        ...

    def trained_on(self, manifest: Manifest) -> str:
        """The same in words; quick, since lists show it."""
        ...

    def distance(self, manifest: Manifest, settings: Any) -> tuple[float, ...]:
        """How far `settings` are from what it was trained on: of two, the lesser one fits."""
        ...

    def is_compiled(self) -> bool:
        """False: the first episode compiles."""
        ...
