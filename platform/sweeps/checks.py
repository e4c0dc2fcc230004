"""Faults that no single key of a sweep file shows."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from loadmaster.envs.errors import InputError
from loadmaster.platform.sweeps.marked_yaml import Document, Keys
from loadmaster.platform.sweeps.space import Space, in_words
from loadmaster.platform.sweeps.sweep import Sweep

if TYPE_CHECKING:
    from loadmaster.platform.training.config import TrainingConfig
    from loadmaster.platform.training.recipe import Recipe


def check_environment(document: Document, space: Space, recipe: Recipe) -> None:
    """What only the system itself knows, such as whether a workload is there."""
    try:
        recipe.check(space.kind.model_validate(space.values()))
    except InputError as fault:
        raise document.fault(("base", "environment"), str(fault)) from None
    for found in space.dimensions:
        for value in found.probes() if found.leaf.path[0] == "environment" else ():
            try:
                recipe.check(space.kind.model_validate(space.values({found.leaf.path: value})))
            except InputError as fault:
                raise found.leaf.fault(f"may become {in_words(value)}: {fault}") from None


def check_together(document: Document, sweep: Sweep, base: TrainingConfig) -> None:
    """What is sound by itself, but not with the rest of the file."""
    settings = sweep.settings
    asha, pbt = settings.scheduler.asha, settings.scheduler.pbt
    every = base.validation.every if settings.metric == "validation" else 1
    given: Keys = ("stop", "iterations")
    if settings.stop.iterations is None:
        rung = ("scheduler", "asha", "max_iterations")
        given = rung if asha and asha.max_iterations else ("base", "training", "iterations")
    if sweep.iterations < every:
        raise document.fault(
            given,
            f"{sweep.iterations} iterations end before the first validation, which is every "
            f"{every}; expected more, or validation.every: {sweep.iterations} in base",
        )
    if asha and asha.max_iterations and asha.max_iterations > sweep.iterations:
        raise document.fault(
            ("scheduler", "asha", "max_iterations"),
            f"{asha.max_iterations} is beyond stop.iterations, {sweep.iterations}",
        )
    if asha and not every <= asha.grace_iterations <= (asha.max_iterations or sweep.iterations):
        raise document.fault(
            ("scheduler", "asha", "grace_iterations"),
            f"expected {every} (the first validation) to {sweep.iterations} (a trial's end)",
        )
    if sweep.iterations % every:
        raise document.fault(
            given,
            f"{sweep.iterations} is no multiple of validation.every, {every}: the end of a trial "
            "would go unjudged",
        )
    if settings.searcher.optuna and importlib.util.find_spec("optuna") is None:
        raise document.fault(
            ("searcher",),
            "Optuna is not installed; expected pip install 'loadmaster[optuna]', or random",
        )
    if pbt:
        if settings.searcher.optuna:
            raise document.fault(("searcher",), "pbt draws by itself; expected random")
        for found in sweep.space.dimensions:
            if found.leaf.path[0] == "network":
                raise found.leaf.fault("pbt copies weights between trials, so networks must agree")
    cpus, gpus = settings.resources.cpus_per_trial, settings.resources.gpus_per_trial
    workers = sweep.space.most(("rollouts", "workers"))
    if cpus is not None and cpus <= workers:
        raise document.fault(
            ("resources", "cpus_per_trial"),
            f"{cpus:g} is too few for a learner and {workers:g} rollout workers; expected "
            f"{workers + 1:g}, or fewer rollouts.workers in base",
        )
    if gpus and not sweep.space.most(("resources", "gpus")):
        raise document.fault(
            ("resources", "gpus_per_trial"), "nothing would use it; expected resources.gpus in base"
        )
