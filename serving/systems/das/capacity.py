"""What is free on each machine: the book-keeping of checks that need no tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from loadmaster.envs.gpu_scheduling.cluster import WHOLE
from loadmaster.serving.systems.das.cluster_index import ClusterIndex, percent

if TYPE_CHECKING:
    from loadmaster.serving.systems.das.schema import Job, Placement


class PlacementError(NamedTuple):
    """What is wrong with where a gang is to be."""

    place: int | None  # which placement; None: all of them together
    why: str


class FreeCapacity:
    """Free GPUs and cores of every machine, in percent; and where gangs were booked."""

    def __init__(self, park: ClusterIndex) -> None:
        self._park, self._gpu, self._cpu = park, list(park.gpu), list(park.cpu)
        self.booked: dict[str, dict[int, int]] = {}  # of a job: instances by machine

    def copy(self) -> FreeCapacity:
        """To book in, where others read this one; without the bookings that led to it."""
        other = FreeCapacity(self._park)
        other._gpu, other._cpu = self._gpu.copy(), self._cpu.copy()
        return other

    def book(self, job: Job, placements: Sequence[Placement]) -> PlacementError | None:
        """Take the gang's room; where that cannot be nothing is taken, and what is wrong told."""
        gpu, cpu, wanted = percent(job.gpus), percent(job.cpus), job.gpu_type
        place_of, free_gpu, free_cpu = self._park.place_of, self._gpu, self._cpu
        found: dict[int, int] = {}
        placed = 0
        for place, one in enumerate(placements):
            name, count = one.machine, one.instances
            machine = place_of.get(name)
            if machine is None:
                known = f"expected one of the {len(place_of)} told"
                return PlacementError(place, f"unknown machine {name!r}; {known}")
            if machine in found:
                twice = f"job {job.id!r} is on machine {name!r} twice; expected it once"
                return PlacementError(place, twice)
            if wanted is not None and self._park.kinds[machine] != wanted:
                needs = f"job {job.id!r} needs GPUs of type {wanted!r}"
                has = f"machine {name!r} has {self._park.kinds[machine]!r}"
                return PlacementError(place, f"{needs}; {has}")
            if count * gpu > free_gpu[machine] or count * cpu > free_cpu[machine]:
                left = f"{free_gpu[machine] / WHOLE:g} GPUs and {free_cpu[machine] / WHOLE:g} cores"
                taken = f"{count * gpu / WHOLE:g} and {count * cpu / WHOLE:g}"
                return PlacementError(
                    place, f"machine {name!r} has {left} left; job {job.id!r} would take {taken}"
                )
            found[machine] = count
            placed += count
        if placed != job.instances:
            part = f"job {job.id!r} has {placed} of its {job.instances} instances placed"
            return PlacementError(None, f"{part}; expected all of them, or none")
        for machine, count in found.items():
            free_gpu[machine] -= count * gpu
            free_cpu[machine] -= count * cpu
        self.booked[job.id] = found
        return None

    def release(self, job: Job) -> None:
        """Give back the room in which a job runs."""
        gpu, cpu = percent(job.gpus), percent(job.cpus)
        for one in job.placements:
            machine = self._park.place_of[one.machine]
            self._gpu[machine] += one.instances * gpu
            self._cpu[machine] += one.instances * cpu
