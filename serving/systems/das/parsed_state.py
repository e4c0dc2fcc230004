"""A state's machines and jobs, checked against each other and indexed.

Machines seldom change between requests, so their index is cached. Reading the fields of records is
most of the cost of checking and of building tables, so jobs are read once for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import nan
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.jobs import ANY_TYPE, WHOLE
from loadmaster.envs.gpu_scheduling.settings import GPU_TYPES, GpuType
from loadmaster.serving.systems.das.records import Job, Machine, Placement

CACHED_CLUSTERS = 8
MOST_ROWS = 1_000_000  # of the table of placements: machines that each job could be on

# Columns of `ParsedState.numbers`.
AGE_S, DURATION_S, COMM, RAN_S, RUNNING_S, SPEED, PLACES = range(7)
INSTANCES, GPU_TYPE, USER, GPUS, CPUS = range(7, 12)
NUMBERS = 12
# DURATION_S      0 if unknown; SPEED nan
# PLACES          number of placements

_fields = attrgetter("name", "gpus", "gpu", "cpus", "rack", "speed", "price_per_hour")
_Fields = tuple[str, int, str, float, str, float | None, float | None]


def field_error(place: tuple[str | int, ...], value: Any, message: str) -> ValidationError:
    """Validation error at a field inside the record whose validator raises it."""
    # The message is passed as a value, since it may quote braces from the request.
    fault = PydanticCustomError("wrong_field", "{message}", {"message": message})
    details = InitErrorDetails(type=fault, loc=place, input=value)
    return ValidationError.from_exception_data("state", [details])


def percent(resource: float) -> int:
    """GPUs or cores in the integer unit of the environment's tables."""
    return round(WHOLE * resource)


class ClusterIndex(NamedTuple):
    """M machines; shared between requests, so read-only."""

    cluster: Cluster
    place_of: Mapping[str, int]  # of a machine by its name
    gpu: tuple[int, ...]  # (M,) GPUs and cores, percent
    cpu: tuple[int, ...]  # (M,)
    kinds: tuple[str, ...]  # (M,) types of GPU
    number: Mapping[str, int]  # of a type of GPU that jobs may require
    own: tuple[GpuType, ...]  # types that are not built in


def index_machines(machines: Sequence[Machine]) -> ClusterIndex:
    return _index_machines(tuple(map(_fields, machines)))


@lru_cache(maxsize=CACHED_CLUSTERS)
def _index_machines(machines: tuple[_Fields, ...]) -> ClusterIndex:
    names, gpus, kinds, cpus, racks, speeds, prices = zip(*machines, strict=True)
    place_of: dict[str, int] = {}
    for place, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        if name in place_of:
            raise field_error(
                ("machines", place, "name"),
                name,
                f"machine {name!r} is listed twice; expected another name",
            )
        place_of[name] = place
        if kind not in GPU_TYPES and None in (speeds[place], prices[place]):
            raise field_error(
                ("machines", place, "gpu"),
                kind,
                f"unknown GPU type {kind!r}; expected one of {', '.join(GPU_TYPES)}, or "
                "speed and price_per_hour beside it",
            )
    own = sorted({kind for kind in kinds if kind not in GPU_TYPES})
    number = {kind: place for place, kind in enumerate((*GPU_TYPES, *own))}
    rack_numbers: dict[str, int] = {}

    def default(value: float | None, kind: str, field: str) -> float:
        return (getattr(GPU_TYPES[kind], field) or 0.0) if value is None else value

    speed = [default(speed, kind, "speed") for speed, kind in zip(speeds, kinds, strict=True)]
    price = [
        default(price, kind, "price_per_hour") for price, kind in zip(prices, kinds, strict=True)
    ]
    cluster = Cluster(
        gpu_capacity=np.array([WHOLE * count for count in gpus], np.int64),
        cpu_capacity=np.array([percent(count) for count in cpus], np.int64),
        gpu_type=np.array([number[kind] for kind in kinds], np.int64),
        speed=np.array(speed, np.float64),
        price_per_s=np.array(price, np.float64) / 3600,
        rack=np.array(
            [rack_numbers.setdefault(rack, len(rack_numbers)) for rack in racks], np.int64
        ),
    )
    return ClusterIndex(
        cluster,
        place_of,
        gpu=tuple(cluster.gpu_capacity.tolist()),
        cpu=tuple(cluster.cpu_capacity.tolist()),
        kinds=kinds,
        number=number,
        own=tuple(GpuType(name=kind, speed=1.0) for kind in own),
    )


