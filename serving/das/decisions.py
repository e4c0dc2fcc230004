"""Decisions: read off the tables, checked against a state, cut down to what is allowed."""

from __future__ import annotations

from collections.abc import Mapping

from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.serving.das.ledger import Ledger
from loadmaster.serving.das.schema import DasDecision, DasState, Job, Placement, Start
from loadmaster.serving.das.tables import Tables
from loadmaster.serving.endpoint import Quantity


def decision_of(tables: Tables) -> DasDecision:
    """What is different from when the tables were told; jobs start in the order of their keys.

    One that was stopped and started again in its old place was left alone.
    """
    state = tables.state
    table = state.jobs[:-1, [at.FIRST_ROW, at.ROWS_USED]].tolist()
    stopped, started = [], []
    for number, ((first, used), job) in enumerate(zip(table, tables.arrivals, strict=True)):
        if used == 0:
            if job.placements:
                stopped.append(job.id)
            continue
        # Since now: it was placed just now. A job may also have been told to be that new.
        if job.placements and state.progress[number, at.PLACED_S] != 0:
            continue
        rows = state.rows[first : first + used, at.MACHINE : at.COUNT + 1].tolist()
        placed = {tables.machines[machine].name: count for machine, count in rows}
        if job.placements:
            if placed == {one.machine: one.instances for one in job.placements}:
                continue
            stopped.append(job.id)
        started.append((state.key[number], number, placed))
    started.sort(key=lambda one: one[:2])
    return DasDecision(
        start=tuple(
            Start(
                job=tables.arrivals[number].id,
                placements=tuple(
                    Placement(machine=name, instances=count) for name, count in placed.items()
                ),
            )
            for _, number, placed in started
        ),
        stop=tuple(stopped),
        wait=int(state.clock[at.QUEUED]),
    )


def quantities_of(decision: DasDecision) -> tuple[Quantity, ...]:
    """Whether each job that is started or stopped runs. One that moves runs before and after."""
    starts, stops = {start.job for start in decision.start}, set(decision.stop)
    return tuple(
        Quantity(f"job {name}", float(name in stops), float(name in starts))
        for name in [*decision.stop, *(s.job for s in decision.start if s.job not in stops)]
    )


def fault_in(state: DasState, decision: DasDecision) -> str | None:
    """Why it cannot be carried out; None if it can."""
    known = {job.id: job for job in state.jobs}
    ledger, stopped = _ledger(state), set()
    for name in decision.stop:
        job = known.get(name)
        if job is None:
            return f"job {name!r} is to stop, and is unknown"
        if not job.placements or name in stopped:
            return f"job {name!r} is to stop, and does not run"
        ledger.release(job)
        stopped.add(name)
    started = set()
    for start in decision.start:
        job = known.get(start.job)
        if job is None:
            return f"job {start.job!r} is to start, and is unknown"
        if start.job in started or (job.placements and start.job not in stopped):
            return f"job {start.job!r} is to start, and runs already"
        if fault := ledger.book(job, start.placements):
            return fault.why
        started.add(start.job)
    wait = _waiting(state, decision.start, decision.stop)
    if decision.wait != wait:
        return f"{decision.wait} jobs are said to wait, and {wait} would"
    return None


def constrained(
    state: DasState, decision: DasDecision, allowed: Mapping[str, float]
) -> DasDecision:
    """Without the starts and stops that are not allowed, nor the starts that lack room then.

    A job that moves and finds its new place taken stays in its old one.
    """

    def runs(name: str, otherwise: bool) -> bool:
        return allowed.get(f"job {name}", float(otherwise)) >= 0.5

    starts = tuple(start for start in decision.start if runs(start.job, True))
    moving = {start.job for start in starts} & set(decision.stop)
    stops = tuple(name for name in decision.stop if name in moving or not runs(name, False))
    known = {job.id: job for job in state.jobs}
    while True:
        fitting = _fitting(state, known, starts, stops)
        stuck = moving - {start.job for start in fitting}
        if not stuck:
            break
        moving -= stuck
        starts = tuple(start for start in starts if start.job not in stuck)
        stops = tuple(name for name in stops if name not in stuck)
    return DasDecision(start=fitting, stop=stops, wait=_waiting(state, fitting, stops))


def _fitting(
    state: DasState, known: Mapping[str, Job], starts: tuple[Start, ...], stops: tuple[str, ...]
) -> tuple[Start, ...]:
    """The starts for which there is room, in their order."""
    ledger = _ledger(state)
    for name in stops:
        ledger.release(known[name])
    return tuple(
        start for start in starts if ledger.book(known[start.job], start.placements) is None
    )


def _ledger(state: DasState) -> Ledger:
    ledger = Ledger(state.machines)
    for job in state.jobs:
        if job.placements:
            ledger.book(job, job.placements)
    return ledger


def _waiting(state: DasState, starts: tuple[Start, ...], stops: tuple[str, ...]) -> int:
    return sum(not job.placements for job in state.jobs) + len(stops) - len(starts)
