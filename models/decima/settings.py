"""What a user may set about Decima's network."""

from __future__ import annotations

from pydantic import PositiveInt

from loadmaster.envs.dag_scheduling.describe import conditions
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.settings import Settings
from loadmaster.models.manifest import Manifest, describe_training, training_environment


class DecimaSettings(Settings):
    """Its size, and the two parts an ablation takes away."""

    width: PositiveInt = 8  # numbers that describe a stage, a job or the cluster
    hidden: PositiveInt = 16  # of the layers in between
    graph: bool = True  # False: a stage knows itself, and its job's and the cluster's sums
    limits: bool = True  # False: a job may always hold every executor


# What a bundle of Decima's was trained on. Lists ask: this needs neither torch nor numba.


def training_settings(manifest: Manifest) -> DagSchedulingSettings:
    """The episodes it has learnt from."""
    return training_environment(manifest, DagSchedulingSettings)


def trained_on(manifest: Manifest) -> str:
    """The same in words."""
    return describe_training(manifest, DagSchedulingSettings, in_words)


def in_words(settings: DagSchedulingSettings) -> str:
    goal = "" if settings.objective == "makespan" else ", objective jct"  # else it is told anyway
    return f"{settings.workload}, {conditions(settings)}{goal}"
