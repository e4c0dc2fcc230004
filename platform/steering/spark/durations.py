"""Durations of tasks that have not run yet, by what stages of the same name took before."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from pathlib import Path

from loadmaster.envs.dag_scheduling.workloads.spark_files import (
    LogEvent,
    applications,
    read_events,
)
from loadmaster.platform.steering.spark.reports import Report, ReportedJob, ReportedStage

NAMES_MAX = 20_000  # stages remembered, the most recent ones
_DESCRIPTIONS = ("spark.job.description", "spark.jobGroup.id", "callSite.short")

Key = tuple[str, str]  # names of the job and of the stage


class TaskDurations:
    """Mean durations by the names of job and stage, of this application and of earlier ones.

    The stage's own finished tasks count first, then the last stage of that name in a job of that
    name, then the same in `profile`, then the mean of all known, then `default_ms`.
    """

    def __init__(self, default_ms: float, profile: dict[Key, float] | None = None) -> None:
        self.default_ms = default_ms
        self._profile = profile or {}
        self._seen: OrderedDict[Key, float] = OrderedDict()

    def note(self, report: Report) -> None:
        """Remember the means of a report."""
        for job in report.jobs:
            for stage in job.stages:
                if stage.mean_ms is not None:
                    self._seen[job.name, stage.name] = stage.mean_ms
                    self._seen.move_to_end((job.name, stage.name))
        while len(self._seen) > NAMES_MAX:
            self._seen.popitem(last=False)

    def find(self, job: ReportedJob, stage: ReportedStage) -> tuple[float, bool]:
        """The mean duration in ms, and whether it rests on a measurement of such a stage."""
        if stage.mean_ms is not None:
            return stage.mean_ms, True
        key = job.name, stage.name
        for known in (self._seen, self._profile):
            if key in known:
                return known[key], True
        values = self._seen.values() or self._profile.values()
        return (sum(values) / len(values) if values else self.default_ms), False


def read_profile(path: Path) -> dict[Key, float]:
    """Mean task durations by the names of job and stage, from event logs."""
    names: dict[tuple[str, int], Key] = {}  # application and stage
    spent: dict[Key, list[int]] = defaultdict(lambda: [0, 0])  # ms, tasks
    for application, files in applications(path):
        for event in read_events(files, ("JobStart", "TaskEnd")):
            if event.kind == "JobStart":
                _note_stages(application, event, names)
            elif event.get("Task End Reason", "Reason", kind=str, default="") == "Success":
                key = names.get((application, event.get("Stage ID", kind=int)))
                launch = event.get("Task Info", "Launch Time", kind=int)
                end = event.get("Task Info", "Finish Time", kind=int)
                if key is not None and end >= launch:
                    total = spent[key]
                    total[0] += end - launch
                    total[1] += 1
    return {key: total / count for key, (total, count) in spent.items()}


def _note_stages(application: str, event: LogEvent, names: dict[tuple[str, int], Key]) -> None:
    properties = event.get("Properties", kind=dict, default={})
    infos = event.get("Stage Infos", kind=list, default=[])
    stages = {info["Stage ID"]: str(info.get("Stage Name", "")) for info in infos}
    last = stages[max(stages)] if stages else ""
    job = next((properties[key] for key in _DESCRIPTIONS if properties.get(key)), last)
    for number, stage in stages.items():
        names.setdefault((application, number), (job[:160], stage[:160]))
