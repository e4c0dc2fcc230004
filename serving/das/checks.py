"""What must be true between the fields of a state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loadmaster.envs.gpu_scheduling.gpus import GPU_TYPES
from loadmaster.serving.das.ledger import Ledger
from loadmaster.serving.fields import wrong_field

if TYPE_CHECKING:
    from loadmaster.serving.das.schema import DasState

MOST_ROWS = 1_000_000  # of the table of placements: every machine that each job could be on


def check_state(state: DasState) -> None:
    """Raise what is wrong, with the field in which it stands."""
    _check_machines(state)
    running = _check_jobs(state)
    for place, later in enumerate(state.history[1:], start=1):
        if later.age_s < state.history[place - 1].age_s:
            raise wrong_field(
                ("history", place, "age_s"),
                later.age_s,
                "younger than the note before it; expected the latest note first",
            )
    listed: set[str] = set()
    for place, name in enumerate(state.running_order):
        if name not in running or name in listed:
            what = "stands there twice" if name in listed else "is no running job"
            raise wrong_field(
                ("running_order", place), name, f"{name!r} {what}; expected running jobs, each once"
            )
        listed.add(name)


def _check_machines(state: DasState) -> None:
    names: set[str] = set()
    for place, machine in enumerate(state.machines):
        if machine.name in names:
            raise wrong_field(
                ("machines", place, "name"),
                machine.name,
                f"machine {machine.name!r} stands there twice; expected another name",
            )
        names.add(machine.name)
        if machine.gpu not in GPU_TYPES and None in (machine.speed, machine.price_per_hour):
            raise wrong_field(
                ("machines", place, "gpu"),
                machine.gpu,
                f"unknown GPU type {machine.gpu!r}; expected one of {', '.join(GPU_TYPES)}, or "
                "speed and price_per_hour beside it",
            )


def _check_jobs(state: DasState) -> set[str]:
    """The ids of those that run."""
    ledger = Ledger(state.machines)
    kinds = {*GPU_TYPES, *(machine.gpu for machine in state.machines)}
    ids: set[str] = set()
    running: set[str] = set()
    machines, rows = len(state.machines), 0
    for place, job in enumerate(state.jobs):
        if job.id in ids:
            raise wrong_field(
                ("jobs", place, "id"),
                job.id,
                f"job {job.id!r} stands there twice; expected another id",
            )
        ids.add(job.id)
        rows += min(job.instances, machines)
        if job.gpu_type is not None and job.gpu_type not in kinds:
            raise wrong_field(
                ("jobs", place, "gpu_type"),
                job.gpu_type,
                f"unknown GPU type {job.gpu_type!r}; expected one of {', '.join(sorted(kinds))}",
            )
        if job.placements:
            running.add(job.id)
            if fault := ledger.book(job, job.placements):
                inside = () if fault.place is None else (fault.place, "machine")
                raise wrong_field(("jobs", place, "placements", *inside), None, fault.why)
        elif job.running_s > 0 or job.speed is not None:
            field = "running_s" if job.running_s > 0 else "speed"
            raise wrong_field(
                ("jobs", place, field),
                getattr(job, field),
                f"job {job.id!r} has no placements, so it waits; expected no {field}",
            )
    if rows > MOST_ROWS:
        raise wrong_field(
            ("jobs",),
            None,
            f"these gangs could be in {rows:,} places; expected at most {MOST_ROWS:,}",
        )
    return running
