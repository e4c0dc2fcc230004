"""Settings of a stream scaling episode: the job, its load, what a restart costs, the objective."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from loadmaster.envs.settings import Settings, one_or_more

DAY_MIN = 1440
WEEK_MIN = 7 * DAY_MIN
WARM_UP_MIN = 60  # before the first decision
PUBLISHED_EVERY_MIN = 60  # between decisions of the paper, each of which restarts the job


class Fault(Settings):
    """A disturbance of the job or its load; times in minutes since the first decision.

    `KIND@MINUTE`, as in `spike@720`, stands for one with the defaults.
    """

    kind: Literal["spike", "drift", "lost-instance", "silent-source"]
    at_min: float = Field(ge=0)
    minutes: PositiveFloat = 30.0
    factor: PositiveFloat = 10.0  # of the load in a spike, of the service time after a drift
    # None: the task or source with the most work; for a spike, all sources.
    task: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        kind, _, at_min = value.partition("@")
        return {"kind": kind, "at_min": at_min} if at_min else {"kind": kind}

    @property
    def begin(self) -> int:
        """The first minute."""
        return round(self.at_min)

    @property
    def end(self) -> int:
        """The minute after the last one; a drift has reached its factor then, and stays."""
        return round(self.at_min + self.minutes)


class StreamScalingSettings(Settings):
    """Job, load, restarts and objective of an episode."""

    job: str = "small-1"  # small-1 to large-2, alibaba:NAME, or a YAML file
    workload: str = "clarknet-like"
    data: Path | None = None  # trace file or folder; None: LOADMASTER_DATA
    minutes: PositiveInt = WEEK_MIN  # of an episode, from the first decision
    load_scale: PositiveFloat = 1.0  # factor of the load
    random_scale: float = Field(default=0.0, ge=0, lt=1)  # each episode's load: +- this share
    week: Literal["first", "second", "all"] = "all"  # part of a trace in which episodes begin

    decide_every_min: PositiveInt = 5
    history: PositiveInt = 60  # snapshots of the observation
    semantics: Literal["flink", "paper"] = "flink"

    initial: PositiveInt = 5  # instances of every task
    max_parallelism: PositiveInt = 10  # instances of a task
    max_instances: PositiveInt = 200  # of the job
    max_factor: PositiveFloat = 4.0  # an action of 1 multiplies by this, one of -1 divides

    buffer: PositiveFloat = 200.0  # records that an instance can hold
    contention: NonNegativeFloat = 0.01  # capacity of p instances: p / (1 + contention (p - 1))
    queues: Literal["keyed", "shared"] = "keyed"
    skew: float = Field(default=0.0, ge=0, lt=1)  # share of the records with the hottest key
    chains: bool = True  # chained tasks have equal parallelism
    restart_s: NonNegativeFloat = 30.0
    state_mb: NonNegativeFloat = 100.0  # of each task that has a parent
    restore_mb_per_s: PositiveFloat = 200.0
    checkpoint_min: PositiveInt = 1
    metric_noise: NonNegativeFloat = 0.02  # standard deviation, relative
    missing_metrics: float = Field(default=0.0, ge=0, le=1)  # share of minutes without pending
    faults: Annotated[tuple[Fault, ...], BeforeValidator(one_or_more)] = ()

    latency_weight: float = Field(default=0.7, ge=0, le=1)  # lambda
    latency_scale_min: PositiveFloat = 1.0
    latency_target_min: PositiveFloat = 1.0
    calibration: Path | None = None  # tuned rules' parameters; None: those shipped

    @model_validator(mode="after")
    def _combinations(self) -> StreamScalingSettings:
        if self.decide_every_min > self.minutes:
            raise ValueError(
                f"decide_every_min is {self.decide_every_min}, more than the {self.minutes} minutes"
            )
        if self.initial > self.max_parallelism:
            raise ValueError(
                f"initial is {self.initial}, more than max_parallelism {self.max_parallelism}"
            )
        for fault in self.faults:
            if fault.begin >= self.minutes:
                raise ValueError(
                    f"the {fault.kind} at_min {fault.at_min:g} is after the episode's end; "
                    f"expected less than {self.minutes} minutes"
                )
        return self

    @property
    def published(self) -> bool:
        """The semantics of the paper: unbounded queues, every decision restarts the job."""
        return self.semantics == "paper"

    def at_published_pace(self) -> StreamScalingSettings:
        """With the paper's semantics, decisions at its pace or slower; else these settings."""
        if not self.published or self.decide_every_min >= PUBLISHED_EVERY_MIN:
            return self
        return self.model_copy(update={"decide_every_min": PUBLISHED_EVERY_MIN})

    @property
    def action_factor(self) -> float:
        """See `apply_action`."""
        return 0.0 if self.published else self.max_factor
