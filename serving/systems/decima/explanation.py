"""Decima's decisions in words."""

from __future__ import annotations

from loadmaster.serving.systems.decima.schema import DecimaDecision, DecimaState

TOLD = 3  # assignments that are named
LONGEST = 40  # characters of an id


def place(job: str, stage: str) -> str:
    return f"job {_short(job)}, stage {_short(stage)}"


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def situation(state: DecimaState) -> str:
    """What there is to place, and for whom."""
    free = sum(group.free for group in state.executors)
    total = sum(group.count for group in state.executors)
    whose = ""
    if state.source.job is not None:
        whose = f" of job {_short(state.source.job)}"
        if state.source.stage is not None:
            whose += f", whose stage {_short(state.source.stage)} has no task left to start"
    return f"{free:,} of {total:,} executors to place{whose}; {_jobs(state)} in the system"


def outcome(decision: DecimaDecision) -> str:
    """Who gets what."""
    parts = [
        f"{'then ' if number else ''}{place(given.job, given.stage)} gets "
        f"{counted(given.executors, 'executor')}, its job may hold {given.limit:,}"
        for number, given in enumerate(decision.assignments[:TOLD])
    ]
    more = len(decision.assignments) - TOLD
    if more > 0:
        executors = sum(given.executors for given in decision.assignments[TOLD:])
        stages = counted(more, "more stage")
        parts.append(f"then {stages} get {counted(executors, 'executor')}")
    if not parts and not decision.undecided:
        parts.append("no stage gets any")
    if decision.idle:
        parts.append(f"{decision.idle:,} left idle")
    if decision.undecided:
        parts.append(f"{decision.undecided:,} undecided")
    return "; ".join(parts)


def _jobs(state: DecimaState) -> str:
    return counted(len(state.jobs), "job")


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 3]}..."
