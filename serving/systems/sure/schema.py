"""Messages of SURE's endpoint: the state of a streaming job, a decision, the outcome of a time."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.config import JsonDict

from loadmaster.serving.system import Record, State
from loadmaster.serving.systems.sure.records import (
    DEFAULT_INSTANCES,
    EDGES_MAX,
    INSTANCES_MAX,
    TASKS_MAX,
    Instances,
    Minutes,
    Name,
    Snapshots,
    Task,
)
from loadmaster.serving.systems.sure.snapshot import ParsedJob, parse_job

WEEK_MIN = 10_080
EXAMPLE: JsonDict = {
    "job": "click-sessions",
    "tasks": [
        {"name": "clicks", "max_parallelism": 8},
        {"name": "sessions", "id": "cbc357ccb763df2852fee8c4fc7d55f2", "max_parallelism": 32},
        {"name": "store", "max_parallelism": 32},
    ],
    "edges": [["clicks", "sessions"], ["sessions", "store"]],
    "snapshots": {
        "minutes_ago": [2, 1, 0],
        "parallelism": [[2, 4, 1], [2, 4, 1], [2, 4, 1]],
        "busy_ms_per_s": [[310, 930, 240], [305, 955, 251], [301, 962, 250]],
        "busy_max_ms_per_s": [[340, 990, 240], [330, 1000, 251], [333, 1000, 250]],
        "idle_ms_per_s": [[520, 70, 760], [505, 45, 749], [489, 38, 750]],
        "backpressured_ms_per_s": [[170, 0, 0], [190, 0, 0], [210, 0, 0]],
        "records_in_per_s": [[0, 4890, 1220], [0, 4910, 1230], [0, 4915, 1228]],
        "records_out_per_s": [[4900, 1220, 0], [4920, 1230, 0], [4915, 1228, 0]],
        "buffer_usage": [[0, 0.81, 0.04], [0, 0.9, 0.05], [0, 0.94, 0.05]],
        "pending_records": [[12000, 0, 0], [34800, 0, 0], [63900, 0, 0]],
    },
    "time_of_week_min": 2130,
    "minutes_since_restart": 412,
    "restart_minutes": 0.8,
}


class SureState(State):
    """A streaming job with the metrics of its tasks over the last minutes."""

    as_structs = True
    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})

    job: Name = Field(description="Its name or id.")
    tasks: tuple[Task, ...] = Field(
        min_length=1, max_length=TASKS_MAX, description="All of them, in the order of the tables."
    )
    edges: tuple[Annotated[tuple[Name, ...], Field(min_length=2, max_length=2)], ...] = Field(
        max_length=EDGES_MAX, description="Pairs of names: a task, and one that reads from it."
    )
    snapshots: Snapshots = Field(description="Metrics of the last minutes; the more, the better.")
    time_of_week_min: float = Field(
        ge=0, le=WEEK_MIN, description="Minutes since Monday 00:00 UTC, of the last snapshot."
    )
    minutes_since_restart: Minutes | None = Field(
        default=None, description="Since the job was last started or rescaled; null: long ago."
    )
    restart_minutes: Annotated[float, Field(ge=0, le=1e4)] | None = Field(
        default=None, description="How long the job was down then; default: one minute."
    )
    max_instances: int = Field(
        default=DEFAULT_INSTANCES,
        ge=1,
        le=INSTANCES_MAX,
        description="The most instances of all tasks together.",
    )

    @cached_property
    def parsed(self) -> ParsedJob:
        """The state in the simulator's tables, read-only.

        `model_copy` keeps it: change tasks or snapshots by validating a new state.
        """
        return parse_job(self)

    def check(self) -> None:
        parsed = self.parsed  # raises the first fault
        assert len(parsed.names) == len(self.tasks)


class Bounds(Record):
    """Parallelism of a vertex, as Flink takes it."""

    lowerBound: int = Field(default=1, ge=1, le=1)  # noqa: N815 (Flink's name)
    upperBound: Instances  # noqa: N815 (Flink's name)


class Requirement(Record):
    parallelism: Bounds


class SureDecision(Record):
    """Instances of every task. Any change restarts the job."""

    act: bool = Field(description="Whether anything changes; if not, there is nothing to do.")
    parallelism: dict[Name, Instances] = Field(
        max_length=TASKS_MAX, description="Of all tasks by name, also of those that do not change."
    )
    requirements: dict[Name, Requirement] = Field(
        max_length=TASKS_MAX,
        description="Body of PUT /jobs/:id/resource-requirements, by vertex id or name.",
    )


class SureOutcome(Record):
    """Means over a time in which decisions were carried out."""

    job: Name
    latency_s: float = Field(
        ge=0,
        le=1e9,
        description="Seconds that a record took from source to sink, with its wait at the source.",
        examples=[12.5],
    )
    utilisation: float = Field(
        ge=0, le=1, description="Busy share of all instances; backpressured is not busy."
    )


def to_decision(state: SureState, parallelism: Mapping[str, int]) -> SureDecision:
    """The decision that gives every task so many instances; `parallelism` is by name."""
    now = state.snapshots.parallelism[-1]
    plan = {task.name: int(parallelism[task.name]) for task in state.tasks}
    return SureDecision.model_validate(
        {
            "act": any(plan[task.name] != now[place] for place, task in enumerate(state.tasks)),
            "parallelism": plan,
            "requirements": {
                task.id or task.name: {"parallelism": {"upperBound": plan[task.name]}}
                for task in state.tasks
            },
        }
    )
