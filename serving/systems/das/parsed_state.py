"""A state's machines and jobs, checked against each other and indexed.

Machines seldom change between requests, so their index is cached. Jobs are read
column by column and checked by compiled code; only to name a fault are they visited one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain
from math import nan
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import Ints, compiled
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.jobs import ANY_TYPE, WHOLE
from loadmaster.envs.gpu_scheduling.settings import GPU_TYPES, GpuType
from loadmaster.serving.system import field_error
from loadmaster.serving.systems.das.records import Job, Machine, Placement

UNKNOWN_TYPE = UNKNOWN_MACHINE = -2
MOST_ROWS = 1_000_000  # of the table of placements: machines that each job could be on

# Columns of `ParsedState.numbers`.
AGE_S, DURATION_S, COMM, RAN_S, RUNNING_S, SPEED, PLACES = range(7)
INSTANCES, GPU_TYPE, USER, GPUS, CPUS, NUMBERS = range(7, 13)
# DURATION_S      0 if unknown; SPEED nan
# PLACES          number of placements
_ID, _PLACEMENTS = attrgetter("id"), attrgetter("placements")
_JOB_FIELDS = {
    AGE_S: attrgetter("age_s"),
    COMM: attrgetter("communication"),
    RAN_S: attrgetter("ran_s"),
    RUNNING_S: attrgetter("running_s"),
    INSTANCES: attrgetter("instances"),
    GPUS: attrgetter("gpus"),
    CPUS: attrgetter("cpus"),
}

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
    number: Mapping[str | None, int]  # of a type of GPU that jobs may require; None: any
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
    number: dict[str | None, int] = {kind: n for n, kind in enumerate((*GPU_TYPES, *own))}
    number[None] = ANY_TYPE
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
        try:
            found = {place_of[one.machine]: one.instances for one in placements}
        except KeyError:
            return self._placement_error(job, placements)
        if len(found) < len(placements) or sum(found.values()) != job.instances:
            return self._placement_error(job, placements)
        for machine, count in found.items():
            if count * gpu > free_gpu[machine] or count * cpu > free_cpu[machine]:
                return self._placement_error(job, placements)
        if wanted is not None:
            kinds = self.cluster_index.kinds
            if any(kinds[machine] != wanted for machine in found):
                return self._placement_error(job, placements)
        for machine, count in found.items():
            free_gpu[machine] -= count * gpu
            free_cpu[machine] -= count * cpu
        self.allocated[job.id] = found
        return None

    def _placement_error(self, job: Job, placements: Sequence[Placement]) -> PlacementError:
        """The first reason why a gang cannot be placed; there is one."""
        gpu, cpu, wanted = percent(job.gpus), percent(job.cpus), job.gpu_type
        place_of, found = self.cluster_index.place_of, dict[int, int]()
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
            free_gpu, free_cpu = self.gpu[machine], self.cpu[machine]
            if count * gpu > free_gpu or count * cpu > free_cpu:
                left = f"{free_gpu / WHOLE:g} GPUs and {free_cpu / WHOLE:g} cores"
                taken = f"{count * gpu / WHOLE:g} and {count * cpu / WHOLE:g}"
                short = f"machine {name!r} has {left} left; job {job.id!r} would take {taken}"
                return PlacementError(place, short)
            found[machine] = count
        part = f"job {job.id!r} has {sum(found.values())} of its {job.instances} instances placed"
        return PlacementError(None, f"{part}; expected all of them, or none")

    def release(self, job: Job) -> None:
        """Free the capacity of a running job."""
        gpu, cpu = percent(job.gpus), percent(job.cpus)
        for one in job.placements:
            machine = self.cluster_index.place_of[one.machine]
            self.gpu[machine] += one.instances * gpu
            self.cpu[machine] += one.instances * cpu


@dataclass(frozen=True, eq=False, slots=True)
class ParsedState:
    """N jobs in the order of the request; shared, so copy `capacity` before allocating."""

    cluster_index: ClusterIndex
    capacity: FreeCapacity  # with all running jobs allocated
    jobs: dict[str, Job]  # (N,) by id
    users: dict[str, int]  # numbers of users
    numbers: NDArray[np.float64]  # (NUMBERS, N)
    waiting: int


def parse_state(machines: Sequence[Machine], jobs: Sequence[Job]) -> ParsedState:
    """Check and index machines and jobs; raises `field_error`s."""
    index = _index_machines(tuple(map(_fields, machines)))
    cluster, users, size = index.cluster, dict[str, int](), len(jobs)
    known = dict(zip(map(_ID, jobs), jobs, strict=True))
    numbers = np.empty((NUMBERS, size))
    for column, field in _JOB_FIELDS.items():
        numbers[column] = np.fromiter(map(field, jobs), np.float64, size)
    numbers[DURATION_S] = [job.duration_s or 0.0 for job in jobs]
    numbers[SPEED] = [nan if job.speed is None else job.speed for job in jobs]
    numbers[GPU_TYPE] = [index.number.get(job.gpu_type, UNKNOWN_TYPE) for job in jobs]
    numbers[USER] = [users.setdefault(job.user, len(users)) for job in jobs]
    numbers[PLACES] = lengths = list(map(len, map(_PLACEMENTS, jobs)))
    placements = list(chain.from_iterable(map(_PLACEMENTS, jobs)))
    places = [index.place_of.get(one.machine, UNKNOWN_MACHINE) for one in placements]
    counts = [one.instances for one in placements]
    free = np.stack((cluster.gpu_capacity, cluster.cpu_capacity))
    placed_by = np.full(len(machines), -1)
    allocation = np.array((places, counts), np.int64)
    if len(known) < size or not _allocate_all(
        numbers, allocation, cluster.gpu_type, free, placed_by
    ):
        _raise_first_fault(index, jobs)
    rows = int(np.minimum(numbers[INSTANCES], len(machines)).sum())
    if rows > MOST_ROWS:
        many = f"these gangs could be in {rows:,} places; expected at most {MOST_ROWS:,}"
        raise field_error(("jobs",), many)
    ends = list(accumulate(lengths, initial=0))
    allocated = {
        job.id: dict(zip(places[first:after], counts[first:after], strict=True))
        for job, first, after in zip(jobs, ends, ends[1:], strict=False)
        if first < after
    }
    capacity = FreeCapacity(index, free[0].tolist(), free[1].tolist(), allocated)
    return ParsedState(index, capacity, known, users, numbers, lengths.count(0))


@compiled
def _allocate_all(
    numbers: NDArray[np.float64], allocation: Ints, machine_type: Ints, free: Ints, placed_by: Ints
) -> bool:
    """Allocate the placements of all jobs; False if a job is not consistent.

    `allocation` (2, P) holds machine and instances of every placement, job after job; `free` (2, M)
    the GPUs and cores of the machines, which are changed; `placed_by` (M,) is -1.
    """
    after = np.int64(0)
    for job in range(numbers.shape[1]):
        wanted, instances = np.int64(numbers[GPU_TYPE, job]), np.int64(numbers[INSTANCES, job])
        first, after = after, after + np.int64(numbers[PLACES, job])
        if wanted == UNKNOWN_TYPE:
            return False
        if first == after:
            if numbers[RUNNING_S, job] > 0 or not np.isnan(numbers[SPEED, job]):
                return False
            continue
        gpu = np.int64(np.rint(numbers[GPUS, job] * WHOLE))  # as in `percent`
        cpu = np.int64(np.rint(numbers[CPUS, job] * WHOLE))
        for place in range(first, after):
            machine, count = allocation[0, place], allocation[1, place]
            if machine == UNKNOWN_MACHINE or placed_by[machine] == job:
                return False
            placed_by[machine] = job
            free[0, machine] -= count * gpu
            free[1, machine] -= count * cpu
            if wanted not in (ANY_TYPE, machine_type[machine]):
                return False
            if free[0, machine] < 0 or free[1, machine] < 0:
                return False
            instances -= count
        if instances != 0:
            return False
    return True


def _raise_first_fault(index: ClusterIndex, jobs: Sequence[Job]) -> None:
    """Raise the `field_error` of the first job that is not consistent; there is one."""
    free = index.cluster.gpu_capacity.tolist(), index.cluster.cpu_capacity.tolist()
    capacity, known = FreeCapacity(index, *free, {}), set[str]()
    for place, job in enumerate(jobs):
        name, kind, placements = job.id, job.gpu_type, job.placements
        if name in known:
            twice = f"job {name!r} is listed twice; expected another id"
            raise field_error(("jobs", place, "id"), twice)
        known.add(name)
        if kind not in index.number:
            expected = ", ".join(sorted(one for one in index.number if one is not None))
            unknown = f"unknown GPU type {kind!r}; expected one of {expected}"
            raise field_error(("jobs", place, "gpu_type"), unknown)
        if placements:
            if fault := capacity.allocate(job, placements):
                inside = () if fault.place is None else (fault.place, "machine")
                raise field_error(("jobs", place, "placements", *inside), fault.message)
        elif job.running_s > 0 or job.speed is not None:
            field = "running_s" if job.running_s > 0 else "speed"
            waits = f"job {name!r} has no placements, so it waits; expected no {field}"
            raise field_error(("jobs", place, field), waits)
    raise AssertionError("the jobs are consistent")
