"""Parts of a state: tasks of a streaming job and their metrics, with the largest sizes accepted.

All of it is in the REST API of Flink. Tables have a row for each snapshot, with a value for each
task.
"""

from typing import Annotated

from pydantic import Field

from loadmaster.serving.system import Record

TASKS_MAX = 256
EDGES_MAX = 5_000
SNAPSHOTS_MAX = 1_440
INSTANCES_MAX = 100_000
DEFAULT_INSTANCES = 200  # of all tasks together
PARALLELISM_MAX = 32_768  # Flink's largest maximum parallelism
MINUTES_MAX = 1e7  # about 19 years
RECORDS_MAX = 1e15

Name = Annotated[str, Field(min_length=1, max_length=500)]
Minutes = Annotated[float, Field(ge=0, le=MINUTES_MAX)]
Milliseconds = Annotated[float, Field(ge=0, le=1e6)]
Records = Annotated[float, Field(ge=0, le=RECORDS_MAX)]
Share = Annotated[float, Field(ge=0, le=1)]
Instances = Annotated[int, Field(ge=1, le=PARALLELISM_MAX)]

_Row = Field(max_length=TASKS_MAX)


class Task(Record):
    """A vertex of the job graph: operators that scale together."""

    name: Name = Field(description="Unique in the job.", examples=["sessions"])
    id: Name | None = Field(
        default=None,
        description="Flink's vertex id, for `requirements`; default: its name.",
        examples=["cbc357ccb763df2852fee8c4fc7d55f2"],
    )
    max_parallelism: Instances = Field(
        default=128, description="The most instances it may have.", examples=[128]
    )
    source: bool | None = Field(
        default=None, description="Whether it reads from outside; default: if no edge leads to it."
    )
    sink: bool | None = Field(
        default=None, description="Whether no task reads from it; default: by the edges."
    )
    key_groups: Instances | None = Field(
        default=None,
        description="Groups that its keys are hashed to, where max_parallelism is a lower limit of "
        "its own; default: max_parallelism, as in Flink.",
    )
    keyed: bool = Field(
        default=True,
        description="Whether its records are distributed by keys: then some instances get more of "
        "the groups, and the rule flink prefers parallelism that divides them.",
    )
    chained: bool = Field(
        default=False,
        description="Whether it runs in the instances of its only parent, and scales with it.",
    )


class Snapshots(Record):
    """Metrics of all tasks, one snapshot a minute, the oldest first; minutes may be missing."""

    minutes_ago: tuple[Minutes, ...] = Field(
        min_length=1, max_length=SNAPSHOTS_MAX, description="Age of each snapshot; the last is 0."
    )
    parallelism: tuple[Annotated[tuple[Instances, ...], _Row], ...] = Field(
        max_length=SNAPSHOTS_MAX,
        description="Instances; those of the last snapshot are the present ones.",
    )
    busy_ms_per_s: tuple[Annotated[tuple[Milliseconds | None, ...], _Row], ...] = Field(
        max_length=SNAPSHOTS_MAX,
        description="Mean of the instances. null, for sources that report none: what idle and "
        "backpressured time leave.",
    )
    busy_max_ms_per_s: tuple[Annotated[tuple[Milliseconds | None, ...], _Row], ...] = Field(
        max_length=SNAPSHOTS_MAX, description="Of the busiest instance; null as for busy_ms_per_s."
    )
    idle_ms_per_s: tuple[Annotated[tuple[Milliseconds, ...], _Row], ...] = Field(
        max_length=SNAPSHOTS_MAX, description="Mean of the instances."
    )
    backpressured_ms_per_s: tuple[Annotated[tuple[Milliseconds, ...], _Row], ...] = Field(
        max_length=SNAPSHOTS_MAX, description="Mean of the instances."
    )
    records_in_per_s: tuple[Annotated[tuple[Records | None, ...], _Row], ...] = Field(
        max_length=SNAPSHOTS_MAX,
        description="Records that arrive. Of a source, which counts none in Flink, null or 0 in "
        "all snapshots: those it reads and the growth of its pending records.",
    )
    records_out_per_s: tuple[Annotated[tuple[Records, ...], _Row], ...] = Field(
        max_length=SNAPSHOTS_MAX,
        description="Records that it emits; only those of sources are used.",
    )
    buffer_usage: tuple[Annotated[tuple[Share, ...], _Row], ...] = Field(
        max_length=SNAPSHOTS_MAX, description="Used share of its input buffers; of a source 0."
    )
    pending_records: tuple[Annotated[tuple[Records | None, ...], _Row], ...] = Field(
        max_length=SNAPSHOTS_MAX,
        description="Of sources: records that wait to be read; null: not known. Else 0.",
    )
    records_processed_per_s: (
        Annotated[tuple[Annotated[tuple[Records, ...], _Row], ...], Field(max_length=SNAPSHOTS_MAX)]
        | None
    ) = Field(
        default=None,
        description="Records that it has finished, each counted once however many it emits. "
        "Default: records out of a source, records in of another task.",
    )
