"""Recorded runs of Spark, simulated: predicted against measured mean completion times.

The jobs are read from the event log of a run, with their arrivals, DAGs and measured durations of
tasks, and scheduled anew: by Spark's own orders or plans of a recommender (`spark_simulation`), and
by rules of `dag_scheduling`. The former with the run's own delays (of stages in the driver, of
decisions, and of plans) and, as `...-at-once`, without any, so that the difference is their cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from loadmaster.envs.dag_scheduling.calibration import tuned_baseline
from loadmaster.envs.dag_scheduling.jobs import build_workload
from loadmaster.envs.dag_scheduling.rollout import episode_result, run_baseline
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.state import NEVER, new_state
from loadmaster.envs.dag_scheduling.workloads.spark import read_log
from loadmaster.envs.dag_scheduling.workloads.spark_files import (
    LogEvent,
    applications,
    read_events,
)
from loadmaster.platform.bench.engines.spark_cluster import SparkJob, SparkStage
from loadmaster.platform.bench.engines.spark_simulation import Steering, simulate

# The simulator's rules for the orders of Spark. `fair` never takes an executor from a job that has
# work; `weighted-fair` releases those beyond a share.
PREDICTED: Mapping[str, tuple[str, ...]] = {
    "fifo": ("fifo",),
    "fair": ("fair", "weighted-fair"),
    "srpt-caps": ("srpt-caps",),
}
DRAWS = 10  # seeds of the durations' draws
SUBMITTED = "loadmaster.submitted_ms"  # the property of jobs that `SparkJobs.scala` sets
STEERED = "steered"  # the order of plans


@dataclass
class _Stage:
    name: str
    parents: list[int]
    submitted_ms: int = 0
    tasks_ms: list[tuple[int, int]] = field(default_factory=list)  # launch, end

    @property
    def end_ms(self) -> int:
        return max(end for _, end in self.tasks_ms)


@dataclass
class _Job:
    name: str
    submitted_ms: int
    stages: dict[int, _Stage]

    def as_simulated(self, began_ms: int) -> SparkJob:
        places = {number: place for place, number in enumerate(self.stages)}
        stages = []
        for one in self.stages.values():
            parents = [self.stages[parent] for parent in one.parents]
            ready_ms = max((parent.end_ms for parent in parents), default=self.submitted_ms)
            stages.append(
                SparkStage(
                    [end - launch for launch, end in sorted(one.tasks_ms)],
                    [places[parent] for parent in one.parents],
                    max(one.submitted_ms - ready_ms, 0),
                    one.name,
                )
            )
        return SparkJob(self.name, self.submitted_ms - began_ms, stages)


@dataclass(frozen=True)
class RecordedRun:
    """The jobs of a log as they were, and the epoch of their times."""

    jobs: Sequence[SparkJob]
    began_ms: int


def read_run(log: Path, count: int) -> RecordedRun:
    """Read the last `count` jobs of an application, which are no SQL executions."""
    jobs, stages = list[_Job](), dict[int, _Stage]()
    ((_, files),) = applications(log)
    for event in read_events(files, ("JobStart", "StageSubmitted", "TaskEnd")):
        if event.kind == "JobStart":
            jobs.append(_job_of(event))
            stages |= jobs[-1].stages
        elif event.kind == "StageSubmitted":
            found = stages[event.get("Stage Info", "Stage ID", kind=int)]
            found.submitted_ms = event.get("Stage Info", "Submission Time", kind=int)
        else:
            launch = event.get("Task Info", "Launch Time", kind=int)
            end = event.get("Task Info", "Finish Time", kind=int)
            stages[event.get("Stage ID", kind=int)].tasks_ms.append((launch, end))
    jobs = sorted(jobs[-count:], key=lambda one: one.submitted_ms)
    began_ms = jobs[0].submitted_ms
    return RecordedRun([one.as_simulated(began_ms) for one in jobs], began_ms)


def _job_of(event: LogEvent) -> _Job:
    infos = sorted(event.get("Stage Infos", kind=list), key=lambda one: int(one["Stage ID"]))
    own = {int(info["Stage ID"]) for info in infos}
    properties = event.get("Properties", kind=dict)
    return _Job(
        properties["spark.job.description"],
        int(properties.get(SUBMITTED) or event.get("Submission Time", kind=int)),
        {
            int(info["Stage ID"]): _Stage(
                info["Stage Name"], [int(one) for one in info["Parent IDs"] if int(one) in own]
            )
            for info in infos
        },
    )


def predict(
    log: Path,
    arm: str,
    jobs: int,
    slots: int,
    measured: pd.DataFrame,
    steering: Steering | None = None,
) -> Iterator[dict[str, Any]]:
    """Predicted and measured means, by rule. The last `jobs` of the log are those measured.

    `steering` has the times of the run since 1970.
    """
    measured_s = float(measured["completion_s"].mean())
    for rule, predicted_s in _slot_by_slot(read_run(log, jobs), arm, slots, steering):
        yield {"rule": rule, "predicted_s": predicted_s, "measured_s": measured_s}
    for rule in PREDICTED.get(arm, ()):
        predicted_s = _in_environment(log, rule, jobs, slots)
        yield {"rule": rule, "predicted_s": predicted_s, "measured_s": measured_s}


def _slot_by_slot(
    run: RecordedRun, arm: str, slots: int, steering: Steering | None
) -> Iterator[tuple[str, float]]:
    order, at_once = arm, None
    if steering is not None:
        order, at_once = STEERED, replace(steering, times=())
        since = [(state - run.began_ms, effect - run.began_ms) for state, effect in steering.times]
        times = [(max(state, 0), effect) for state, effect in since if effect >= 0]
        steering = replace(steering, times=times)
    yield f"spark-{order}", float(np.mean(simulate(run.jobs, slots, order, steering)))
    plain = [
        replace(job, stages=[replace(stage, pause_ms=0) for stage in job.stages])
        for job in run.jobs
    ]
    yield f"spark-{order}-at-once", float(np.mean(simulate(plain, slots, order, at_once)))


def _in_environment(log: Path, rule: str, jobs: int, slots: int) -> float:
    recorded = read_log(log).jobs[-jobs:]
    workload = build_workload("spark-log", [one.job for one in recorded])
    settings = DagSchedulingSettings(
        arrivals="poisson", jobs=jobs, executors=slots, moving_delay_s=0, warmup_s=0
    )
    first_s = recorded[0].arrival_s
    arrivals = np.array(
        [(round((one.arrival_s - first_s) * 1000), row) for row, one in enumerate(recorded)]
    )
    found = []
    for draw in range(DRAWS):
        state = new_state(settings, workload, arrivals.copy(), draw, int(NEVER) - 1)
        done = run_baseline(state, workload.bank, tuned_baseline(rule, settings, workload))
        found.append(episode_result(done, workload, settings, rule, draw).mean_jct_s)
    return float(np.mean(found))
