"""Decisions: read off the tables, checked against a state, cut down to what is allowed."""

from __future__ import annotations

from collections.abc import Mapping

from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.serving.system import Quantity
from loadmaster.serving.systems.das.schema import DasDecision, DasState, Start
from loadmaster.serving.systems.das.tables import Tables


def decision_of(tables: Tables) -> DasDecision:
    """What is different from when the tables were told; jobs start in the order of their keys.

    One that was stopped and started again in its old place was left alone.
    """
    state = tables.state
    places = state.rows[:, at.MACHINE : at.COUNT + 1]
    stopped, started = [], []
    # A job that runs since now was placed just now, or was told to be that new.
    is_new = (state.jobs[:-1, at.ROWS_USED] > 0) & (state.progress[:, at.PLACED_S] == 0)
    has_stopped = (state.jobs[:-1, at.ROWS_USED] == 0) & tables.runs
    for number in (is_new | has_stopped).nonzero()[0].tolist():
        job = tables.arrivals[number]
        first, used = state.jobs[number, at.FIRST_ROW : at.ROWS_USED + 1].tolist()
        if used == 0:
            stopped.append(job.id)
            continue
        rows = places[first : first + used].tolist()
        placed = {tables.machines[machine].name: count for machine, count in rows}
        if job.placements:
            if placed == {one.machine: one.instances for one in job.placements}:
                continue
            stopped.append(job.id)
        started.append((float(state.key[number]), number, placed))
    started.sort(key=lambda one: one[:2])
    # In one go: records made one by one cost several times as much.
    return DasDecision.model_validate(
        {
            "start": [
                {
                    "job": tables.arrivals[number].id,
                    "placements": [
                        {"machine": name, "instances": count} for name, count in placed.items()
                    ],
                }
                for _, number, placed in started
            ],
            "stop": stopped,
            "wait": int(state.clock[at.QUEUED]),
        }
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
    known = state.books.jobs
    ledger, stopped = state.books.ledger.copy(), set()
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
    while True:
        fitting = _fitting(state, starts, stops)
        stuck = moving - {start.job for start in fitting}
        if not stuck:
            break
        moving -= stuck
        starts = tuple(start for start in starts if start.job not in stuck)
        stops = tuple(name for name in stops if name not in stuck)
    return DasDecision(start=fitting, stop=stops, wait=_waiting(state, fitting, stops))


def _fitting(
    state: DasState, starts: tuple[Start, ...], stops: tuple[str, ...]
) -> tuple[Start, ...]:
    """The starts for which there is room, in their order."""
    known, ledger = state.books.jobs, state.books.ledger.copy()
    for name in stops:
        ledger.release(known[name])
    return tuple(
        start for start in starts if ledger.book(known[start.job], start.placements) is None
    )


def _waiting(state: DasState, starts: tuple[Start, ...], stops: tuple[str, ...]) -> int:
    return state.books.waiting + len(stops) - len(starts)