class PlacementError(NamedTuple):
    """Reason why a gang cannot be placed."""

    place: int | None  # index of the placement; None: all of them together
    message: str


class FreeCapacity:
    """Free GPUs and cores of every machine, in percent, and the placements that were allocated."""

    def __init__(self, index: ClusterIndex) -> None:
        self._index, self._gpu, self._cpu = index, list(index.gpu), list(index.cpu)
        self.allocated: dict[str, dict[int, int]] = {}  # of a job: instances by machine

    def copy(self) -> FreeCapacity:
        """The same free capacity, without `allocated`."""
        other = FreeCapacity(self._index)
        other._gpu, other._cpu = self._gpu.copy(), self._cpu.copy()
        return other

    def allocate(self, job: Job, placements: Sequence[Placement]) -> PlacementError | None:
        """Allocate the whole gang, or nothing and return the reason."""
        gpu, cpu, wanted = percent(job.gpus), percent(job.cpus), job.gpu_type
        place_of, free_gpu, free_cpu = self._index.place_of, self._gpu, self._cpu
        found: dict[int, int] = {}
        placed = 0
        for place, one in enumerate(placements):
            name, count = one.machine, one.instances
            machine = place_of.get(name)
            if machine is None:
                known = f"expected one of the {len(place_of)} in machines"
                return PlacementError(place, f"unknown machine {name!r}; {known}")
            if machine in found:
                twice = f"job {job.id!r} is on machine {name!r} twice; expected it once"
                return PlacementError(place, twice)
            if wanted is not None and self._index.kinds[machine] != wanted:
                needs = f"job {job.id!r} needs GPUs of type {wanted!r}"
                has = f"machine {name!r} has {self._index.kinds[machine]!r}"
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
        self.allocated[job.id] = found
        return None

    def release(self, job: Job) -> None:
        """Free the capacity of a running job."""
        gpu, cpu = percent(job.gpus), percent(job.cpus)
        for one in job.placements:
            machine = self._index.place_of[one.machine]
            self._gpu[machine] += one.instances * gpu
            self._cpu[machine] += one.instances * cpu


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
    index = index_machines(machines)
    capacity = FreeCapacity(index)
    known: dict[str, Job] = {}
    users: dict[str, int] = {}
    numbers: list[float] = []
    count, rows, waiting = len(machines), 0, 0
    for place, job in enumerate(jobs):
        name, kind, instances, placements = job.id, job.gpu_type, job.instances, job.placements
        running_s, speed = job.running_s, job.speed
        if name in known:
            raise field_error(
                ("jobs", place, "id"), name, f"job {name!r} is listed twice; expected another id"
            )
        known[name] = job
        rows += instances if instances < count else count
        number = ANY_TYPE if kind is None else index.number.get(kind)
        if number is None:
            expected = ", ".join(sorted(index.number))
            raise field_error(
                ("jobs", place, "gpu_type"),
                kind,
                f"unknown GPU type {kind!r}; expected one of {expected}",
            )
        if placements:
            if fault := capacity.allocate(job, placements):
                inside = () if fault.place is None else (fault.place, "machine")
                raise field_error(("jobs", place, "placements", *inside), None, fault.message)
        else:
            waiting += 1
            if running_s > 0 or speed is not None:
                field = "running_s" if running_s > 0 else "speed"
                raise field_error(
                    ("jobs", place, field),
                    getattr(job, field),
                    f"job {name!r} has no placements, so it waits; expected no {field}",
                )
        numbers += (
            job.age_s,
            job.duration_s or 0.0,
            job.communication,
            job.ran_s,
            running_s,
            nan if speed is None else speed,
            len(placements),
            instances,
            number,
            users.setdefault(job.user, len(users)),
            job.gpus,
            job.cpus,
        )
    if rows > MOST_ROWS:
        raise field_error(
            ("jobs",),
            None,
            f"these gangs could be in {rows:,} places; expected at most {MOST_ROWS:,}",
        )
    return ParsedState(index, capacity, known, users, numbers, waiting)
