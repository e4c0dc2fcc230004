"""Settings of a DAG scheduling episode."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from loadmaster.envs.settings import Settings


class ExecutorClass(Settings):
    """Executors of one kind; a stage runs only where both its demands are met."""

    count: PositiveInt
    cpu: PositiveFloat = 1.0
    memory: PositiveFloat = 1.0


class DagSchedulingSettings(Settings):
    """An episode: its jobs, their arrivals, the cluster, and the objective."""

    workload: str = "tpch-like"
    data: Path | None = None  # folder of the traces; LOADMASTER_DATA where it is not given

    arrivals: Literal["batch", "poisson"] = "batch"
    jobs: PositiveInt | None = None  # 20 in a batch; 200 after the initial ones in a stream
    initial_jobs: PositiveInt = 1  # a stream's jobs at time 0
    interarrival_s: PositiveFloat = 25.0  # mean gap of a stream
    load: PositiveFloat | None = None  # work offered per executor; sets the gap where given
    horizon_s: PositiveFloat | None = None  # mean of the geometric stopping time; None: all jobs

    executors: PositiveInt = 50
    executor_classes: tuple[ExecutorClass, ...] = ()  # empty: `executors` of one kind
    moving_delay_s: float = Field(default=2.0, ge=0)  # 0: migration is free
    warmup_s: float = Field(default=1.0, ge=0)
    interpolation: Literal["corrected", "as-published"] = "corrected"
    objective: Literal["jct", "makespan"] = "jct"
    estimates: Literal["known", "missing"] = "known"  # missing: one mean for all tasks
    calibration: Path | None = None  # tuned heuristics' parameters; None: those shipped

    max_jobs: PositiveInt = 100  # rows for jobs in the observation
    max_stages: PositiveInt = 1000  # rows for stages in the observation
    max_edges: PositiveInt = 2000  # rows for the edges between them

    @model_validator(mode="before")
    @classmethod
    def _executors_follow(cls, values: Any) -> Any:
        """Set `executors` from the classes where it is not given; dumped settings load again."""
        classes = values.get("executor_classes") if isinstance(values, dict) else None
        if not isinstance(classes, list | tuple) or "executors" in values:
            return values
        counts = [dict(c).get("count") for c in classes if isinstance(c, dict | ExecutorClass)]
        if not counts or not all(isinstance(count, int) and count > 0 for count in counts):
            return values  # the fields' own validation reports it
        return {**values, "executors": sum(counts)}

    @model_validator(mode="after")
    def _classes_add_up(self) -> DagSchedulingSettings:
        total = sum(group.count for group in self.executor_classes)
        if self.executor_classes and total != self.executors:
            raise ValueError(
                f"executor_classes count {total} executors but executors={self.executors}; "
                "expected the same number, or only one of the two"
            )
        return self

    @property
    def cluster(self) -> tuple[ExecutorClass, ...]:
        """Executor classes, one of all executors by default."""
        return self.executor_classes or (ExecutorClass(count=self.executors),)

    @property
    def total_executors(self) -> int:
        return sum(group.count for group in self.cluster)

    @property
    def streamed_jobs(self) -> int:
        """Jobs that arrive after time 0."""
        return 0 if self.arrivals == "batch" else self.jobs or 200

    @property
    def jobs_at_start(self) -> int:
        return self.jobs or 20 if self.arrivals == "batch" else self.initial_jobs

    @property
    def total_jobs(self) -> int:
        return self.jobs_at_start + self.streamed_jobs
