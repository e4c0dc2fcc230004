"""Reports of Spark drivers: the jobs of an application with their stages, as posted in JSON."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from loadmaster.envs.errors import InputError

VERSION = 1

Text = Annotated[str, Field(max_length=200)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Count = Annotated[int, Field(ge=0, le=1_000_000)]
Milliseconds = Annotated[float, Field(ge=0, le=1e12)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)


class ReportedStage(_Part):
    """A stage that runs, has run or will run; those that Spark skips are left out."""

    id: Annotated[int, Field(ge=0)]
    name: Text = ""
    tasks: Count
    started: Count = 0  # running or finished
    finished: Count = 0
    mean_ms: Milliseconds | None = None  # of the finished tasks
    parents: list[int] = Field(default=[], max_length=1000)


class ReportedJob(_Part):
    """A SQL execution, or a Spark job that belongs to none."""

    id: Name
    name: Text = ""
    age_ms: Milliseconds = 0
    stages: list[ReportedStage] = Field(max_length=1000)

    @property
    def has_started(self) -> bool:
        return any(stage.started for stage in self.stages)

    @property
    def is_unfinished(self) -> bool:
        return any(stage.finished < stage.tasks for stage in self.stages)


class EndedJob(_Part):
    """A job that has ended lately."""

    id: Name
    name: Text = ""
    succeeded: bool
    completion_ms: Milliseconds
    work_ms: Milliseconds


class Report(_Part):
    """An application at one moment; it replaces the report before."""

    version: Literal[1]
    application: Name  # Spark's id
    name: Text = ""
    spark: Text = ""
    acts: bool = False  # whether the scheduler class runs, and not the listener alone
    sequence: int = 0
    plan: Text = ""  # id of the plan in force
    slots: Annotated[int, Field(ge=0, le=1_000_000)]
    executors: Count = 0
    executor_cores: Count = 0  # of each; 0: the driver cannot set their number
    over: bool = False  # the application has ended
    jobs: list[ReportedJob] = Field(max_length=1000)  # unfinished, in order of arrival
    ended: list[EndedJob] = Field(default=[], max_length=1000)


def parse_report(body: bytes) -> Report:
    """Read a report; an InputError names the first field that is wrong."""
    try:
        document = json.loads(body)
    except ValueError:
        raise InputError("the body is not JSON; expected a report") from None
    if not isinstance(document, dict):
        raise InputError("the body is no object; expected a report")
    if document.get("version") != VERSION:
        version = document.get("version")
        raise InputError(f"version: {version!r} is unknown; expected {VERSION}")
    try:
        return Report.model_validate(document)
    except ValidationError as fault:
        first = fault.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{field}: {first['msg']}") from None
