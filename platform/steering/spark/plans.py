"""States for Decima from reports of Spark, and standing plans from its decisions.

Spark starts a task the moment another one ends, so it needs an order before slots come free. The
state therefore offers all slots of the application: tasks that run count as not started, and the
decision says how all slots should be shared now. Tasks that run are never stopped; a job beyond its
share starts no further ones.

The plan has the stages in the order of the assignments, and for each job its limit, times a factor:
Decima's limits weigh that executors take time to move and that tasks get slower where a job has
many, and neither holds for the slots of one application. A stage without an assignment goes with
its job's first one. Jobs without an assignment come after them in Spark's order, without a limit.
Slots that no task within the limits can use go to tasks beyond them in the same order; with
`may_idle` those that the decision has left idle stay so.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loadmaster.envs.errors import counted
from loadmaster.platform.steering.spark.durations import TaskDurations
from loadmaster.platform.steering.spark.reports import Report, ReportedJob
from loadmaster.serving.systems.decima.records import (
    EXECUTORS_MAX,
    JOBS_MAX,
    STAGES_MAX,
    TASK_MS_MAX,
)

NAMED = 8  # jobs in a plan's text


@dataclass(frozen=True)
class Plan:
    """An order of stages, and the most tasks of jobs at a time."""

    id: str  # a digest of the rest
    first: Mapping[str, int]  # place of each job's first stage in `stages`
    stages: tuple[int, ...]
    limits: Mapping[str, int]  # of those that have one
    idle: int = 0

    @property
    def jobs(self) -> tuple[str, ...]:
        """In the order of their first stages."""
        return tuple(self.first)

    def document(self, ttl_s: float, reason: str = "") -> dict[str, Any]:
        """For the driver."""
        return {
            "id": self.id,
            "stages": list(self.stages),
            "jobs": dict(self.first),
            "limits": dict(self.limits),
            "idle": self.idle,
            "ttl_ms": round(max(ttl_s, 0.0) * 1000),
            "reason": reason,
        }

    def line(self) -> str:
        """The jobs in order with their limits."""
        parts = [
            f"{job} up to {self.limits[job]}" if job in self.limits else job
            for job in self.jobs[:NAMED]
        ]
        if (more := len(self.jobs) - NAMED) > 0:
            parts.append(counted(more, "more job"))
        if self.idle:
            parts.append(f"{counted(self.idle, 'slot')} idle")
        return ", ".join([*parts, "then Spark's order"])


def state_of(
    report: Report, waited_s: float, durations: TaskDurations, may_idle: bool = False
) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """The state document of Decima, with notes; None where nothing is to be decided.

    `waited_s` is the age of the report.
    """
    jobs, notes, stages, guessed = list[dict[str, Any]](), list[str](), 0, 0
    left_out = 0
    for job in report.jobs:
        if not job.is_unfinished:
            continue
        rows, unknown = stages_of(job, durations)
        if len(jobs) >= JOBS_MAX or stages + len(rows) > STAGES_MAX:
            left_out += 1
            continue
        stages += len(rows)
        guessed += unknown
        jobs.append({"id": job.id, "age_s": job.age_ms / 1000 + waited_s, "stages": rows})
    if not jobs or not report.slots:
        return None, ()
    if guessed:
        notes.append(f"{counted(guessed, 'stage')} of unknown duration: a mean is taken")
    if left_out:
        notes.append(f"{counted(left_out, 'job')} left out: too many for one decision")
    slots = min(report.slots, EXECUTORS_MAX)
    state = {
        "executors": [{"count": slots, "free": slots}],
        "jobs": jobs,
        "more_to_come": may_idle,  # nothing runs in this state, so without it all are placed
    }
    return state, tuple(notes)


def stages_of(job: ReportedJob, durations: TaskDurations) -> tuple[list[dict[str, Any]], int]:
    """Rows of a job's stages, and how many of them have no measured duration."""
    known = {stage.id: stage for stage in job.stages if stage.tasks}
    rows, unknown = [], 0
    for stage in known.values():
        finished = min(stage.finished, stage.tasks)
        mean_ms, is_measured = durations.find(job, stage)
        unknown += not is_measured
        parents = [parent for parent in stage.parents if parent in known and parent != stage.id]
        if stage.started:  # a parent that is computed anew does not wait for this stage
            parents = [one for one in parents if known[one].finished >= known[one].tasks]
        rows.append(
            {
                "id": str(stage.id),
                "tasks": stage.tasks,
                "task_ms": min(mean_ms, float(TASK_MS_MAX)),
                "started": finished,
                "finished": finished,
                "parents": [str(parent) for parent in dict.fromkeys(parents)],
            }
        )
    return rows, unknown


def plan_of(
    decision: Mapping[str, Any], limit_factor: float | None = 1.0, may_idle: bool = False
) -> Plan:
    """The plan of a decision of Decima's endpoint; without a factor its jobs have no limits."""
    stages, first, limits = list[int](), dict[str, int](), dict[str, int]()
    for part in decision.get("assignments") or ():
        job, limit = str(part["job"]), int(part["limit"])
        first.setdefault(job, len(stages))
        stages.append(int(part["stage"]))
        limits[job] = max(limit, limits.get(job, 1))
    if limit_factor is None:
        limits = {}
    else:
        limits = {job: math.ceil(limit * limit_factor) for job, limit in limits.items()}
    idle = int(decision.get("idle") or 0) if may_idle else 0
    content = json.dumps([stages, limits, idle])
    id = hashlib.sha256(content.encode()).hexdigest()[:12]
    return Plan(id, first, tuple(stages), limits, idle)
