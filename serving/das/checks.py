"""What must be true between the fields of a state, and what is known once it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from loadmaster.serving.das.ledger import Ledger
from loadmaster.serving.das.machines import Park, park_of
from loadmaster.serving.fields import wrong_field

if TYPE_CHECKING:
    from loadmaster.serving.das.schema import DasState, Job

MOST_ROWS = 1_000_000  # of the table of placements: every machine that each job could be on


class Books(NamedTuple):
    """Who there is and what is free. They are shared: whoever wants to book takes a copy."""

    park: Park
    ledger: Ledger  # with all running jobs booked
    jobs: dict[str, Job]  # by their ids
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
    ledger = Ledger(park)
    known: dict[str, Job] = {}
    machines, rows, waiting = len(state.machines), 0, 0
    for place, job in enumerate(state.jobs):
        name, kind, instances = job.id, job.gpu_type, job.instances
        if name in known:
            raise wrong_field(
                ("jobs", place, "id"),
                name,
                f"job {name!r} stands there twice; expected another id",
            )
        known[name] = job
        rows += instances if instances < machines else machines
        if kind is not None and kind not in park.number:
            expected = ", ".join(sorted(park.number))
            raise wrong_field(
                ("jobs", place, "gpu_type"),
                kind,
                f"unknown GPU type {kind!r}; expected one of {expected}",
            )
        if job.placements:
            if fault := ledger.book(job, job.placements):
                inside = () if fault.place is None else (fault.place, "machine")
                raise wrong_field(("jobs", place, "placements", *inside), None, fault.why)
            continue
        waiting += 1
        if job.running_s > 0 or job.speed is not None:
            field = "running_s" if job.running_s > 0 else "speed"
            raise wrong_field(
                ("jobs", place, field),
                getattr(job, field),
                f"job {name!r} has no placements, so it waits; expected no {field}",
            )
    if rows > MOST_ROWS:
        raise wrong_field(
            ("jobs",),
            None,
            f"these gangs could be in {rows:,} places; expected at most {MOST_ROWS:,}",
        )
    return Books(park, ledger, known, waiting)
