"""Settings of Decima's network, and of the environment that a bundle was trained in.

Lists of bundles import this module, so it needs neither torch nor numba.
"""

import math

from pydantic import PositiveInt

from loadmaster.envs.dag_scheduling.describe import describe_episode
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import Settings
from loadmaster.models.manifest import Manifest, describe_training, training_environment

# Settings of least weight in `distance`.
MINOR_SETTINGS = ("workload", "total_executors", "interpolation", "warmup_s", "jobs_at_start")


class DecimaSettings(Settings):
    """Size of the network, and the two parts that ablations remove."""

    width: PositiveInt = 8  # numbers that describe a stage, a job or the cluster
    hidden: PositiveInt = 16  # of the layers in between
    graph: bool = True  # False: no messages between stages
    limits: bool = True  # False: a job may always hold every executor


def training_settings(manifest: Manifest) -> DagSchedulingSettings:
    """Settings of the environment that the bundle was trained in."""
    return training_environment(manifest, DagSchedulingSettings)


def trained_on(manifest: Manifest) -> str:
    """The workload and conditions of the training, in words."""
    return describe_training(manifest, DagSchedulingSettings, _in_words)


def _in_words(settings: DagSchedulingSettings) -> str:
    # `describe_episode` names an objective other than jct.
    objective = "" if settings.objective == "makespan" else ", objective jct"
    return f"{settings.workload}, {describe_episode(settings)}{objective}"


def distance(manifest: Manifest, settings: DagSchedulingSettings) -> tuple[float, ...]:
    """Distance of `settings` from those of the training; the smaller tuple is nearer.

    Compared in this order: objective, kind of arrivals, cost of moving executors, executor
    classes, interarrival time, number of minor settings that differ.
    """
    try:
        own = training_settings(manifest)
    except InputError:
        return (math.inf,)
    gap = 0.0
    if own.arrivals == settings.arrivals == "poisson":
        gap = abs(math.log(_interarrival_s(own) / _interarrival_s(settings)))
    return (
        own.objective != settings.objective,
        own.arrivals != settings.arrivals,
        (own.moving_delay_s == 0) != (settings.moving_delay_s == 0),
        bool(own.executor_classes) != bool(settings.executor_classes),
        gap,
        sum(getattr(own, name) != getattr(settings, name) for name in MINOR_SETTINGS),
    )


def _interarrival_s(settings: DagSchedulingSettings) -> float:
    if settings.load is None:
        return settings.interarrival_s
    from loadmaster.envs.dag_scheduling.rollout import mean_interarrival_s
    from loadmaster.envs.dag_scheduling.workloads import load_workload

    return mean_interarrival_s(settings, load_workload(settings))
