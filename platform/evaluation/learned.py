"""Learned policies among those that are compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from loadmaster.envs.errors import InputError
from loadmaster.models import manifest as shipped
from loadmaster.platform.evaluation.adapters import EnvironmentAdapter, EvaluationSetup
from loadmaster.platform.systems.bundle_ref import BundleRef, best_pretrained, find_policy
from loadmaster.platform.systems.registry import System

Learned = dict[str, BundleRef]  # by the name it goes by here, in the order they were asked for


def choose_learned(
    subject: EnvironmentAdapter, wanted: Sequence[str], system: System | None, settings: Any
) -> tuple[list[str], Learned]:
    """The names of all who were asked for, and the bundles behind those that are learned.

    Where nobody was and a system is judged, its pretrained policy that fits best takes part.
    """
    built_in = (*subject.baselines, *subject.references)
    names: list[str] = []
    learned: Learned = {}
    for spec in wanted:
        if spec in built_in:
            names.append(spec)
            continue
        found = find_policy(spec, built_in)
        check_belongs(found, subject.environment, system)
        if any(found.folder.samefile(other.folder) for other in learned.values()):
            continue
        name = distinct(found.manifest.name, (*built_in, *learned))
        names.append(name)
        learned[name] = found
    if system is not None and not wanted:
        found = best_pretrained(system, settings)
        name = distinct(found.manifest.name, built_in)
        return [name], {name: found}
    return names, learned


def check_belongs(found: BundleRef, environment: str, system: System | None = None) -> None:
    """Refuse a bundle that decides about something else."""
    if system is not None and found.system.name != system.name:
        raise InputError(
            f"{found.folder} is a policy of the system {found.system.name!r}; "
            f"expected one of {system.name!r}"
        )
    if found.system.environment != environment:
        raise InputError(
            f"{found.folder} decides in {found.system.environment!r}; "
            f"expected a policy for {environment!r}"
        )


def distinct(name: str, taken: Iterable[str]) -> str:
    """The name, with a number behind it where somebody else has it."""
    others, number, chosen = set(taken), 1, name
    while chosen in others:
        number += 1
        chosen = f"{name}-{number}"
    return chosen


def with_learned(trial: EvaluationSetup, learned: Learned) -> EvaluationSetup:
    """The trial with learned policies to run, and a note on each."""
    policies = {name: found.policy for name, found in learned.items()}

    def run(policy: str, seed: int) -> Any:
        if policy in policies:
            return policies[policy].run(trial.settings, seed, trial.bank)
        return trial.run(policy, seed)

    notes = tuple(f"{name}: {words(found)}" for name, found in learned.items())
    return replace(trial, run=run, notes=(*trial.notes, *notes))


def words(found: BundleRef) -> str:
    """Where it comes from."""
    origin = "pretrained" if _ships(found) else f"from {found.folder}"
    return f"{origin}, trained on {found.trained_on}"


def _ships(found: BundleRef) -> bool:
    return found.folder.parent == shipped.pretrained_folder()


def as_records(learned: Mapping[str, BundleRef]) -> dict[str, dict[str, Any]]:
    """For scripts: enough to know which weights were judged.

    A policy that ships goes by its name: where it is installed differs between machines.
    """
    return {
        name: {
            "system": found.system.name,
            "bundle": found.manifest.name,
            "folder": found.folder.name if _ships(found) else str(found.folder),
            "sha256": found.manifest.sha256,
            "trained_on": found.trained_on,
        }
        for name, found in learned.items()
    }
