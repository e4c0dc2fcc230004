"""Settings of the engine Spark."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from loadmaster.envs.settings import Settings


class SparkSettings(Settings):
    """Settings of `loadmaster steer spark`."""

    host: str = Field(
        default="127.0.0.1", description="Address to listen on; another one needs a token_file."
    )
    port: int = Field(default=8720, ge=0, le=65_535, description="0: any free port.")
    token_file: Path | None = Field(
        default=None, description="File with the value of spark.loadmaster.token."
    )
    ttl_s: float = Field(
        default=10,
        ge=1,
        le=600,
        description="A decision holds for so long; then Spark goes on by its own order.",
    )
    profile: Path | None = Field(
        default=None, description="Event logs of earlier runs, for durations of tasks."
    )
    task_ms: float = Field(
        default=1000, gt=0, description="Duration of a task where none was ever measured."
    )
    limit_factor: float | None = Field(
        default=3.0,
        ge=1,
        description="Limits of jobs are those decided, times this; null: jobs have no limits.",
    )
    idle: bool = Field(
        default=False,
        description="Whether slots may be left idle for jobs to come. If not, tasks beyond the "
        "limits use slots that no others need.",
    )
    forget_s: float = Field(
        default=30, gt=0, description="Applications that are silent for so long are forgotten."
    )
    first_report_s: float = Field(
        default=8,  # drivers that got no reply try again after at most 5 s
        ge=0,
        description="Wait so long for the first report at the start.",
    )
    master: str | None = Field(
        default=None,
        description="Web address of a standalone cluster's master, such as http://HOST:8080: its "
        "executors are shared among the applications. Without it their numbers are left to Spark.",
    )
    executors_pause_s: float = Field(
        default=30,
        ge=0,
        description="Numbers of executors change no more often, unless applications come or go.",
    )
    applications_max: int = Field(
        default=64, ge=1, description="Applications at a time; reports of others are refused."
    )
