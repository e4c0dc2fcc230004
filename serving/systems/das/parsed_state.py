"""A state's machines and jobs, checked against each other and indexed.

Machines seldom change between requests, so their index is cached. Reading the fields of records is
most of the cost of checking and of building tables, so jobs are read once for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import nan
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.jobs import ANY_TYPE, WHOLE
from loadmaster.envs.gpu_scheduling.settings import GPU_TYPES, GpuType
from loadmaster.serving.system import field_error
from loadmaster.serving.systems.das.records import Job, Machine, Placement

MOST_ROWS = 1_000_000  # of the table of placements: machines that each job could be on

# Columns of `ParsedState.numbers`.
AGE_S, DURATION_S, COMM, RAN_S, RUNNING_S, SPEED, PLACES = range(7)
INSTANCES, GPU_TYPE, USER, GPUS, CPUS, NUMBERS = range(7, 13)
# DURATION_S      0 if unknown; SPEED nan
# PLACES          number of placements

_fields = attrgetter("name", "gpus", "gpu", "cpus", "rack", "speed", "price_per_hour")
_Fields = tuple[str, int, str, float, str, float | None, float | None]


def percent(resource: float) -> int:
    """GPUs or cores in the integer unit of the environment's tables."""
    return round(WHOLE * resource)


class ClusterIndex(NamedTuple):
    """M machines; shared between requests, so read-only."""

    cluster: Cluster
    place_of: Mapping[str, int]  # of a machine by its name
    kinds: tuple[str, ...]  # (M,) types of GPU
    number: Mapping[str, int]  # of a type of GPU that jobs may require
    own: tuple[GpuType, ...]  # types that are not built in


@lru_cache(maxsize=8)
def _index_machines(machines: tuple[_Fields, ...]) -> ClusterIndex:
    names, gpus, kinds, cpus, racks, speeds, prices = zip(*machines, strict=True)
    place_of: dict[str, int] = {}
    for place, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        if name in place_of:
            fault = f"machine {name!r} is listed twice; expected another name"
            raise field_error(("machines", place, "name"), fault)
        place_of[name] = place
        if kind not in GPU_TYPES and None in (speeds[place], prices[place]):
            expected = f"one of {', '.join(GPU_TYPES)}, or speed and price_per_hour beside it"
            fault = f"unknown GPU type {kind!r}; expected {expected}"
            raise field_error(("machines", place, "gpu"), fault)
    own = sorted({kind for kind in kinds if kind not in GPU_TYPES})
    number = {kind: place for place, kind in enumerate((*GPU_TYPES, *own))}
    rack_numbers = {rack: place for place, rack in enumerate(dict.fromkeys(racks))}

    def filled(values: tuple[float | None, ...], field: str) -> list[float]:
        """Missing values are those of the type."""
        given = zip(values, kinds, strict=True)
        return [getattr(GPU_TYPES[kind], field) if one is None else one for one, kind in given]

    cluster = Cluster(
        gpu_capacity=np.array([WHOLE * count for count in gpus], np.int64),
        cpu_capacity=np.array([percent(count) for count in cpus], np.int64),
        gpu_type=np.array([number[kind] for kind in kinds], np.int64),
        speed=np.array(filled(speeds, "speed"), np.float64),
        price_per_s=np.array(filled(prices, "price_per_hour"), np.float64) / 3600,
        rack=np.array([rack_numbers[rack] for rack in racks], np.int64),
    )
    own_types = tuple(GpuType(name=kind, speed=1.0) for kind in own)
    return ClusterIndex(cluster, place_of, kinds, number, own_types)


class PlacementError(NamedTuple):
    """Reason why a gang cannot be placed."""

    place: int | None  # index of the placement; None: all of them together
    message: str


