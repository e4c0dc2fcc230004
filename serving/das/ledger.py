"""What is free on each machine: the book-keeping of checks that need no tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from loadmaster.envs.gpu_scheduling.cluster import WHOLE
from loadmaster.serving.das.machines import Park, percent

if TYPE_CHECKING:
    from loadmaster.serving.das.schema import Job, Placement


class Misplaced(NamedTuple):
    """What is wrong with where a gang is to be."""

    place: int | None  # which placement; None: all of them together
    why: str


class Ledger:
    """Free GPUs and cores by the machine's name, in percent."""

    def __init__(self, park: Park) -> None:
        self.gpu, self.cpu, self.kind = dict(park.gpu), dict(park.cpu), park.kind

    def copy(self) -> Ledger:
        """To book in, where others read this one."""
        other = object.__new__(Ledger)
        other.gpu, other.cpu, other.kind = self.gpu.copy(), self.cpu.copy(), self.kind
        return other

    def book(self, job: Job, placements: Sequence[Placement]) -> Misplaced | None:
        """Take the gang's room; where that cannot be nothing is taken, and what is wrong told."""
        gpu, cpu = percent(job.gpus), percent(job.cpus)
        fault = self._fault(job, placements, gpu, cpu)
        if fault is None:
            self._take(placements, gpu, cpu)
        return fault

    def release(self, job: Job) -> None:
        """Give back the room in which a job runs."""
        self._take(job.placements, -percent(job.gpus), -percent(job.cpus))

    def _take(self, placements: Sequence[Placement], gpu: int, cpu: int) -> None:
        for one in placements:
            self.gpu[one.machine] -= one.instances * gpu
            self.cpu[one.machine] -= one.instances * cpu

    def _fault(
        self, job: Job, placements: Sequence[Placement], gpu: int, cpu: int
    ) -> Misplaced | None:
        seen: set[str] = set()
        placed, wanted = 0, job.gpu_type
        for place, one in enumerate(placements):
            name, count = one.machine, one.instances
            if name not in self.gpu:
                known = f"expected one of the {len(self.gpu)} told"
                return Misplaced(place, f"unknown machine {name!r}; {known}")
            if name in seen:
                twice = f"job {job.id!r} is on machine {name!r} twice; expected it once"
                return Misplaced(place, twice)
            if wanted is not None and self.kind[name] != wanted:
                needs = f"job {job.id!r} needs GPUs of type {wanted!r}"
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
