"""What a sweep file may say, apart from the system's own settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from loadmaster.envs.settings import Settings
from loadmaster.platform.sweeps.space import Space
from loadmaster.platform.systems.registry import System


class Asha(Settings):
    """Stops the worse trials early: at each rung only the best 1/reduction go on."""

    grace_iterations: PositiveInt  # the first rung: before it nobody is stopped
    max_iterations: PositiveInt | None = None  # the last; as many as a trial has, unless given
    reduction: float = Field(default=3.0, gt=1)


class Pbt(Settings):
    """Population-based training: now and then the worst go on from copies of the best."""

    every_iterations: PositiveInt
    quantile: float = Field(default=0.25, gt=0, le=0.5)  # the share that is replaced, and copied
    resample: float = Field(default=0.25, ge=0, le=1)  # how often a setting is drawn afresh


class Scheduler(Settings):
    """Who is stopped before the end. With neither, nobody."""

    asha: Asha | None = None
    pbt: Pbt | None = None

    @model_validator(mode="before")
    @classmethod
    def _in_words(cls, given: Any) -> Any:
        return {} if given in (None, "none", "fifo") else given

    @model_validator(mode="after")
    def _one(self) -> Self:
        if self.asha and self.pbt:
            raise ValueError("two schedulers; expected asha, pbt, or neither")
        return self


class Random(Settings):
    seed: NonNegativeInt = 0


class Optuna(Settings):
    seed: NonNegativeInt = 0


class Searcher(Settings):
    """Who draws the values: at random, or Optuna, which learns from the trials before."""

    random: Random | None = None
    optuna: Optuna | None = None

    @model_validator(mode="before")
    @classmethod
    def _in_words(cls, given: Any) -> Any:
        return {given: {}} if isinstance(given, str) and given in cls.model_fields else given

    @model_validator(mode="after")
    def _one(self) -> Self:
        if self.random and self.optuna:
            raise ValueError("two searchers; expected random or optuna")
        return self

    @property
    def seed(self) -> int:
        return (self.optuna or self.random or Random()).seed


class TrialResources(Settings):
    """What Ray sets aside for a trial. Unless given: a CPU each for learner and rollout workers."""

    cpus_per_trial: PositiveFloat | None = None
    gpus_per_trial: NonNegativeFloat | None = None
    concurrent: PositiveInt | None = None  # trials at a time; as many as fit, unless given


class Stop(Settings):
    """When it is enough."""

    iterations: PositiveInt | None = None  # of a trial
    minutes: PositiveFloat | None = None  # of the sweep, each time it is started
    validation_below: float | None = None  # the sweep ends when a trial gets there


class SweepSettings(Settings):
    """A sweep file."""

    system: str
    purpose: str
    base: dict[str, Any] = Field(default={})  # overrides of the system's defaults, for all trials
    space: dict[str, Any]
    metric: str = "validation"
    mode: Literal["min", "max"] = "min"
    trials: PositiveInt = 16
    scheduler: Scheduler = Scheduler()
    searcher: Searcher = Searcher()
    resources: TrialResources = TrialResources()
    stop: Stop = Stop()

    @field_validator("purpose")
    @classmethod
    def _one_line(cls, purpose: str) -> str:
        if not purpose.strip() or "\n" in purpose.strip():
            raise ValueError("expected one line that says what the sweep is for")
        return purpose.strip()


# A sweep that was read and found sound.


@dataclass(frozen=True)
class Sweep:
    """A sweep that is ready to run."""

    name: str
    text: str  # of the file
    settings: SweepSettings
    system: System
    space: Space
    assignments: tuple[str, ...]  # from the command line, on top of the file
    iterations: int  # of a trial that nobody stops

    @property
    def metric(self) -> str:
        return self.settings.metric

    @property
    def needs(self) -> dict[str, float]:
        """What Ray must have for the largest trial."""
        resources, most = self.settings.resources, self.space.most
        cpus, gpus = resources.cpus_per_trial, resources.gpus_per_trial
        return {
            "CPU": 1 + most(("rollouts", "workers")) if cpus is None else cpus,
            "GPU": most(("resources", "gpus")) if gpus is None else gpus,
        }

    def better(self, one: float, other: float) -> bool:
        return one < other if self.settings.mode == "min" else one > other
