"""Adaptation of a system to applications that it was not trained on, beside its rivals.

What is measured is in the module `adaptation_bench` of a system.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from loadmaster.envs.errors import InputError
from loadmaster.envs.registry import find_system
from loadmaster.platform.bench.measurements import Figure, systems_with


@dataclass(frozen=True)
class AdaptationEffort:
    """How much is measured; 20 applications and 5 seeds are the full protocol."""

    applications: int = 3
    seeds: int = 1  # trainings for each application
    episodes: int = 20  # of a training
    judged: int = 8  # episodes that the policy is judged in, before each and after the last
    logged: int = 20  # applications that are known from a log alone
    policies: Mapping[str, str] = field(default_factory=dict)  # bundles by the names of rivals


def measure(
    report_step: Callable[[str], None],
    system: str | None = None,
    effort: AdaptationEffort | None = None,
) -> Iterator[Figure]:
    for name in systems_with("adaptation_bench", system):
        run = find_system(name).load("adaptation_bench")
        yield from run(report_step, effort or AdaptationEffort())


def effort_of(
    applications: int | None, seeds: int | None, episodes: int | None, policies: Sequence[str]
) -> AdaptationEffort:
    """The effort with these counts, where they are given, and bundles of texts NAME=BUNDLE."""
    counts = {"applications": applications, "seeds": seeds, "episodes": episodes}
    given = {name: count for name, count in counts.items() if count is not None}
    return AdaptationEffort(policies=_read_policies(policies), **given)


def _read_policies(given: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        name, equals, bundle = text.partition("=")
        if not (name and equals and bundle) or name in found:
            raise InputError(f"--policy {text}; expected NAME=BUNDLE, each name once")
        found[name] = bundle
    return found
