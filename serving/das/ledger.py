"""What is free on each machine: the book-keeping of checks that need no tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from loadmaster.envs.gpu_scheduling.cluster import WHOLE

if TYPE_CHECKING:
    from loadmaster.serving.das.schema import Job, Machine, Placement


def percent(resource: float) -> int:
    """Of one GPU or one core, as the tables count."""
    return round(WHOLE * resource)


class Misplaced(NamedTuple):
    """What is wrong with where a gang is to be."""

    place: int | None  # which placement; None: all of them together
    why: str


class Ledger:
    """Free GPUs and cores by the machine's name, in percent."""

    def __init__(self, machines: Iterable[Machine]) -> None:
        self.gpu: dict[str, int] = {}
        self.cpu: dict[str, int] = {}
        self.kind: dict[str, str] = {}
        for machine in machines:
            self.gpu[machine.name] = machine.gpus * WHOLE
            self.cpu[machine.name] = percent(machine.cpus)
            self.kind[machine.name] = machine.gpu

    def book(self, job: Job, placements: Sequence[Placement]) -> Misplaced | None:
        """Take the gang's room; where that cannot be nothing is taken, and what is wrong told."""
        fault = self._fault(job, placements)
        if fault is None:
            self._take(job, placements, 1)
        return fault

    def release(self, job: Job) -> None:
        """Give back the room in which a job runs."""
        self._take(job, job.placements, -1)

    def _take(self, job: Job, placements: Sequence[Placement], times: int) -> None:
        gpu, cpu = times * percent(job.gpus), times * percent(job.cpus)
        for placement in placements:
            self.gpu[placement.machine] -= placement.instances * gpu
            self.cpu[placement.machine] -= placement.instances * cpu

    def _fault(self, job: Job, placements: Sequence[Placement]) -> Misplaced | None:
        gpu, cpu = percent(job.gpus), percent(job.cpus)
        seen: set[str] = set()
        placed = 0
        for place, one in enumerate(placements):
            name, count = one.machine, one.instances
            if name not in self.gpu:
                known = f"expected one of the {len(self.gpu)} told"
                return Misplaced(place, f"unknown machine {name!r}; {known}")
            if name in seen:
                twice = f"job {job.id!r} is on machine {name!r} twice; expected it once"
                return Misplaced(place, twice)
            if job.gpu_type is not None and self.kind[name] != job.gpu_type:
                needs = f"job {job.id!r} needs GPUs of type {job.gpu_type!r}"
                return Misplaced(place, f"{needs}; machine {name!r} has {self.kind[name]!r}")
            if count * gpu > self.gpu[name] or count * cpu > self.cpu[name]:
                left = f"{self.gpu[name] / WHOLE:g} GPUs and {self.cpu[name] / WHOLE:g} cores left"
                taken = f"{count * gpu / WHOLE:g} and {count * cpu / WHOLE:g}"
                return Misplaced(
                    place, f"machine {name!r} has {left}; job {job.id!r} would take {taken}"
                )
            seen.add(name)
            placed += count
        if placed != job.instances:
            part = f"job {job.id!r} has {placed} of its {job.instances} instances placed"
            return Misplaced(None, f"{part}; expected all of them, or none")
        return None
