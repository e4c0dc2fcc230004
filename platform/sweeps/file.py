"""Reads a sweep file and checks all of it before anything runs."""

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path

from loadmaster.envs.errors import InputError
from loadmaster.envs.registry import System, find_system
from loadmaster.envs.settings import parse_assignments
from loadmaster.platform.sweeps.settings import Sweep, SweepSettings
from loadmaster.platform.sweeps.space import (
    KINDS,
    VARIANT,
    Dimension,
    Leaf,
    Space,
    dimension,
    first_error,
    in_words,
    is_distribution,
    leaves,
    not_a_distribution,
)
from loadmaster.platform.sweeps.space import Path as ConfigPath
from loadmaster.platform.training.config import BaseConfig, Recipe
from loadmaster.platform.training.yaml_with_lines import Document, Keys, read_document


def check_environment(document: Document, space: Space, recipe: Recipe) -> None:
    """Apply the system's own checks, such as that a workload exists."""
    try:
        recipe.check(space.kind.model_validate(space.values()))
    except InputError as fault:
        raise document.fault(("base", "environment"), str(fault)) from None
    for found in space.dimensions:
        sets_environment = any(path[0] == "environment" for path in found.paths)
        for value in found.probes() if sets_environment else ():
            try:
                recipe.check(space.kind.model_validate(space.values(found.assignments(value))))
            except InputError as fault:
                raise found.leaf.fault(f"may become {in_words(value)}: {fault}") from None


def check_together(document: Document, sweep: Sweep, base: BaseConfig) -> None:
    """Check settings against each other."""
    fault, settings, end = document.fault, sweep.settings, sweep.iterations
    asha, optuna = settings.scheduler.asha, settings.searcher.optuna
    every = base.validation.every if settings.metric == "validation" else 1
    rung = ("scheduler", "asha", "max_iterations")
    given: Keys = ("stop", "iterations")
    if settings.stop.iterations is None:
        given = rung if asha and asha.max_iterations else ("base", "training", "iterations")
    if end < every:
        before = f"{end} iterations end before the first validation, which is every {every}"
        raise fault(given, f"{before}; expected more, or validation.every: {end} in base")
    if asha and (asha.max_iterations or end) > end:
        raise fault(rung, f"{asha.max_iterations} is beyond stop.iterations, {end}")
    if asha and not every <= asha.grace_iterations <= (asha.max_iterations or end):
        expected = f"expected {every} (the first validation) to {end} (a trial's end)"
        raise fault(("scheduler", "asha", "grace_iterations"), expected)
    if end % every:
        multiple = f"{end} is no multiple of validation.every, {every}"
        raise fault(given, f"{multiple}: a trial would end without a validation")
    if optuna and importlib.util.find_spec("optuna") is None:
        expected = "expected pip install 'loadmaster[optuna]', or random"
        raise fault(("searcher",), f"Optuna is not installed; {expected}")
    if settings.scheduler.pbt and (optuna or settings.searcher.grid):
        raise fault(("searcher",), "pbt draws by itself; expected random")
    for found in sweep.space.dimensions if settings.scheduler.pbt else ():
        if any(path[0] == "network" for path in found.paths):
            raise found.leaf.fault("pbt copies weights between trials, so networks must agree")
    cpus, gpus = settings.resources.cpus_per_trial, settings.resources.gpus_per_trial
    others = sweep.cpus_of_others
    if cpus is not None and cpus <= others:
        few = f"{cpus:g} is too few for the trial's process and {others:g} workers and learners"
        expected = f"expected {others + 1:g}, or fewer rollouts.workers in base"
        raise fault(("resources", "cpus_per_trial"), f"{few}; {expected}")
    if gpus and not sweep.space.most(("resources", "gpus")):
        unused = "nothing would use it; expected resources.gpus in base"
        raise fault(("resources", "gpus_per_trial"), unused)


