"""What a bundle of Decima's was trained on. Lists ask: this needs neither torch nor numba."""

from __future__ import annotations

from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.wording import conditions
from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings
from loadmaster.models.manifest import Manifest


def training_settings(manifest: Manifest) -> DagSchedulingSettings:
    """The episodes it has learnt from."""
    try:
        return build_settings(DagSchedulingSettings, manifest.trained.get("environment") or {})
    except (InputError, TypeError, ValueError) as fault:
        raise InputError(
            f"bundle {manifest.name!r} does not say what it was trained on: {fault}"
        ) from None


def trained_on(manifest: Manifest) -> str:
    """The same in words."""
    try:
        settings = training_settings(manifest)
    except InputError:
        return "settings that this installation does not know"
    goal = "" if settings.objective == "makespan" else ", objective jct"  # else it is told anyway
    return f"{settings.workload}, {conditions(settings)}{goal}"
