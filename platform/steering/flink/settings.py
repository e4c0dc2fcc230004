"""Settings of the engine Flink."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from loadmaster.envs.settings import Settings
from loadmaster.serving.decisions.guard import GuardSettings


class FlinkSettings(Settings):
    """How to reach Flink, and the limits of what is changed."""

    rest: str = Field(default="http://127.0.0.1:8081", description="URL of Flink's REST interface.")
    token_file: Path | None = Field(
        default=None, description="Bearer token, where a proxy before Flink requires one."
    )
    deadline_s: PositiveFloat = Field(default=10.0, description="Of a request.")
    refresh_s: NonNegativeFloat = Field(
        default=1.5, description="From the request that refreshes the metrics to that of values."
    )
    first_poll_s: NonNegativeFloat = Field(
        default=15.0, description="Before the second poll of a new job: rates are differences."
    )
    history_min: int = Field(
        default=60, ge=1, le=1_440, description="Minutes of snapshots in a state."
    )
    stale_s: PositiveFloat = Field(
        default=60.0, description="Unchanged metrics or times count as silent after this."
    )
    cooldown_s: NonNegativeFloat = Field(
        default=300.0,
        description="From a start of the tasks to the next rescale; at least Flink's own cooldown.",
    )
    pending_s: PositiveFloat = Field(
        default=180.0, description="Time in which Flink is to carry out a requested rescale."
    )
    floor: PositiveInt = Field(default=1, description="Least instances of every task.")
    floors: dict[str, PositiveInt] = Field(
        default={}, description="Least instances of tasks by name, where they differ."
    )
    max_parallelism: PositiveInt | None = Field(
        default=None, description="Most instances of a task; default: its own limit and the slots."
    )
    max_instances: PositiveInt | None = Field(
        default=None, description="Most instances of all tasks of a job; default: by the slots."
    )
    load_floor: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Most busy share of a task at the measured load: above it, instances are added "
        "at once, whatever was recommended, and none are removed that it needs. None: off.",
    )
    load_floor_lead_s: NonNegativeFloat = Field(
        default=480.0, description="Time ahead for which they are to suffice, by the load's trend."
    )
    latency_slo_s: PositiveFloat = Field(
        default=60.0, description="Wait at the sources up to which a plan counts as safe."
    )
    guard: GuardSettings = Field(
        default=GuardSettings(), description="Limits of a decision: step, factor, flaps and others."
    )
    rollback: bool = Field(default=True, description="Undo a rescale that made things worse.")
    rollback_after_s: PositiveFloat = Field(
        default=60.0, description="Time that is compared, before and after a rescale."
    )
    rollback_tolerance: float = Field(
        default=0.1, gt=0, lt=1, description="Share of the throughput before."
    )
    rollback_hold_s: NonNegativeFloat = Field(
        default=3_600.0, description="A plan that was undone is not repeated for this time."
    )