def load_sweep(
    path: Path, assignments: Sequence[str] = (), trials: int | None = None, name: str | None = None
) -> Sweep:
    """Read a sweep file; errors name its line and key.

    `trials` overrides its number of trials; that of a grid is fixed. `assignments` (`a.b=c`)
    override its base; a searched setting that is assigned is fixed.
    """
    document = read_document(path)
    settings = _settings(document)
    if trials is not None:
        if trials < 1:
            raise InputError(f"--trials is {trials}; expected 1 or more")
        settings = settings.model_copy(update={"trials": trials})
    system = _system(document, settings.system)
    recipe = system.load("training")
    space = _space(document, settings, recipe.config_class, assignments)
    space.check()
    if settings.searcher.grid:
        settings = settings.model_copy(update={"trials": _grid_size(document, space, trials)})
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
        pass  # raises for an unknown key, with the nearest name
    if found := first_error(SweepSettings, document.values):
        path, message = found
        if message == "Field required":
            message = "missing; expected in every sweep"
        raise document.fault(path, message)
    return SweepSettings.model_validate(document.values)


def _system(document: Document, name: str) -> System:
    try:
        system = find_system(name)
    except InputError as fault:
        raise document.fault(("system",), str(fault)) from None
    if not system.has("training"):
        raise document.fault(("system",), f"{name!r} cannot be trained")
    return system


def _space(
    document: Document,
    settings: SweepSettings,
    kind: type[BaseConfig],
    assignments: Sequence[str],
) -> Space:
    assigned = list(leaves(kind, parse_assignments(assignments), lambda path: "--set"))
    base = list(leaves(kind, settings.base, _line_in(document, "base"), is_distribution))
    searched = list(leaves(kind, settings.space, _line_in(document, "space"), is_distribution))
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
    variants = _variants(document, settings, kind)
    for leaf in (leaf for own in variants.values() for leaf in own):
        for other in (*searched, *assigned):
            if _overlap(leaf, other):
                name = f"{'.'.join(other.path)}, at {other.where}"
                raise leaf.fault(f"set by a variant and by {name}; expected one of them")
    kept = [leaf for leaf in (*base, *searched) if not any(_overlap(leaf, a) for a in assigned)]
    dimensions = [dimension(leaf) for leaf in kept if is_distribution(leaf.value)]
    if variants:
        leaf = Leaf((VARIANT,), None, document.where(("variants",)))
        dimensions.insert(0, Dimension(leaf, VARIANT, tuple(variants), variants))
    if not dimensions:
        words = ", ".join(KINDS)
        raise document.fault(("space",), f"nothing to search; expected a setting with {words}")
    fixed = [leaf for leaf in kept if not is_distribution(leaf.value)]
    return Space(kind, (*fixed, *assigned), tuple(dimensions))


def _line_in(document: Document, *outer: str) -> Callable[[ConfigPath], str]:
    return lambda path: document.where((*outer, *path))


def _variants(
    document: Document, settings: SweepSettings, kind: type[BaseConfig]
) -> dict[str, tuple[Leaf, ...]]:
    """Settings of each variant, by its name."""
    found = {}
    for name, values in settings.variants.items():
        own = tuple(leaves(kind, values, _line_in(document, "variants", name), is_distribution))
        for leaf in own:
            if is_distribution(leaf.value):
                raise leaf.fault("is set by a variant, not searched; expected a value")
        found[name] = own
    return found


def _grid_size(document: Document, space: Space, trials: int | None) -> int:
    """Number of combinations of a grid, which alone is its number of trials."""
    for found in space.dimensions:
        if found.numeric:
            raise found.leaf.fault(f"a grid has no {found.kind}; expected {{choice: [..]}}")
    size = space.combinations
    if document.values.get("trials", size) != size:
        raise document.fault(("trials",), f"the grid has {size} combinations; expected no trials")
    if trials not in (None, size):
        raise InputError(f"--trials is {trials}; expected none: the grid has {size} combinations")
    return size


def _overlap(one: Leaf, other: Leaf) -> bool:
    """Whether both set the same setting."""
    return any(
        all(a == b for a, b in zip(mine, theirs, strict=False))
        for mine in _settings_of(one)
        for theirs in _settings_of(other)
    )


def _settings_of(leaf: Leaf) -> list[ConfigPath]:
    """The settings that a leaf sets."""
    return dimension(leaf).paths if is_distribution(leaf.value) else [leaf.path]
