"""What must be true between the fields of a state, and what is known once it is."""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING, NamedTuple

from loadmaster.envs.gpu_scheduling.jobs import ANY_TYPE
from loadmaster.serving.systems.das.capacity import FreeCapacity
from loadmaster.serving.systems.das.cluster_index import ClusterIndex, park_of, wrong_field

if TYPE_CHECKING:
    from loadmaster.serving.systems.das.schema import DasState, Job

MOST_ROWS = 1_000_000  # of the table of placements: every machine that each job could be on


# Numbers of a job, in this order in `Books.numbers`.
AGE_S, DURATION_S, COMM, RAN_S, RUNNING_S, SPEED, PLACES = range(7)
INSTANCES, GPU_TYPE, USER, GPUS, CPUS = range(7, 12)
NUMBERS = 12
# DURATION_S      0 where it is not known; SPEED nan
# PLACES          how many placements it has


class Books(NamedTuple):
    """Who there is, what is free, and all numbers of the N jobs in the order in which they were
    told. They are shared: whoever wants to book takes a copy.

    What it costs to ask a record for its fields is most of what checks and tables cost, so jobs
    are walked once for both.
    """

    park: ClusterIndex
    ledger: FreeCapacity  # with all running jobs booked, in that order
    jobs: dict[str, Job]  # (N,) by their ids
    users: dict[str, int]  # numbers of users
    numbers: list[float]  # (N * NUMBERS,) job after job
    waiting: int


def check_state(state: DasState) -> None:
    """Raise what is wrong, with the field in which it stands."""
    jobs = state.books.jobs
    for place, later in enumerate(state.history[1:], start=1):
        if later.age_s < state.history[place - 1].age_s:
            raise wrong_field(
                ("history", place, "age_s"),
                later.age_s,
                "younger than the note before it; expected the latest note first",
            )
    listed: set[str] = set()
    for place, name in enumerate(state.running_order):
        if name not in jobs or not jobs[name].placements or name in listed:
            what = "stands there twice" if name in listed else "is no running job"
            raise wrong_field(
                ("running_order", place), name, f"{name!r} {what}; expected running jobs, each once"
            )
        listed.add(name)


def books_of(state: DasState) -> Books:
    """Raises what is wrong with machines and jobs."""
    park = park_of(state.machines)
    ledger = FreeCapacity(park)
    known: dict[str, Job] = {}
    users: dict[str, int] = {}
    numbers: list[float] = []
    machines, rows, waiting = len(state.machines), 0, 0
    for place, job in enumerate(state.jobs):
        name, kind, instances, placements = job.id, job.gpu_type, job.instances, job.placements
        running_s, speed = job.running_s, job.speed
        if name in known:
            raise wrong_field(
                ("jobs", place, "id"),
                name,
                f"job {name!r} stands there twice; expected another id",
            )
        known[name] = job
        rows += instances if instances < machines else machines
        number = ANY_TYPE if kind is None else park.number.get(kind)
        if number is None:
            expected = ", ".join(sorted(park.number))
            raise wrong_field(
                ("jobs", place, "gpu_type"),
                kind,
                f"unknown GPU type {kind!r}; expected one of {expected}",
            )
        if placements:
            if fault := ledger.book(job, placements):
                inside = () if fault.place is None else (fault.place, "machine")
                raise wrong_field(("jobs", place, "placements", *inside), None, fault.why)
        else:
            waiting += 1
            if running_s > 0 or speed is not None:
                field = "running_s" if running_s > 0 else "speed"
                raise wrong_field(
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
        raise wrong_field(
            ("jobs",),
            None,
            f"these gangs could be in {rows:,} places; expected at most {MOST_ROWS:,}",
        )
    return Books(park, ledger, known, users, numbers, waiting)
