"""Settings of Decima's network, and of the environment that a bundle was trained in.

Lists of bundles import this module, so it needs neither torch nor numba.
"""

import math

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from loadmaster.envs.dag_scheduling.describe import describe_episode
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import Settings
from loadmaster.models.manifest import (
    Manifest,
    describe_training,
    mixture_size,
    training_environment,
)

# Settings of least weight in `distance`.
MINOR_SETTINGS = ("workload", "total_executors", "interpolation", "warmup_s", "jobs_at_start")


class PriorSettings(Settings):
    """The rule srpt-caps as a prior of the scores: its parameters, and how much it weighs."""

    # What the rule's parameters do is in baselines/remaining_work.py; `tilt_prior` changes them.
    scale: PositiveFloat = 0.18
    alpha: float = 0.45
    share: float = 0.9
    stay: float = 1.0
    path: PositiveFloat = 0.2  # it also orders the stages of a job
    # Logarithm of how far beyond its cap a job may go before executors idle; None: no bound.
    reach: NonNegativeFloat | None = None
    strength: PositiveFloat = 5.0  # of a difference of keys, in a stage's score
    limit_strength: PositiveFloat = 10.0  # of its squared distance from the cap, in a limit's score
    beyond: NonNegativeFloat = 5.0  # what a stage loses whose job is at or beyond its cap


class DecimaSettings(Settings):
    """Size of the network, its prior, and the parts that ablations remove."""

    width: PositiveInt = 8  # numbers that describe a stage, a job or the cluster
    hidden: PositiveInt = 16  # of the layers in between
    graph: bool = True  # False: no messages between stages
    summaries: bool = True  # False: jobs and the cluster have no embeddings, only their inputs
    path_inputs: bool = True  # False: the longest path ahead is no input; the prior still has it
    limits: bool = True  # False: a job may always hold every executor
    prior: PriorSettings | None = None  # rule to start from; None: the network alone decides


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

    Compared in this order: objective, whether both have several executor classes, whether the
    policy was trained on a mixture, kind of arrivals, cost of moving executors, executor classes,
    interarrival time, number of minor settings that differ.
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
        not (own.executor_classes and settings.executor_classes),
        not mixture_size(manifest),
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
