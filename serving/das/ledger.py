"""What is free on each machine: the book-keeping of checks that need no tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from loadmaster.envs.gpu_scheduling.cluster import WHOLE

if TYPE_CHECKING:
    from loadmaster.serving.das.schema import Job, Machine, Placement


def percent(resource: float) -> int:
    """Of one GPU or one core, as the tables count."""
    return round(WHOLE * resource)


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

    def book(self, job: Job, placements: Iterable[Placement]) -> tuple[int, str] | None:
        """Take the gang's room; if that cannot be, which placement is wrong, and why.

        Where one is wrong, nothing is taken.
        """
        gpu, cpu = percent(job.gpus), percent(job.cpus)
        booked: dict[str, int] = {}
        fault: tuple[int, str] | None = None
        for place, (name, count) in enumerate((one.machine, one.instances) for one in placements):
            if fault := self._fault(job, name, count, gpu, cpu, booked, place):
                break
            booked[name] = count
            self.gpu[name] -= count * gpu
            self.cpu[name] -= count * cpu
        else:
            placed = sum(booked.values())
            if placed == job.instances:
                return None
            fault = -1, (
                f"job {job.id!r} has {placed} of its {job.instances} instances placed; expected "
                "all of them, or none"
            )
        for name, count in booked.items():
            self.gpu[name] += count * gpu
            self.cpu[name] += count * cpu
        return fault

    def release(self, job: Job) -> None:
        """Give back the room in which a job runs."""
        gpu, cpu = percent(job.gpus), percent(job.cpus)
        for placement in job.placements:
            self.gpu[placement.machine] += placement.instances * gpu
            self.cpu[placement.machine] += placement.instances * cpu

    def _fault(
        self, job: Job, name: str, count: int, gpu: int, cpu: int, booked: dict[str, int], place: int
    ) -> tuple[int, str] | None:
        if name not in self.gpu:
            return place, f"unknown machine {name!r}; expected one of the {len(self.gpu)} told"
        if name in booked:
            return place, f"job {job.id!r} is on machine {name!r} twice; expected it once"
        if job.gpu_type is not None and self.kind[name] != job.gpu_type:
            return place, (
                f"job {job.id!r} needs GPUs of type {job.gpu_type!r}; machine {name!r} has "
                f"{self.kind[name]!r}"
            )
        if count * gpu > self.gpu[name] or count * cpu > self.cpu[name]:
            return place, (
                f"machine {name!r} has {self.gpu[name] / WHOLE:g} GPUs and "
                f"{self.cpu[name] / WHOLE:g} cores left; job {job.id!r} would take "
                f"{count * gpu / WHOLE:g} and {count * cpu / WHOLE:g}"
            )
        return None