class FreeCapacity(NamedTuple):
    """Free GPUs and cores of every machine, in percent, and the placements that were allocated."""

    cluster_index: ClusterIndex
    gpu: list[int]
    cpu: list[int]
    allocated: dict[str, dict[int, int]]  # of a job: instances by machine

    def copy(self) -> FreeCapacity:
        """The same free capacity, without `allocated`."""
        return FreeCapacity(self.cluster_index, self.gpu.copy(), self.cpu.copy(), {})

    def allocate(self, job: Job, placements: Sequence[Placement]) -> PlacementError | None:
        """Allocate the whole gang, or nothing and return the reason."""
        gpu, cpu, wanted = percent(job.gpus), percent(job.cpus), job.gpu_type
        place_of, free_gpu, free_cpu = self.cluster_index.place_of, self.gpu, self.cpu
        found: dict[int, int] = {}
        for place, one in enumerate(placements):
            name, count = one.machine, one.instances
            machine = place_of.get(name)
            if machine is None:
                known = f"expected one of the {len(place_of)} in machines"
                return PlacementError(place, f"unknown machine {name!r}; {known}")
            if machine in found:
                twice = f"job {job.id!r} is on machine {name!r} twice; expected it once"
                return PlacementError(place, twice)
            kind = self.cluster_index.kinds[machine]
            if wanted not in (None, kind):
                needs = f"job {job.id!r} needs GPUs of type {wanted!r}"
                return PlacementError(place, f"{needs}; machine {name!r} has {kind!r}")
            if count * gpu > free_gpu[machine] or count * cpu > free_cpu[machine]:
                left = f"{free_gpu[machine] / WHOLE:g} GPUs and {free_cpu[machine] / WHOLE:g} cores"
                taken = f"{count * gpu / WHOLE:g} and {count * cpu / WHOLE:g}"
                short = f"machine {name!r} has {left} left; job {job.id!r} would take {taken}"
                return PlacementError(place, short)
            found[machine] = count
        placed = sum(found.values())
        if placed != job.instances:
            part = f"job {job.id!r} has {placed} of its {job.instances} instances placed"
            return PlacementError(None, f"{part}; expected all of them, or none")
        for machine, count in found.items():
            free_gpu[machine] -= count * gpu
            free_cpu[machine] -= count * cpu
        self.allocated[job.id] = found
        return None

    def release(self, job: Job) -> None:
        """Free the capacity of a running job."""
        gpu, cpu = percent(job.gpus), percent(job.cpus)
        for one in job.placements:
            machine = self.cluster_index.place_of[one.machine]
            self.gpu[machine] += one.instances * gpu
            self.cpu[machine] += one.instances * cpu


class ParsedState(NamedTuple):
    """N jobs in the order of the request; shared, so copy `capacity` before allocating."""

    cluster_index: ClusterIndex
    capacity: FreeCapacity  # with all running jobs allocated
    jobs: dict[str, Job]  # (N,) by id
    users: dict[str, int]  # numbers of users
    numbers: list[float]  # (N * NUMBERS,) job after job
    waiting: int


def parse_state(machines: Sequence[Machine], jobs: Sequence[Job]) -> ParsedState:
    """Check and index machines and jobs; raises `field_error`s."""
    index = _index_machines(tuple(map(_fields, machines)))
    free = index.cluster.gpu_capacity.tolist(), index.cluster.cpu_capacity.tolist()
    capacity = FreeCapacity(index, *free, {})
    known: dict[str, Job] = {}
    users: dict[str, int] = {}
    numbers: list[float] = []
    count, rows, waiting = len(machines), 0, 0
    for place, job in enumerate(jobs):
        name, kind, instances, placements = job.id, job.gpu_type, job.instances, job.placements
        running_s, speed = job.running_s, job.speed
        if name in known:
            twice = f"job {name!r} is listed twice; expected another id"
            raise field_error(("jobs", place, "id"), twice)
        known[name] = job
        rows += instances if instances < count else count
        number = ANY_TYPE if kind is None else index.number.get(kind)
        if number is None:
            expected = ", ".join(sorted(index.number))
            unknown = f"unknown GPU type {kind!r}; expected one of {expected}"
            raise field_error(("jobs", place, "gpu_type"), unknown)
        if placements:
            if fault := capacity.allocate(job, placements):
                inside = () if fault.place is None else (fault.place, "machine")
                raise field_error(("jobs", place, "placements", *inside), fault.message)
        else:
            waiting += 1
            if running_s > 0 or speed is not None:
                field = "running_s" if running_s > 0 else "speed"
                waits = f"job {name!r} has no placements, so it waits; expected no {field}"
                raise field_error(("jobs", place, field), waits)
        measured, user = nan if speed is None else speed, users.setdefault(job.user, len(users))
        numbers += job.age_s, job.duration_s or 0.0, job.communication, job.ran_s, running_s
        numbers += measured, len(placements), instances, number, user, job.gpus, job.cpus
    if rows > MOST_ROWS:
        many = f"these gangs could be in {rows:,} places; expected at most {MOST_ROWS:,}"
        raise field_error(("jobs",), many)
    return ParsedState(index, capacity, known, users, numbers, waiting)
