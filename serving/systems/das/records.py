"""Records in states of DAS's endpoint: machines, jobs, users and earlier speeds."""

from typing import Annotated, Literal

from pydantic import Field

from loadmaster.serving.system import Record

MOST_MACHINES = 2_000
MOST_JOBS = 5_000
MOST_INSTANCES = 10_000
LONGEST_S = 1e9  # about thirty years

Name = Annotated[str, Field(min_length=1, max_length=100)]
Seconds = Annotated[float, Field(ge=0, le=LONGEST_S)]
Speed = Annotated[float, Field(ge=0, le=1_000)]
Gpus = Annotated[float, Field(ge=0.01, le=1_000)]
Ask = Literal["event", "placing", "reconsidering", "placing again"]


class Machine(Record):
    """A machine with a pool of GPUs and a pool of cores."""

    name: Name = Field(examples=["gpu-node-07"])
    gpus: int = Field(ge=1, le=1_000, description="Whole GPUs.", examples=[8])
    gpu: Name = Field(
        description="Type of its GPUs: T4, K80, P100, V100, A10, A100 ... or another one, which "
        "needs speed and price_per_hour.",
        examples=["V100"],
    )
    cpus: float = Field(ge=0.01, le=100_000, description="Cores, to the hundredth.", examples=[96])
    rack: Name = Field(
        default="-", description="Machines of one rack share a fast network.", examples=["rack-2"]
    )
    speed: float | None = Field(
        default=None,
        ge=0.001,
        le=1_000,
        description="Of one GPU relative to a V100; default by type.",
    )
    price_per_hour: float | None = Field(
        default=None, ge=0, le=1e6, description="Dollars, of one GPU; default by type."
    )
    kept_speed: float | None = Field(
        default=None,
        ge=0.001,
        le=1,
        description="Share of their speed that jobs sharing a GPU there kept when it was measured, "
        "if their neighbours have changed since; default: modelled from the jobs running now.",
    )


class Placement(Record):
    """Instances of a gang on one machine."""

    machine: Name
    instances: int = Field(ge=1, le=MOST_INSTANCES)


class Job(Record):
    """A gang: all instances run, or none. It runs if it has placements, else it waits."""

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
        description="Run time on an undisturbed V100, if known; only used by policies trained "
        "with known durations.",
    )
    placements: tuple[Placement, ...] = Field(
        default=(), max_length=MOST_MACHINES, description="Machines it runs on; empty: it waits."
    )
    running_s: Seconds = Field(default=0, description="Since it was placed where it is.")
    speed: Speed | None = Field(
        default=None,
        description="Measured, relative to an undisturbed V100; default: modelled from its "
        "machines and neighbours.",
    )


class Finished(Record):
    """Statistics of a user's finished jobs."""

    jobs: int = Field(ge=0, le=10**9)
    mean_log_minutes: float = Field(
        ge=0, le=100, description="Mean of log(1 + minutes on machines) over these jobs."
    )


class Rank(Record):
    """Rank of a job under a rule that predicts run times, as the last decision left it."""

    key: float = Field(ge=0, le=1e100, description="The lowest goes first; includes `correction`.")
    correction: float | None = Field(
        default=None,
        ge=-50,
        le=50,
        description="Of the policy: the rule's key was divided by exp(correction). Null: none yet.",
    )


class Note(Record):
    """Speeds at an earlier decision."""

    age_s: Seconds = Field(description="Since then. 0: at this event.")
    speeds: dict[Name, Speed] = Field(
        max_length=MOST_MACHINES,
        description="Mean speed of the instances on each machine that ran any.",
    )
