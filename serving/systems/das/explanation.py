"""A decision in a sentence."""

from __future__ import annotations

from loadmaster.serving.systems.das.schema import DasDecision, DasState, Start

IN_WORDS = 3  # starts, and stops, of a sentence; of a gang's machines too


def summary_of(state: DasState, decision: DasDecision) -> str:
    """What starts where, and who makes room for whom."""
    starts, stops = decision.start, set(decision.stop)
    told = [
        f"job {start.job} {'moves to' if start.job in stops else 'starts on'} {_where(start)}"
        for start in starts[:IN_WORDS]
    ]
    if len(starts) > IN_WORDS:
        told.append(f"{len(starts) - IN_WORDS} more start or move as well")
    halted: list[str] = []
    if stops:
        moved = {start.job for start in starts}
        halted = [name for name in decision.stop if name not in moved]
    for name in halted[:IN_WORDS]:
        left = {one.machine for one in state.books.jobs[name].placements}
        heirs = (
            start.job
            for start in starts
            if not left.isdisjoint(one.machine for one in start.placements)
        )
        heir = next(heirs, None)
        told.append(f"job {name} stops" + (f", making room for job {heir}" if heir else ""))
    if len(halted) > IN_WORDS:
        told.append(f"{len(halted) - IN_WORDS} more stop for others")
    if not told:
        told.append("nothing starts or stops")
    told.append(f"{decision.wait} {'job waits' if decision.wait == 1 else 'jobs wait'}")
    return "; ".join(told)


def _where(start: Start) -> str:
    placements = start.placements
    if len(placements) == 1:
        return placements[0].machine
    if len(placements) > IN_WORDS:
        return f"{len(placements)} machines, most wanted {placements[0].machine}"
    return " and ".join(f"{one.machine} ({one.instances})" for one in placements)
