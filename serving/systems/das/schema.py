"""States, decisions and outcomes of DAS's endpoint."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import Annotated

from pydantic import Field

from loadmaster.serving.system import Record, State, field_error
from loadmaster.serving.systems.das import records
from loadmaster.serving.systems.das.parsed_state import ParsedState, parse_state


class DasState(State):
    """A cluster of GPUs at an event: a job has arrived or ended, or time has passed."""

    as_structs = True

    machines: tuple[records.Machine, ...] = Field(min_length=1, max_length=records.MOST_MACHINES)
    jobs: tuple[records.Job, ...] = Field(
        max_length=records.MOST_JOBS,
        description="All jobs that wait or run; of equal age, the first one arrived first. A job "
        "that does not fit on the empty cluster is left waiting.",
    )
    users: dict[Annotated[str, Field(max_length=100)], records.Finished] = Field(
        default={}, max_length=records.MOST_JOBS, description="Users' finished jobs, if known."
    )
    all_users: records.Finished | None = Field(
        default=None,
        description="Finished jobs of all users together; default: of those in `users`.",
    )
    ranks: dict[records.Name, records.Rank] = Field(
        default={},
        max_length=records.MOST_JOBS,
        description="`ranks` of the last decision, as it was. Between replannings jobs keep their "
        "ranks, and a job keeps the correction with which it started until it has progressed. "
        "Jobs that are not listed are new; finished ones are ignored.",
    )
    history: tuple[records.Note, ...] = Field(
        default=(), max_length=64, description="Speeds at earlier decisions, the latest first."
    )
    running_order: tuple[records.Name, ...] = Field(
        default=(),
        max_length=records.MOST_JOBS,
        description="Running jobs in the order in which the policy observes them, if there are "
        "more than it observes; others follow, the longest running first.",
    )
    backfill: bool = Field(
        default=True, description="False: a job that does not fit blocks those behind it."
    )
    ask: records.Ask = Field(
        default="event",
        description="event: place jobs, reconsider running ones if the policy does so, place "
        "again. Or a single one of these phases. A policy that corrects a rule, and a rule that "
        "preempts, replan at `event`: send it once a minute, and `placing` at events between.",
    )

    @cached_property
    def parsed(self) -> ParsedState:
        """Indexes and free capacity, computed once by validation.

        `model_copy` keeps them: a state with other machines or jobs must be built anew.
        """
        return parse_state(self.machines, self.jobs)

    def check(self) -> None:
        jobs = self.parsed.jobs
        for place, (later, earlier) in enumerate(pairwise(self.history), start=1):
            if earlier.age_s < later.age_s:
                fault = "younger than the entry before it; expected the latest first"
                raise field_error(("history", place, "age_s"), fault)
        listed: set[str] = set()
        for place, name in enumerate(self.running_order):
            if name in listed or name not in jobs or not jobs[name].placements:
                fault = "is listed twice" if name in listed else "is not a running job"
                fault = f"{name!r} {fault}; expected running jobs, each once"
                raise field_error(("running_order", place), fault)
            listed.add(name)


class Start(Record):
    """Start of a waiting job, or of one that the same decision stops."""

    job: records.Name
    placements: tuple[records.Placement, ...] = Field(
        min_length=1, max_length=records.MOST_MACHINES
    )


class DasDecision(Record):
    """Stop first, then start; a job in both moves."""

    start: tuple[Start, ...] = Field(max_length=records.MOST_JOBS)
    stop: tuple[records.Name, ...] = Field(default=(), max_length=records.MOST_JOBS)
    wait: int = Field(ge=0, description="Jobs that wait afterwards.")
    ranks: dict[records.Name, records.Rank] = Field(
        default={},
        max_length=records.MOST_JOBS,
        description="What the next decision needs to know of this one: send it with the next "
        "state. Empty unless the policy corrects a rule, or is a rule that predicts run times.",
    )


class DasOutcome(Record):
    """A finished job."""

    job: records.Name
    completion_s: float = Field(
        ge=0, le=records.LONGEST_S, description="From its arrival to its end.", examples=[5400]
    )
    run_s: records.Seconds | None = Field(default=None, description="Part of it on machines.")
    fee: float | None = Field(default=None, ge=0, le=1e9, description="Dollars.")
