"""Policies of bundles: how a system's bundles are loaded, run and explained.

`System.policies_at` refers to an object with the methods of `Policies`. Systems of this package
follow a convention and use `ConventionalPolicies`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from loadmaster.models.policy import Explanation as OptionsExplanation
from loadmaster.models.policy import Option

if TYPE_CHECKING:  # lists of bundles import this module without torch
    from loadmaster.envs.settings import Settings
    from loadmaster.models.bundle import Bundle
    from loadmaster.models.manifest import Manifest


@dataclass(frozen=True)
class ExplainedDecision:
    """A decision of an episode; `record` is its form in JSON."""

    time_s: float
    explanation: OptionsExplanation
    record: dict[str, Any] = field(default_factory=dict)


class LearnedPolicy(Protocol):
    """A bundle that runs episodes. `workload` is what the environment loads for its episodes."""

    def run(self, settings: Any, seed: int, workload: Any, *, record: bool = False) -> Any:
        """Run the episode of `seed` without sampling; called from several threads."""
        ...

    def explain(
        self, settings: Any, seed: int, workload: Any, moments: int
    ) -> tuple[Explanation, ...]:
        """Explain up to `moments` decisions with a choice, spread over the episode of `seed`."""
        ...


class Policies(Protocol):
    """The bundles of a system."""

    def load(self, bundle: Bundle) -> LearnedPolicy: ...

    def settings(self, manifest: Manifest) -> Settings:
        """Settings of the environment that the bundle was trained in."""
        ...

    def trained_on(self, manifest: Manifest) -> str:
        """The same in words, without importing torch: lists show it."""
        ...

    def distance(self, manifest: Manifest, settings: Any) -> tuple[float, ...]:
        """Distance of `settings` from those of the training; the smaller tuple is nearer."""
        ...

    def is_compiled(self) -> bool:
        """Whether the compiled episode loop is in the cache."""
        ...


@dataclass(frozen=True)
class ConventionalPolicies:
    """Policies of a system of this package, from the modules at their usual places.

    `models.<system>.settings` has `training_settings`, `trained_on` and `distance`;
    `platform.systems.<system>.evaluation` has `load_policy`, and `rollout` the compiled loop
    `run_network`.
    """

    system: str

    def load(self, bundle: Bundle) -> LearnedPolicy:
        evaluation = import_module(f"loadmaster.platform.systems.{self.system}.evaluation")
        return cast(LearnedPolicy, evaluation.load_policy(bundle))

    def settings(self, manifest: Manifest) -> Settings:
        return cast("Settings", self._training().training_settings(manifest))

    def trained_on(self, manifest: Manifest) -> str:
        return str(self._training().trained_on(manifest))

    def distance(self, manifest: Manifest, settings: Any) -> tuple[float, ...]:
        return cast(tuple[float, ...], self._training().distance(manifest, settings))

    def is_compiled(self) -> bool:
        from loadmaster.envs.compiled import cache_folder

        return any(cache_folder().glob(f"{self.system}_*/rollout.run_network-*.nbi"))

    def _training(self) -> Any:
        return import_module(f"loadmaster.models.{self.system}.settings")


def spread(numbers: Sequence[int], count: int) -> set[int]:
    """`count` of the numbers at even distances; all where there are fewer."""
    if len(numbers) <= count:
        return set(numbers)
    return {numbers[int((place + 0.5) * len(numbers) / count)] for place in range(count)}


# The older form of an explanation, which DAS still returns; it goes when DAS returns
# `ExplainedDecision`.


@dataclass(frozen=True)
class Options:
    """Options of a choice, the best first."""

    heading: str
    columns: tuple[str, ...]
    names: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]  # a row an option
    probabilities: tuple[float, ...]
    chosen: int
    others: int  # options not listed


@dataclass(frozen=True)
class Explanation:
    """A decision of an episode; `record` is its form in JSON."""

    time_s: float
    situation: str
    options: tuple[Options, ...]
    outcome: str
    record: dict[str, Any]

    @property
    def explanation(self) -> OptionsExplanation:
        return OptionsExplanation(
            f"{self.situation}: {self.outcome}",
            {
                each.heading: [
                    Option(
                        name, 0.0, None, probability, place == each.chosen,
                        dict(zip(each.columns, cells, strict=True)),
                    )
                    for place, (name, cells, probability) in enumerate(
                        zip(each.names, each.cells, each.probabilities, strict=True)
                    )
                ]
                for each in self.options
            },
            {each.heading: each.others for each in self.options},
        )  # fmt: skip
