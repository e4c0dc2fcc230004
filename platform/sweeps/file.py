"""A sweep file, read and checked whole before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import parse_assignments
from loadmaster.platform.sweeps.checks import check_environment, check_together
from loadmaster.platform.sweeps.config_tree import Leaf, complaint, leaves
from loadmaster.platform.sweeps.config_tree import Path as ConfigPath
from loadmaster.platform.sweeps.marked_yaml import Document, read_document
from loadmaster.platform.sweeps.settings import SweepSettings
from loadmaster.platform.sweeps.space import (
    KINDS,
    Dimension,
    Space,
    dimension,
    is_distribution,
    not_a_distribution,
)
from loadmaster.platform.sweeps.sweep import Sweep
from loadmaster.platform.systems import System, find_system

if TYPE_CHECKING:
    from loadmaster.platform.training.config import TrainingConfig


def load_sweep(
    path: Path, assignments: Sequence[str] = (), trials: int | None = None, name: str | None = None
) -> Sweep:
    """The sweep in a file; every fault names the line and the key.

    `assignments` (`a.b=c`) override its base; a searched setting that is assigned is fixed.
    """
    document = read_document(path)
    settings = _settings(document)
    if trials is not None:
        if trials < 1:
            raise InputError(f"--trials is {trials}; expected 1 or more")
        settings = settings.model_copy(update={"trials": trials})
    system = _system(document, settings.system)
    recipe = system.recipe
    space = _space(document, settings, recipe.config_class, assignments)
    space.check()
    base = space.kind.model_validate(space.values())
    check_environment(document, space, recipe)
    asha = settings.scheduler.asha
    iterations = (
        settings.stop.iterations
        or (asha.max_iterations if asha else None)
        or base.training.iterations
    )
    sweep = Sweep(
        name=name or f"{settings.system}-{path.stem}",
        text=document.text,
        settings=settings,
        system=system,
        space=space,
        assignments=tuple(assignments),
        iterations=iterations,
    )
    check_together(document, sweep, base)
    return sweep


def _settings(document: Document) -> SweepSettings:
    for _ in leaves(SweepSettings, document.values, document.where):
        pass  # an unknown key is told with the nearest name
    if found := complaint(SweepSettings, document.values):
        message = found.message
        if message == "Field required":
            message = "missing; every sweep has one"
        raise document.fault(found.path, message)
    return SweepSettings.model_validate(document.values)


def _system(document: Document, name: str) -> System:
    try:
        system = find_system(name)
    except InputError as fault:
        raise document.fault(("system",), str(fault)) from None
    if not system.recipe_at:
        raise document.fault(("system",), f"{name!r} cannot be trained, so there is no sweep")
    return system


def _space(
    document: Document,
    settings: SweepSettings,
    kind: type[TrainingConfig],
    assignments: Sequence[str],
) -> Space:
    def line_in(part: str) -> Any:
        return lambda path: document.where((part, *path))

    assigned = list(leaves(kind, parse_assignments(assignments), lambda path: "--set"))
    base = list(leaves(kind, settings.base, line_in("base"), is_distribution))
    searched = list(leaves(kind, settings.space, line_in("space"), is_distribution))
    for leaf in (*base, *assigned):
        if is_distribution(leaf.value):
            raise leaf.fault("is set, not searched; expected a value, or the key under space")
    for leaf in searched:
        if isinstance(leaf.value, dict) and not is_distribution(leaf.value):
            raise not_a_distribution(leaf)
    for number, leaf in enumerate(searched):
        for other in (*base, *searched[:number]):
            if _overlap(leaf, other):
                name = ".".join(other.path)
                raise leaf.fault(f"{name} is set as well, at {other.where}; expected one of them")
    kept = [leaf for leaf in (*base, *searched) if not any(_overlap(leaf, a) for a in assigned)]
    dimensions: tuple[Dimension, ...] = tuple(
        dimension(leaf) for leaf in kept if is_distribution(leaf.value)
    )
    if not dimensions:
        words = ", ".join(KINDS)
        raise document.fault(("space",), f"nothing to search; expected a setting with {words}")
    fixed = [leaf for leaf in kept if not is_distribution(leaf.value)]
    return Space(kind, (*fixed, *assigned), dimensions)


def _overlap(one: Leaf, other: Leaf) -> bool:
    """Whether both would give the same setting a value."""
    return any(
        all(a == b for a, b in zip(mine, theirs, strict=False))
        for mine in _given(one)
        for theirs in _given(other)
    )


def _given(leaf: Leaf) -> list[ConfigPath]:
    """The settings that a leaf gives a value; a choice between mappings may give several."""
    choices = leaf.value.get("choice") if is_distribution(leaf.value) else None
    if not isinstance(choices, list) or not all(isinstance(c, dict) and c for c in choices):
        return [leaf.path]
    return [(*leaf.path, key) for choice in choices for key in choice]
