"""A sweep that was read and found sound."""

from __future__ import annotations

from dataclasses import dataclass

from loadmaster.platform.sweeps.settings import SweepSettings
from loadmaster.platform.sweeps.space import Space
from loadmaster.platform.systems import System


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
