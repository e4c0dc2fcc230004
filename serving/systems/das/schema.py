"""What DAS is asked and what it answers: machines, jobs, and who goes where."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field, model_validator

from loadmaster.serving.system import Record, State
from loadmaster.serving.systems.das.checks import Books, books_of, check_state

MOST_MACHINES = 2_000
MOST_JOBS = 5_000
MOST_INSTANCES = 10_000
LONGEST_S = 1e9  # some thirty years

Name = Annotated[str, Field(min_length=1, max_length=100)]
Seconds = Annotated[float, Field(ge=0, le=LONGEST_S)]
Speed = Annotated[float, Field(ge=0, le=1_000)]
Gpus = Annotated[float, Field(ge=0.01, le=1_000)]

Ask = Literal["event", "placing", "reconsidering", "placing again"]


class Machine(Record):
    """A machine; its GPUs are one pool, and so are its cores."""

    name: Name = Field(examples=["gpu-node-07"])
    gpus: int = Field(ge=1, le=1_000, description="Whole GPUs.", examples=[8])
    gpu: Name = Field(
        description="Type of its GPUs: T4, K80, P100, V100, A10, A100 ... or one of your own, of "
        "which speed and price must be told.",
        examples=["V100"],
    )
    cpus: float = Field(ge=0.01, le=100_000, description="Cores, to the hundredth.", examples=[96])
    rack: Name = Field(
        default="-", description="Machines of one rack have a fast network.", examples=["rack-2"]
    )
    speed: float | None = Field(
        default=None, ge=0.001, le=1_000, description="Of one GPU, a V100 being 1; default by type."
    )
    price_per_hour: float | None = Field(
        default=None, ge=0, le=1e6, description="Dollars, of one GPU; default by type."
    )
    kept_speed: float | None = Field(
        default=None,
        ge=0.001,
        le=1,
        description="What jobs that share a GPU there kept of their speed when it was measured, "
        "where their neighbours have changed since; default: by those that run there now.",
    )


class Placement(Record):
    """So many instances of a gang on one machine."""

    machine: Name
    instances: int = Field(ge=1, le=MOST_INSTANCES)


class Job(Record):
    """A gang: all of its instances run, or none. With placements it runs, without it waits."""

    id: Name = Field(examples=["1742"])
    user: Annotated[str, Field(max_length=100)] = ""
    instances: int = Field(default=1, ge=1, le=MOST_INSTANCES)
    gpus: Gpus = Field(
        description="GPUs for each instance, to the hundredth; a fraction is shared with others.",
        examples=[0.5],
    )
    cpus: float = Field(default=0, ge=0, le=100_000, description="Cores for each instance.")
    gpu_type: Name | None = Field(default=None, description="The only type it runs on.")
    communication: float = Field(
        default=0, ge=0, le=1, description="Share of its time the gang spends communicating."
    )
    age_s: Seconds = Field(description="Since it arrived.", examples=[840.5])
    ran_s: Seconds = Field(default=0, description="On machines before its present run.")
    duration_s: Seconds | None = Field(
        default=None,
        description="Its run time on an undisturbed V100, where it is known; only policies that "
        "learnt with known durations look at it.",
    )
    placements: tuple[Placement, ...] = Field(
        default=(), max_length=MOST_MACHINES, description="Where it runs; empty: it waits."
    )
    running_s: Seconds = Field(default=0, description="Since it was placed where it is.")
    speed: Speed | None = Field(
        default=None,
        description="As measured, an undisturbed V100 being 1; default: what is expected of its "
        "machines and neighbours.",
    )


class Finished(Record):
    """What is known of a user's finished jobs."""

    jobs: int = Field(ge=0, le=10**9)
    mean_log_minutes: float = Field(
        ge=0, le=100, description="Mean of log(1 + minutes on machines) over these jobs."
    )


class Note(Record):
    """Speeds as they were at an earlier decision."""

    age_s: Seconds = Field(description="Since then. 0: noted at this very event.")
    speeds: dict[Name, Speed] = Field(
        max_length=MOST_MACHINES,
        description="Mean speed of the instances on each machine where anything ran.",
    )


class DasState(State):
    """A cluster of GPUs at an event: a job has arrived or ended, or time has passed."""

    machines: tuple[Machine, ...] = Field(min_length=1, max_length=MOST_MACHINES)
    jobs: tuple[Job, ...] = Field(
        max_length=MOST_JOBS,
        description="All that wait or run; of equal age, the first one came first. A job that "
        "even the empty cluster could not hold is left waiting.",
    )
    users: dict[Annotated[str, Field(max_length=100)], Finished] = Field(
        default={}, max_length=MOST_JOBS, description="Users' finished jobs, where they are known."
    )
    history: tuple[Note, ...] = Field(
        default=(), max_length=64, description="Speeds at earlier decisions, the latest first."
    )
    running_order: tuple[Name, ...] = Field(
        default=(),
        max_length=MOST_JOBS,
        description="Running jobs in the order in which they are looked at where the policy looks "
        "at fewer than there are; others follow, the longest running first.",
    )
    backfill: bool = Field(
        default=True, description="False: a job that does not fit blocks those behind it."
    )
    ask: Ask = Field(
        default="event",
        description="event: place jobs, reconsider running ones if the policy does so, place "
        "again. Or a single one of these moments.",
    )

    @cached_property
    def books(self) -> Books:
        """Who there is and what is free, made once, when the state is checked.

        A state with other machines or jobs is to be made anew, not by `model_copy`.
        """
        return books_of(self)

    @model_validator(mode="after")
    def _must_agree(self) -> DasState:
        check_state(self)
        return self


class Start(Record):
    """A waiting job, or one that is stopped by the same decision, begins to run."""

    job: Name
    placements: tuple[Placement, ...] = Field(min_length=1, max_length=MOST_MACHINES)


class DasDecision(Record):
    """Stop first, then start. A job in both moves."""

    start: tuple[Start, ...] = Field(max_length=MOST_JOBS)
    stop: tuple[Name, ...] = Field(default=(), max_length=MOST_JOBS)
    wait: int = Field(ge=0, description="Jobs that wait when all this is done.")


class DasOutcome(Record):
    """A job that is done."""

    job: Name
    completion_s: float = Field(
        ge=0, le=LONGEST_S, description="From its arrival to its end.", examples=[5400]
    )
    run_s: Seconds | None = Field(default=None, description="Of that on machines.")
    fee: float | None = Field(default=None, ge=0, le=1e9, description="Dollars.")
