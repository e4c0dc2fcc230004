"""What a bundle of Decima's was trained on. Lists ask: this needs neither torch nor numba."""

from __future__ import annotations

from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.wording import conditions
from loadmaster.models.manifest import Manifest, trained_in_words, training_environment


def training_settings(manifest: Manifest) -> DagSchedulingSettings:
    """The episodes it has learnt from."""
    return training_environment(manifest, DagSchedulingSettings)


def trained_on(manifest: Manifest) -> str:
    """The same in words."""
    return trained_in_words(manifest, DagSchedulingSettings, in_words)


def in_words(settings: DagSchedulingSettings) -> str:
    goal = "" if settings.objective == "makespan" else ", objective jct"  # else it is told anyway
    return f"{settings.workload}, {conditions(settings)}{goal}"
