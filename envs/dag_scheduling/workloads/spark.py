"""Import of Spark event logs: queries and jobs as DAGs of stages, with measured task durations.

A job is a SQL execution (`spark.sql.execution.root.id`), or a Spark job that belongs to none. Under
adaptive execution each shuffle stage of a query is a Spark job of its own, and its parent ids name
stages that never run. So a stage's parents are those of its parent ids that ran, and the stages
that computed the RDDs which its own RDDs read. Broadcasts leave no such trace.

A slot of an executor is an executor here. Its first task after another job is fresh, its first one
of a stage belongs to the first wave, later ones to the rest.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from loadmaster.envs.dag_scheduling.jobs import Job, RecordedJob, Stage
from loadmaster.envs.dag_scheduling.workloads.job_file import one_level
from loadmaster.envs.dag_scheduling.workloads.spark_files import (
    LogEvent,
    applications,
    read_events,
)
from loadmaster.envs.errors import InputError

SQL_KEYS = ("spark.sql.execution.root.id", "spark.sql.execution.id")
UNFINISHED, FAILED, UNMEASURED = "unfinished", "failed", "without tasks"


@dataclass(frozen=True)
class SparkTrace:
    """Jobs by arrival, and the cluster that ran them."""

    jobs: list[RecordedJob]
    slots: int  # the most at one time
    applications: int
    left_out: Mapping[str, int]  # reason -> jobs


@dataclass
class _StageRun:
    """A completed stage; attempts of one stage are one."""

    tasks: int
    parents: set[int]
    rdds: dict[int, set[int]]  # RDD -> the RDDs that it reads
    submitted_ms: int
    completed_ms: int

    @property
    def inputs(self) -> set[int]:
        """RDDs of other stages that this one reads."""
        return {parent for parents in self.rdds.values() for parent in parents} - set(self.rdds)

    @property
    def outputs(self) -> set[int]:
        """RDDs that no other RDD of the stage reads."""
        return set(self.rdds) - {parent for parents in self.rdds.values() for parent in parents}


@dataclass
class _Application:
    """What the events of an application say, by the ids in them."""

    name: str
    task_cpus: int = 1
    query_of_job: dict[int, str] = field(default_factory=dict)
    query_of_stage: dict[int, str] = field(default_factory=dict)
    arrival_ms: dict[str, int] = field(default_factory=dict)
    open_jobs: Counter[str] = field(default_factory=Counter)
    failed: set[str] = field(default_factory=set)
    stages: dict[int, _StageRun] = field(default_factory=dict)
    tasks: list[tuple[int, int, int, str]] = field(default_factory=list)  # launch, end, stage, ex.
    cores: dict[str, int] = field(default_factory=dict)  # of an executor
    changes: list[tuple[int, int]] = field(default_factory=list)  # time, slots more or less


def read_log(path: Path) -> SparkTrace:
    """Read the log of one application, or a folder of logs."""
    jobs: list[RecordedJob] = []
    changes: list[tuple[int, int]] = []
    left_out: Counter[str] = Counter()
    logs = applications(path)
    for name, files in logs:
        application = _Application(name)
        for event in read_events(files, _READERS):
            _READERS[event.kind](application, event)
        found, missing = _jobs_of(application)
        jobs += found
        left_out += missing
        changes += _slot_changes(application)
    if not jobs:
        reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
        raise InputError(f"{path}: no finished jobs ({reasons or 'none began'}); expected some")
    slots = max(accumulate(change for _, change in sorted(changes)), default=0)
    jobs.sort(key=lambda each: each.arrival_s)
    return SparkTrace(jobs, max(slots, 1), len(logs), left_out)


def _application_start(application: _Application, event: LogEvent) -> None:
    application.name = event.get("App ID", kind=str, default=application.name)


def _environment(application: _Application, event: LogEvent) -> None:
    cpus = event.get("Spark Properties", "spark.task.cpus", default="1")
    application.task_cpus = int(cpus) if str(cpus).isdigit() and int(cpus) else 1


def _executor_added(application: _Application, event: LogEvent) -> None:
    cores = event.get("Executor Info", "Total Cores", kind=int)
    application.cores[event.get("Executor ID", kind=str)] = cores
    application.changes.append((event.get("Timestamp", kind=int), cores // application.task_cpus))


def _executor_removed(application: _Application, event: LogEvent) -> None:
    cores = application.cores.get(event.get("Executor ID", kind=str), 0)
    application.changes.append(
        (event.get("Timestamp", kind=int), -(cores // application.task_cpus))
    )


def _job_start(application: _Application, event: LogEvent) -> None:
    number = event.get("Job ID", kind=int)
    properties = event.get("Properties", kind=dict, default={})
    execution = next((properties[key] for key in SQL_KEYS if properties.get(key)), None)
    query = f"job-{number}" if execution is None else f"sql-{execution}"
    application.query_of_job[number] = query
    application.arrival_ms.setdefault(query, event.get("Submission Time", kind=int))
    application.open_jobs[query] += 1
    for stage in event.get("Stage IDs", kind=list):
        application.query_of_stage.setdefault(stage, query)


def _job_end(application: _Application, event: LogEvent) -> None:
    query = application.query_of_job.get(event.get("Job ID", kind=int))
    if query is None:
        return  # its start is in a part of the log that was compacted
    application.open_jobs[query] -= 1
    if event.get("Job Result", "Result", kind=str) != "JobSucceeded":
        application.failed.add(query)


def _stage_completed(application: _Application, event: LogEvent) -> None:
    info = LogEvent(event.kind, event.get("Stage Info", kind=dict), event.path, event.line)
    number = info.get("Stage ID", kind=int)
    completed_ms = info.get("Completion Time", kind=int, default=0)
    submitted_ms = info.get("Submission Time", kind=int, default=completed_ms)
    tasks = info.get("Number of Tasks", kind=int)
    known = application.stages.get(number)
    if known is not None:  # a later attempt, of the tasks whose results were lost
        known.tasks, known.completed_ms = max(known.tasks, tasks), completed_ms
        return
    rdds = {}
    for values in info.get("RDD Info", kind=list, default=[]):
        rdd = LogEvent(event.kind, values, event.path, event.line)
        parents = rdd.get("Parent IDs", kind=list, default=[])
        rdds[rdd.get("RDD ID", kind=int)] = set(parents)
    parents = set(info.get("Parent IDs", kind=list, default=[]))
    application.stages[number] = _StageRun(tasks, parents, rdds, submitted_ms, completed_ms)


def _task_end(application: _Application, event: LogEvent) -> None:
    if event.get("Task End Reason", "Reason", kind=str) != "Success":
        return
    launch = event.get("Task Info", "Launch Time", kind=int)
    end = event.get("Task Info", "Finish Time", kind=int)
    if end < launch:
        raise event.fault(f"'Finish Time' {end}", f"no less than the 'Launch Time', {launch}")
    executor = event.get("Task Info", "Executor ID", kind=str)
    application.tasks.append((launch, end, event.get("Stage ID", kind=int), executor))


_READERS = {
    "ApplicationStart": _application_start,
    "EnvironmentUpdate": _environment,
    "ExecutorAdded": _executor_added,
    "ExecutorRemoved": _executor_removed,
    "JobStart": _job_start,
    "JobEnd": _job_end,
    "StageCompleted": _stage_completed,
    "TaskEnd": _task_end,
}


def _jobs_of(application: _Application) -> tuple[list[RecordedJob], Counter[str]]:
    waves = _waves(application)
    parents = _parents(application)
    members: dict[str, list[int]] = defaultdict(list)
    for stage in sorted(application.stages):
        if (query := application.query_of_stage.get(stage)) is not None:
            members[query].append(stage)
    jobs, left_out = [], Counter[str]()
    for query, arrival_ms in application.arrival_ms.items():
        stages = members[query]
        if application.open_jobs[query] > 0:
            left_out[UNFINISHED] += 1
        elif query in application.failed:
            left_out[FAILED] += 1
        elif not stages or not all(any(waves[stage]) for stage in stages):
            left_out[UNMEASURED] += 1
        else:
            place = {stage: number for number, stage in enumerate(stages)}
            built = []
            for stage in stages:
                first, rest, fresh = map(one_level, waves[stage])
                inside = tuple(place[each] for each in sorted(parents[stage]) if each in place)
                built.append(Stage(application.stages[stage].tasks, inside, first, rest, fresh))
            jobs.append(
                RecordedJob(arrival_ms / 1000, Job(f"{application.name}-{query}", tuple(built)))
            )
    return jobs, left_out


def _slot_changes(application: _Application) -> list[tuple[int, int]]:
    """Slots more or less by time; those without a recorded end go with the last task."""
    changes = application.changes
    ends = (end for _, end, _, _ in application.tasks)
    last = max((*ends, *(time for time, _ in changes)), default=0)
    return [*changes, (last, -sum(change for _, change in changes))]


def _parents(application: _Application) -> dict[int, set[int]]:
    """The executed stages that each stage reads; always ones that ended before it began."""
    stages = application.stages
    makers: dict[int, list[int]] = defaultdict(list)  # RDD -> stages that end in it
    holders: dict[int, list[int]] = defaultdict(list)  # RDD -> stages that compute it
    for number, stage in stages.items():
        for rdd in stage.rdds:
            holders[rdd].append(number)
        for rdd in stage.outputs:
            makers[rdd].append(number)
    found = {}
    for number, stage in stages.items():
        parents = {each for each in stage.parents if each in stages}
        for rdd in stage.inputs:
            for candidates in (makers[rdd], holders[rdd]):
                before = [
                    each
                    for each in candidates
                    if each != number and stages[each].completed_ms <= stage.submitted_ms
                ]
                if before:
                    parents.add(max(before, key=lambda each: stages[each].completed_ms))
                    break
        found[number] = parents
    return found


def _waves(application: _Application) -> dict[int, tuple[list[int], list[int], list[int]]]:
    """Durations of each stage: first wave, rest, fresh; a task takes the slot that was free first.

    Clocks are coarse: a task may begin before another one has left its slot.
    """
    waves: dict[int, tuple[list[int], list[int], list[int]]]
    waves = {number: ([], [], []) for number in application.stages}
    slots: dict[str, list[list[int]]] = defaultdict(list)  # executor -> its slots: end, number
    last_query: dict[tuple[str, int], str] = {}
    seen: set[tuple[str, int, int]] = set()
    for launch, end, stage, executor in sorted(application.tasks):
        if stage not in waves or stage not in application.query_of_stage:
            continue
        own = slots[executor]
        slot = min(own, default=None)
        most = application.cores.get(executor, 0) // application.task_cpus or len(own) + 1
        if (slot is None or slot[0] > launch) and len(own) < most:
            slot = [0, len(own)]
            own.append(slot)
        assert slot is not None
        slot[0] = end
        key, query = (executor, slot[1]), application.query_of_stage[stage]
        first, rest, fresh = waves[stage]
        if last_query.get(key) != query:
            fresh.append(end - launch)
        elif (*key, stage) not in seen:
            first.append(end - launch)
        else:
            rest.append(end - launch)
        last_query[key] = query
        seen.add((*key, stage))
    return waves
