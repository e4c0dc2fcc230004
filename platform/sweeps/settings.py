"""Settings of a sweep file, apart from those of the system."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from loadmaster.envs.registry import System
from loadmaster.envs.settings import Settings
from loadmaster.platform.sweeps.space import Space
from loadmaster.platform.training.config import BaseConfig


class Asha(Settings):
    """Early stopping: at each rung only the best 1/reduction continue."""

    grace_iterations: PositiveInt  # the first rung
    max_iterations: PositiveInt | None = None  # the last rung; None: the trial's iterations
    reduction: float = Field(default=3.0, gt=1)


class Pbt(Settings):
    """Population-based training: the worst trials continue from copies of the best."""

    every_iterations: PositiveInt
    quantile: float = Field(default=0.25, gt=0, le=0.5)  # share that is replaced
    resample: float = Field(default=0.25, ge=0, le=1)  # probability that a setting is drawn anew


class OneOf(Settings):
    """A group with at most one member; a word stands for a member without settings."""

    no_member: ClassVar[tuple[Any, ...]] = ()  # words for none of them

    @model_validator(mode="before")
    @classmethod
    def _parse_word(cls, given: Any) -> Any:
        if given in cls.no_member:
            return {}
        return {given: {}} if isinstance(given, str) and given in cls.model_fields else given

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if len(given := [name for name, value in self if value is not None]) > 1:
            raise ValueError(f"{' and '.join(given)}; expected one of them")
        return self


class Scheduler(OneOf):
    """Early stopping of trials; with neither, all run to the end."""

    no_member = (None, "none", "fifo")
    asha: Asha | None = None
    pbt: Pbt | None = None


class Seeded(Settings):
    seed: NonNegativeInt = 0


class Grid(Settings):
    """A trial for every combination of choices and variants."""


class Searcher(OneOf):
    """How values are drawn: at random, by Optuna from earlier trials, or all combinations."""

    random: Seeded | None = None
    optuna: Seeded | None = None
    grid: Grid | None = None

    @property
    def seed(self) -> int:
        return (self.optuna or self.random or Seeded()).seed


class TrialResources(Settings):
    """Resources of a trial. Default: a CPU each for the learner and every rollout worker."""

    cpus_per_trial: PositiveFloat | None = None
    gpus_per_trial: NonNegativeFloat | None = None
    concurrent: PositiveInt | None = None  # trials at a time; None: as many as fit


class Stop(Settings):
    """Limits of a trial and of the sweep."""

    iterations: PositiveInt | None = None  # of a trial
    minutes: PositiveFloat | None = None  # of the sweep, per session
    validation_below: float | None = None  # end the sweep once a trial is below
    # Without a report a trial is ended as hung; None: never. The first report includes compilation.
    stall_minutes: PositiveFloat | None = 60.0


class SweepSettings(Settings):
    """A sweep file."""

    system: str
    purpose: str
    base: dict[str, Any] = Field(default={})  # overrides for all trials
    variants: dict[str, dict[str, Any]] = Field(default={})  # settings over base, by name
    space: dict[str, Any] = Field(default={})
    metric: str = "validation"
    mode: Literal["min", "max"] = "min"
    trials: PositiveInt = 16  # of a grid: its combinations
    scheduler: Scheduler = Scheduler()
    searcher: Searcher = Searcher()
    resources: TrialResources = TrialResources()
    stop: Stop = Stop()

    @field_validator("purpose")
    @classmethod
    def _one_line(cls, purpose: str) -> str:
        if not purpose.strip() or "\n" in purpose.strip():
            raise ValueError("expected one line on the purpose of the sweep")
        return purpose.strip()


@dataclass(frozen=True)
class Sweep:
    """A sweep file that was read and checked."""

    name: str
    text: str  # of the file
    settings: SweepSettings
    system: System
    space: Space
    assignments: tuple[str, ...]  # of --set, over the file
    iterations: int  # of a trial that is not stopped early

    @property
    def metric(self) -> str:
        return self.settings.metric

    @property
    def cpus_of_others(self) -> float:
        """CPUs of rollout workers and learners in the largest trial."""
        most = self.space.most
        learners = 0 if most(("resources", "gpus")) else most(("resources", "learners"))
        return most(("rollouts", "workers")) + learners

    @property
    def needs(self) -> dict[str, float]:
        """Resources of the largest trial."""
        cpus, gpus = self.settings.resources.cpus_per_trial, self.settings.resources.gpus_per_trial
        return {
            "CPU": 1 + self.cpus_of_others if cpus is None else cpus,
            "GPU": self.space.most(("resources", "gpus")) if gpus is None else gpus,
        }

    def config(self, drawn: Mapping[str, Any]) -> BaseConfig:
        """The configuration of one trial, whose learners share the trial's part of a GPU."""
        config, gpus = self.space.config(drawn), self.settings.resources.gpus_per_trial
        if not gpus or not config.resources.gpus:
            return config
        share = {"gpu_share": gpus / config.resources.gpus}
        resources = config.resources.model_copy(update=share)
        return config.model_copy(update={"resources": resources})

    def bundles(self, drawn: Mapping[str, Any]) -> list[dict[str, float]]:
        """Resources of one trial: its own process first, then rollout workers and learners."""
        config, cpus = self.config(drawn), self.settings.resources.cpus_per_trial
        others = [{"CPU": 1.0}] * config.rollouts.workers
        resources = config.resources
        each = {"GPU": resources.gpu_share} if resources.gpus else {"CPU": 1.0}
        others += [each] * resources.learners
        taken = sum(bundle.get("CPU", 0.0) for bundle in others)
        return [{"CPU": 1.0 if cpus is None else cpus - taken}, *others]
