"""What is said to Decima's endpoint and by it: a cluster of executors, its jobs and their stages.

Only what whoever runs a Spark-like cluster can know stands here. What is left out has its usual
value, so that a state written by hand is short.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic.config import JsonDict

from loadmaster.envs.dag_scheduling.snapshot import ClusterSnapshot
from loadmaster.serving.system import Record, State
from loadmaster.serving.systems.decima.checks import check_numbers
from loadmaster.serving.systems.decima.limits import (
    CLASSES_MAX,
    EXECUTORS_MAX,
    JOB_STAGES_MAX,
    JOBS_MAX,
    TASK_MS_MAX,
    TASKS_MAX,
)
from loadmaster.serving.systems.decima.tables import moment_of

Name = Annotated[str, Field(min_length=1, max_length=200)]
Executors = Annotated[int, Field(ge=0, le=EXECUTORS_MAX)]
Tasks = Annotated[int, Field(ge=0, le=TASKS_MAX)]
Size = Annotated[float, Field(ge=0, le=1e9)]


EXAMPLE: JsonDict = {
    "executors": [{"count": 8, "free": 3}],
    "source": {"job": "daily-report"},
    "jobs": [
        {
            "id": "daily-report",
            "age_s": 41.5,
            "stages": [
                {"id": "read", "tasks": 12, "started": 12, "finished": 12, "task_ms": 900},
                {"id": "join", "tasks": 2, "task_ms": 2400, "parents": ["read"]},
            ],
        },
        {
            "id": "ad-hoc-4711",
            "age_s": 6.2,
            "stages": [
                {"id": "scan", "tasks": 20, "started": 7, "finished": 3, "task_ms": 310.5},
                {"id": "sum", "tasks": 1, "task_ms": 150, "parents": ["scan"]},
            ],
        },
    ],
}


class ExecutorClass(Record):
    """Executors of one kind. A stage runs only where both its demands are met."""

    count: int = Field(ge=1, le=EXECUTORS_MAX, description="How many there are.")
    free: Executors = Field(
        default=0,
        description="How many of them are asked about: those of the source that nobody has placed.",
    )
    cpu: Size = Field(default=1.0, description="What each offers, in the unit of stages' demands.")
    memory: Size = Field(default=1.0, description="Likewise.")


class Source(Record):
    """Whose executors are asked about: nobody's, a job's idle ones, or those of a stage that ran
    out of tasks, be they idle or still at their last one."""

    job: Name | None = Field(
        default=None, description="The job they belong to; without it they belong to none."
    )
    stage: Name | None = Field(
        default=None, description="The stage of that job which has no task left to start."
    )


class Stage(Record):
    """Tasks alike that may run side by side once all parents are finished."""

    id: Name = Field(description="Unique within its job.")
    tasks: int = Field(ge=1, le=TASKS_MAX, description="How many it has in all.")
    task_ms: float = Field(
        ge=0, le=TASK_MS_MAX, description="Mean duration of a task, in milliseconds."
    )
    started: Tasks = Field(default=0, description="Tasks that run or are finished.")
    finished: Tasks = Field(default=0, description="Tasks that are finished.")
    parents: tuple[Name, ...] = Field(
        default=(), max_length=JOB_STAGES_MAX, description="Stages it needs the results of."
    )
    promised: Executors = Field(
        default=0, description="Executors that will come to it when they are done elsewhere."
    )
    moving: Executors = Field(default=0, description="Executors on their way to it.")
    cpu: Size = Field(default=0.0, description="What an executor must offer to run it.")
    memory: Size = Field(default=0.0, description="Likewise.")
    unlocked: int = Field(
        default=0,
        ge=0,
        le=2**53,
        description="A count that tells which of the runnable stages became so first; of equal "
        "ones, the one listed first.",
    )
    chosen: bool = Field(
        default=False,
        description="Whether some of these executors were given to it just before, with the "
        "rest still asked about: a stage is chosen once a round.",
    )


class Job(Record):
    """A DAG of stages, at least one of them unfinished."""

    id: Name = Field(description="Unique in the state.")
    stages: tuple[Stage, ...] = Field(
        min_length=1,
        max_length=JOB_STAGES_MAX,
        description="All of them, the finished ones too: they tell the job's size.",
    )
    age_s: float = Field(default=0.0, ge=0, le=1e9, description="Seconds since it arrived.")
    executors: Executors | None = Field(
        default=None,
        description="Executors that belong to it, working or idle, those asked about among them. "
        "Left out: as many as have its tasks to run, and those asked about.",
    )
    promised: Executors = Field(
        default=0,
        description="Of the executors promised to its stages, those of another job or of none.",
    )


class DecimaState(State):
    """A cluster at a moment when some of its executors can be placed."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})

    executors: tuple[ExecutorClass, ...] = Field(
        min_length=1, max_length=CLASSES_MAX, description="The cluster, by kinds of executor."
    )
    jobs: tuple[Job, ...] = Field(
        min_length=1, max_length=JOBS_MAX, description="Unfinished jobs in order of arrival."
    )
    source: Source = Field(default=Source(), description="Whose executors are asked about.")
    more_to_come: bool = Field(
        default=True,
        description="Whether anything will happen beside the end of running tasks and moves: more "
        "jobs, say. Where nothing will and nothing runs, idling for good is no option.",
    )
    ask: Literal["round", "one"] = Field(
        default="round",
        description="round: place all of these executors; one: name the next stage only.",
    )

    @cached_property
    def moment(self) -> ClusterSnapshot:
        """The same in the simulator's tables, made once; nobody may write into them.

        They are those of the state that was validated: one with other jobs or executors is to be
        made anew, not by `model_copy`.
        """
        return moment_of(self)

    @model_validator(mode="after")
    def _numbers_go_together(self) -> DecimaState:
        check_numbers(self)
        return self


class Assignment(Record):
    """Executors for a stage. Of several classes, those who offer least of all that fit come
    first."""

    job: Name
    stage: Name
    executors: int = Field(ge=1, le=EXECUTORS_MAX, description="How many of the free ones.")
    limit: int = Field(
        ge=1,
        le=2 * EXECUTORS_MAX,
        description="How many executors its job may hold for now, these among them.",
    )


class DecimaDecision(Record):
    """Where the free executors go, in the order of the decisions. All of them are accounted for:
    assigned, idle or undecided."""

    assignments: tuple[Assignment, ...] = ()
    idle: Executors = Field(default=0, description="Executors that are left idle on purpose.")
    undecided: Executors = Field(
        default=0, description="Executors that nothing is said about: ask again."
    )


class DecimaOutcome(Record):
    """A job that is done."""

    job: Name
    completion_s: float = Field(
        ge=0, le=1e9, description="Seconds from its arrival to the end of its last task."
    )
    work_s: float = Field(
        gt=0, le=1e12, description="What it took in all, in seconds of single executors."
    )
