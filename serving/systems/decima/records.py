"""Parts of a state: executor classes, jobs and their stages, with the largest sizes accepted.

Fields hold only what the operator of a Spark-like cluster can know. Defaults keep a state written
by hand short.
"""

from typing import Annotated

from pydantic import Field

from loadmaster.serving.system import Record

JOBS_MAX = 1_000
JOB_STAGES_MAX = 1_000
STAGES_MAX = 20_000  # of all jobs together
EDGES_MAX = 100_000
CLASSES_MAX = 64
EXECUTORS_MAX = 10_000
TASKS_MAX = 1_000_000  # of a stage
TASK_MS_MAX = 2**31 - 1
ROUND_MAX = 256  # decisions in a response; executors beyond them are undecided

Name = Annotated[str, Field(min_length=1, max_length=200)]
Executors = Annotated[int, Field(ge=0, le=EXECUTORS_MAX)]
Tasks = Annotated[int, Field(ge=0, le=TASKS_MAX)]
Size = Annotated[float, Field(ge=0, le=1e9)]


class ExecutorClass(Record):
    """Executors of one kind. A stage runs only where both its demands are met."""

    count: int = Field(ge=1, le=EXECUTORS_MAX, description="Number of executors.")
    free: Executors = Field(
        default=0,
        description="Executors of this class to place: those of the source not yet assigned.",
    )
    cpu: Size = Field(default=1.0, description="CPU of each, in the unit of the stages' demands.")
    memory: Size = Field(default=1.0, description="Memory of each, likewise.")


class Source(Record):
    """Owner of the executors to place: none, a job with idle ones, or a stage that ran out of
    tasks, whose executors are idle or run their last task."""

    job: Name | None = Field(
        default=None, description="Job they belong to; without it they belong to none."
    )
    stage: Name | None = Field(
        default=None, description="Stage of that job that has no task left to start."
    )


class Stage(Record):
    """Similar tasks that may run in parallel once all parents are finished."""

    id: Name = Field(description="Unique within its job.")
    tasks: int = Field(ge=1, le=TASKS_MAX, description="Number of tasks in all.")
    task_ms: float = Field(
        ge=0, le=TASK_MS_MAX, description="Mean duration of a task, in milliseconds."
    )
    started: Tasks = Field(default=0, description="Tasks running or finished.")
    finished: Tasks = Field(default=0, description="Tasks finished.")
    parents: tuple[Name, ...] = Field(
        default=(), max_length=JOB_STAGES_MAX, description="Stages whose results it needs."
    )
    promised: Executors = Field(
        default=0, description="Executors committed to it that still work elsewhere."
    )
    moving: Executors = Field(default=0, description="Executors moving to it.")
    cpu: Size = Field(default=0.0, description="CPU that an executor needs to run it.")
    memory: Size = Field(default=0.0, description="Memory that an executor needs to run it.")
    unlocked: int = Field(
        default=0,
        ge=0,
        le=2**53,
        description="Order in which stages became runnable; of equal ones, the one listed first.",
    )
    chosen: bool = Field(
        default=False,
        description="Whether it was chosen earlier in this round: a stage is chosen once a round.",
    )


class Job(Record):
    """A DAG of stages, at least one of them unfinished."""

    id: Name = Field(description="Unique in the state.")
    stages: tuple[Stage, ...] = Field(
        min_length=1,
        max_length=JOB_STAGES_MAX,
        description="All stages, the finished ones too: they make up the job's size.",
    )
    age_s: float = Field(default=0.0, ge=0, le=1e9, description="Seconds since it arrived.")
    executors: Executors | None = Field(
        default=None,
        description="Executors that belong to it, working or idle, with those to place. "
        "Default: those that run its tasks, and those to place.",
    )
    promised: Executors = Field(
        default=0,
        description="Executors promised to its stages that belong to another job or to none.",
    )
