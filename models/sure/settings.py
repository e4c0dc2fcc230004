"""Settings of SURE: the rule it starts from, its network, and a bundle's training.

Imports neither torch nor numba.
"""

import math
from typing import Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import Settings
from loadmaster.envs.stream_scaling.describe import describe_episode
from loadmaster.envs.stream_scaling.job_files import load_job
from loadmaster.envs.stream_scaling.settings import StreamScalingSettings
from loadmaster.models.manifest import Manifest, describe_training, training_environment

Sampler = Literal["learned", "random", "full", "temporal", "spatial", "none"]
Encoder = Literal["gin", "attention", "recurrent"]


class PriorSettings(Settings):
    """Parameters of the rule in prior.py, by a search on training seeds of all six jobs."""

    window_min: PositiveInt = 13  # minutes whose mean is the load
    drift: NonNegativeFloat = 0.12  # standard deviation of the load to come, relative
    horizon_min: PositiveFloat = 60.0  # in which a restart has to pay
    restart_cost: NonNegativeFloat = 1.57  # factor of the latency that a restart costs
    replay_min: NonNegativeFloat = 0.48  # of records that a restart repeats
    catch_up_min: PositiveFloat = 24.0  # in which a backlog is to be processed
    overload_min: NonNegativeFloat = 43.0  # latency of a load of twice the capacity
    least_min: NonNegativeFloat = 18.0  # between restarts
    slope: PositiveFloat = 6.0  # log-odds of acting: slope * (gain / cost - 1)
    log_odds: PositiveFloat = 6.0  # the highest, and negative the lowest


class SureSettings(Settings):
    """Sizes of the network, and its rivals and ablations as options.

    `sampler` is the part of the history that a task's embedding is made of:
      learned   snapshots, and neighbours in each, drawn by learned scores (SURE)
      random    as many, drawn with equal probabilities
      temporal  drawn snapshots of the task itself, no neighbours
      spatial   drawn neighbours in the newest snapshot
      full      all tasks in all snapshots, encoded once for the job
      none      the task's own newest snapshots, no graph (as TVW-RL and DREAM)
    """

    sampler: Sampler = "learned"
    # Of the full graph: also spatio-temporal attention (as ASTGCN), or recurrent graph convolution
    # (as CCRNN).
    encoder: Encoder = "gin"
    actions: Literal["task", "job"] = "task"  # job: one change for all tasks of the job

    width: PositiveInt = 50
    layers: PositiveInt = 3
    snapshots: PositiveInt = 10  # k1, drawn for each task
    neighbours: NonNegativeInt = 3  # k2, drawn in each of these
    hops: PositiveInt = 3  # upstream or downstream: how far away a neighbour may be
    temperature: PositiveFloat = 1.0  # of the draws: scores are divided by it
    log_std: float = Field(default=-3.0, ge=-5, le=2)  # initial value, of the changes
    # The network changes a decision only where the rule's log-odds are near 0: rare overloads cost
    # hundreds of times what a decision gains, and training contains few of them.
    gate_bound: PositiveFloat = 1.0  # of what the network adds to the log-odds of acting
    change_bound: PositiveFloat = 0.05  # and to a change
    prior: PriorSettings = PriorSettings()  # the rule whose changes the network adds to

    # Of the draws' policy gradient: a task draws 40 nodes, which add more noise than its change.
    sampler_weight: NonNegativeFloat = 0.1
    prior_variance: PositiveFloat = 0.995  # s0
    kl_weight: NonNegativeFloat = 1e-7
    gaussian_weight: NonNegativeFloat = 1e-2
    mutual_information_weight: NonNegativeFloat = 1e-5  # 0: no such term
    mutual_information_share: float = Field(default=0.25, gt=0, le=1)  # of a batch's decisions

    @model_validator(mode="after")
    def _must_fit(self) -> Self:
        if self.encoder != "gin" and self.sampler != "full":
            raise ValueError(
                f"encoder={self.encoder} reads the whole graph; expected sampler=full, "
                f"not {self.sampler}"
            )
        return self

    @property
    def draws(self) -> bool:
        """Whether a task's embedding is that of a drawn subgraph."""
        return self.sampler in ("learned", "random", "temporal", "spatial")

    @property
    def scored(self) -> bool:
        """Whether learned scores decide what is drawn."""
        return self.draws and self.sampler != "random"

    @property
    def drawn_snapshots(self) -> int:
        """k1"""
        return 1 if self.sampler == "spatial" else self.snapshots

    @property
    def drawn_neighbours(self) -> int:
        """k2"""
        return 0 if self.sampler == "temporal" else self.neighbours


def training_settings(manifest: Manifest) -> StreamScalingSettings:
    """Environment settings that the bundle was trained with; the job is the first of several."""
    settings = training_environment(manifest, StreamScalingSettings)
    return settings.model_copy(update={"job": trained_jobs(manifest)[0]})


def trained_jobs(manifest: Manifest) -> tuple[str, ...]:
    """Names of the jobs that the bundle was trained on."""
    config = manifest.trained.get("config")
    jobs = config.get("jobs") if isinstance(config, dict) else None
    if not isinstance(jobs, list) or not jobs:
        return (training_environment(manifest, StreamScalingSettings).job,)
    return tuple(str(job) for job in jobs)


def trained_on(manifest: Manifest) -> str:
    """The jobs, load and conditions of the training, in words."""
    jobs = trained_jobs(manifest)

    def in_words(settings: StreamScalingSettings) -> str:
        first = settings.model_copy(update={"job": jobs[0]})
        conditions = describe_episode(first, load_job(first))
        others = [f"also {', '.join(jobs[1:])}"] if len(jobs) > 1 else []
        return ", ".join([settings.workload, conditions, *others])

    return describe_training(manifest, StreamScalingSettings, in_words)


def distance(manifest: Manifest, settings: StreamScalingSettings) -> tuple[float, ...]:
    """Distance of `settings` from those of the training; the smaller tuple is nearer.

    Compared in this order: semantics, weight of the latency, whether this job was trained on alone
    or among others, load, restart time.
    """
    try:
        own, jobs = training_settings(manifest), trained_jobs(manifest)
    except InputError:
        return (math.inf,)
    alone = jobs == (settings.job,)
    return (
        own.semantics != settings.semantics,
        abs(own.latency_weight - settings.latency_weight),
        0 if alone else 1 if len(jobs) > 1 else 2,
        abs(math.log(own.load_scale / settings.load_scale)),
        abs(own.restart_s - settings.restart_s),
    )
