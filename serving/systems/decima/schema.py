"""Messages of Decima's endpoint: the state of a cluster, a decision, the outcome of a job."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Literal

from pydantic import ConfigDict, Field
from pydantic.config import JsonDict

from loadmaster.envs.dag_scheduling.snapshot import ClusterSnapshot
from loadmaster.serving.system import Record, State, field_error
from loadmaster.serving.systems.decima.records import (
    CLASSES_MAX,
    EXECUTORS_MAX,
    JOBS_MAX,
    ExecutorClass,
    Executors,
    Job,
    Name,
    Source,
)
from loadmaster.serving.systems.decima.snapshot import (
    Fault,
    StageRows,
    executor_faults,
    size_faults,
    stage_faults,
    stage_rows,
    to_snapshot,
)

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


class DecimaState(State):
    """State of a cluster with executors to place."""

    as_structs = True
    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})

    executors: tuple[ExecutorClass, ...] = Field(
        min_length=1, max_length=CLASSES_MAX, description="The cluster, by classes of executors."
    )
    jobs: tuple[Job, ...] = Field(
        min_length=1, max_length=JOBS_MAX, description="Unfinished jobs in order of arrival."
    )
    source: Source = Field(default=Source(), description="Owner of the executors to place.")
    more_to_come: bool = Field(
        default=True,
        description="Whether further events will follow, such as jobs, beside the end of running "
        "tasks and moves. If not and nothing runs, executors may not be left idle.",
    )
    ask: Literal["round", "one"] = Field(
        default="round",
        description="round: place all of these executors; one: choose the next stage only.",
    )

    @cached_property
    def snapshot(self) -> ClusterSnapshot:
        """The state in the simulator's tables, read-only.

        `model_copy` keeps the snapshot: change jobs or executors by validating a new state.
        """
        return to_snapshot(
            self.executors, self.jobs, self._stage_rows, self.source, self.more_to_come
        )

    @cached_property
    def _stage_rows(self) -> StageRows:
        return stage_rows(self.jobs)

    def check(self) -> None:
        for fault in self._faults():
            raise field_error(*fault)

    def _faults(self) -> Iterator[Fault]:
        yield from size_faults(self.executors, self._stage_rows)
        yield from stage_faults(self.snapshot, self.jobs)
        yield from executor_faults(self.snapshot, self.source)


class Assignment(Record):
    """Executors for a stage. Of several classes that fit, the smallest executors come first."""

    job: Name
    stage: Name
    executors: int = Field(
        ge=1, le=EXECUTORS_MAX, description="Number of free executors that it gets."
    )
    limit: int = Field(
        ge=1,
        le=2 * EXECUTORS_MAX,
        description="Executors that its job may hold for now, including these.",
    )


class DecimaDecision(Record):
    """Assignments in the order of the decisions. Every free executor is assigned, idle or
    undecided."""

    assignments: tuple[Assignment, ...] = ()
    idle: Executors = Field(default=0, description="Executors left idle by the decision.")
    undecided: Executors = Field(
        default=0, description="Executors without a decision: send the state again."
    )


class DecimaOutcome(Record):
    """A finished job."""

    job: Name
    completion_s: float = Field(
        ge=0, le=1e9, description="Seconds from its arrival to the end of its last task."
    )
    work_s: float = Field(gt=0, le=1e12, description="Work of the job in executor-seconds.")
