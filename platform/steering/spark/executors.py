"""Executors of a standalone cluster, shared among its applications by Decima's decisions.

The master gives an application all free cores, in order of arrival. Here each application is a job
of the state, with the stages of all its unfinished jobs, and each core of the cluster is an
executor to place. The cores that a decision gives an application become a number of executors of
that application's size, which its driver brings about: up by a request to the master, down by
decommissioning, which waits for running tasks. Starting an executor takes seconds, so numbers
change at most every `executors_pause_s`, unless applications come or go.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from loadmaster.envs.errors import InputError, counted
from loadmaster.platform.steering.core import SilentError, StepResult
from loadmaster.platform.steering.jobs import Command, Observation
from loadmaster.platform.steering.spark.applications import CLUSTER, Application, ExecutorCount
from loadmaster.platform.steering.spark.plans import stages_of
from loadmaster.platform.steering.spark.reports import Report
from loadmaster.platform.steering.spark.settings import SparkSettings
from loadmaster.serving.client import Client, ServiceError
from loadmaster.serving.client.calls import Call
from loadmaster.serving.client.http1 import Request
from loadmaster.serving.systems.decima.records import EXECUTORS_MAX, JOBS_MAX, STAGES_MAX

DEADLINE_S = 1.0  # of a request to the master, for which all applications wait
POLL_S = 2.0  # between requests to the master
EXPECTED = (
    "a master spark-loadmaster://, spark.executor.cores, spark.decommission.enabled=true and no "
    "dynamic allocation"
)


@dataclass(frozen=True)
class Cores:
    """Cores of a standalone cluster."""

    total: int  # of the workers that are alive
    held: Mapping[str, int]  # by id of the application


class Master:
    """The web interface of a standalone master, requested every `POLL_S`; its last answer holds."""

    def __init__(self, url: str, hold_s: float) -> None:
        try:
            self._client = Client(url, None, DEADLINE_S, retries=0, token_variable=None)
        except ValueError as fault:
            raise InputError(f"master: {fault}") from None
        self._url, self._hold_s = url, hold_s
        self._found: Cores | None = None
        self._found_s = self._requested_s = float("-inf")

    def cores(self, now_s: float) -> Cores:
        """Raises SilentError where there is no answer of the last `hold_s`."""
        if now_s - self._requested_s >= POLL_S:
            self._requested_s = now_s
            try:
                self._found = self._client.ask(Call(Request("GET", "/json/"), _cores))
                self._found_s = now_s
            except ServiceError as fault:
                if now_s - self._found_s > self._hold_s:
                    text = f"Spark's master at {self._url}: {fault}"
                    raise SilentError("engine", text) from None
        if self._found is None or now_s - self._found_s > self._hold_s:
            raise SilentError("engine", f"Spark's master at {self._url} does not answer")
        return self._found

    def close(self) -> None:
        self._client.close()


@contextmanager
def open_master(settings: SparkSettings) -> Iterator[Master | None]:
    """The master of the settings, if they have one."""
    if settings.master is None:
        yield None
        return
    with closing(Master(settings.master, settings.ttl_s)) as master:
        yield master


def _cores(data: Any) -> Cores:
    """Read `/json/` of a master."""
    try:
        workers = [one for one in data["workers"] if one["state"] == "ALIVE"]
        held = {str(one["id"]): int(one["cores"]) for one in data["activeapps"]}
        return Cores(sum(int(one["cores"]) for one in workers), held)
    except (KeyError, TypeError, AttributeError) as fault:
        raise ValueError(f"no answer of a standalone master: {fault!r}") from None


def executor_counts(
    decision: Mapping[str, Any], sizes: Mapping[str, int], cores: int
) -> dict[str, int]:
    """Numbers of executors by application, as near to the decided cores as their sizes allow.

    `sizes` are the cores of an executor. Each application keeps one, in this order, as far as the
    cores suffice; what is left goes by the order of the decision, in whole executors and then to
    those that got less than was decided.
    """
    decided = dict[str, int]()
    for part in decision.get("assignments") or ():
        job = str(part["job"])
        decided[job] = decided.get(job, 0) + int(part["executors"])
    counts, left = dict.fromkeys(sizes, 0), cores
    for one, size in sizes.items():
        if size <= left:
            counts[one], left = 1, left - size
    for whole in (True, False):
        for one in decided:
            if not counts.get(one):
                continue
            size = sizes[one]
            wanted = decided[one] // size if whole else -(-decided[one] // size)
            more = min(max(wanted - counts[one], 0), left // size)
            counts[one], left = counts[one] + more, left - more * size
    return counts


class ExecutorsEngine:
    """The applications of a standalone cluster whose drivers can set their executors."""

    application = CLUSTER

    def __init__(
        self,
        listed: Callable[[], Sequence[Application]],
        master: Master,
        settings: SparkSettings,
        clock: Callable[[], float],
    ) -> None:
        self._listed, self._master, self._settings, self._clock = listed, master, settings, clock
        self._members: dict[str, Application] = {}  # by Spark's id
        self._reports: dict[str, Report] = {}
        self._cores = 0
        self._working: frozenset[str] = frozenset()  # applications with work
        self._decision: Mapping[str, Any] | None = None
        self._decided_s = self._changed_s = float("-inf")
        self._counts: dict[str, int] = {}
        self._counted: Hashable = None  # the cores and applications that they are for
        self._counted_working: frozenset[str] = frozenset()

    def observe(self, now_s: float) -> Observation:
        self._members, self._reports, left_out = {}, {}, list[str]()
        for one in self._listed():
            with one.lock:
                report = one.report
            if report.over:
                continue
            if not report.acts or not report.executor_cores:
                left_out.append(one.name)
                continue
            self._members[report.application], self._reports[report.application] = one, report
        notes = tuple(f"{name}: its executors are left to Spark; it has not {EXPECTED}"
                      for name in left_out)  # fmt: skip
        if not self._members:
            return Observation(None, None, notes=notes)
        cores = self._master.cores(now_s)
        others = sum(held for id, held in cores.held.items() if id not in self._members)
        self._cores = min(max(cores.total - others, 0), EXECUTORS_MAX)
        jobs, more = self._jobs(now_s)
        notes = (*notes, *more)
        self._working = frozenset(job["id"] for job in jobs)
        if not jobs or not self._cores:
            return Observation(None, None, upkeep=self._orders([], {}, now_s), notes=notes)
        state = {
            "executors": [{"count": self._cores, "free": self._cores}],
            "jobs": jobs,
            "more_to_come": False,  # all are placed
        }
        # Decisions are renewed in time, as the numbers end with their decision's time to live.
        period = int(now_s // (self._settings.ttl_s / 3))
        return Observation(state, (self._situation(), self._working, period), notes=notes)

    def _situation(self) -> Hashable:
        return self._cores, frozenset(self._members)

    def _jobs(self, now_s: float) -> tuple[list[dict[str, Any]], list[str]]:
        """The applications as jobs of a state, with notes."""
        jobs, stages, unknown = list[dict[str, Any]](), 0, 0
        for id, report in self._reports.items():
            known = self._members[id]
            with known.lock:
                waited_s = max(now_s - known.received_s, 0.0)
                unfinished = [job for job in report.jobs if job.is_unfinished]
                found = [stages_of(job, known.durations) for job in unfinished]
            # Jobs of an application may share a stage.
            rows = {row["id"]: row for part, _ in found for row in part}
            if not rows or len(jobs) >= JOBS_MAX or stages + len(rows) > STAGES_MAX:
                continue
            stages += len(rows)
            unknown += sum(count for _, count in found)
            age_s = max(job.age_ms for job in unfinished) / 1000 + waited_s
            jobs.append({"id": id, "age_s": age_s, "stages": list(rows.values())})
        jobs.sort(key=lambda job: -job["age_s"])
        notes = [f"{counted(unknown, 'stage')} of unknown duration: a mean is taken"]
        return jobs, notes if unknown else []

    def commands(self, observation: Observation, decision: Mapping[str, Any]) -> Sequence[Command]:
        if decision is not self._decision:
            self._decision, self._decided_s = decision, self._clock()
        by_age = [job["id"] for job in (observation.state or {"jobs": []})["jobs"]]
        return self._orders(by_age, decision, self._decided_s)

    def _orders(
        self, by_age: Sequence[str], decision: Mapping[str, Any], decided_s: float
    ) -> list[Command]:
        """A command for each application whose number is another one, or is to be renewed."""
        self._recount(by_age, decision)
        commands = list[Command]()
        for id, count in self._counts.items():
            known, has = self._members[id], self._reports[id].executors
            with known.lock:
                before = known.executors
            is_same = count == (has if before is None else before.count)
            if before is not None and is_same and before.decided_s >= decided_s:
                continue
            run = partial(_give, known, ExecutorCount(count, decided_s))
            text = f"{known.name} gets {counted(count, 'executor')}, has {has}"
            commands.append(
                Command("executors", known.name, text, run, routine=is_same, unlimited=is_same)
            )
        return commands

    def _recount(self, by_age: Sequence[str], decision: Mapping[str, Any]) -> None:
        """Follow the decision if it is time to, or if an application is new or has new work."""
        now_s = self._clock()
        is_due = now_s - self._changed_s >= self._settings.executors_pause_s
        is_known = self._counted == self._situation() and self._working <= self._counted_working
        if is_known and not is_due:
            return
        order = dict.fromkeys([*by_age, *self._members])  # the oldest work first
        sizes = {id: self._reports[id].executor_cores for id in order}
        counts = executor_counts(decision, sizes, self._cores)
        if counts != self._counts:
            self._counts, self._changed_s = counts, now_s
        self._counted, self._counted_working = self._situation(), self._working

    def publish(self, observation: Observation, result: StepResult) -> None:
        """Keep the reason, which goes to the drivers' logs with the numbers."""
        reason = f"{result.source}: {result.reason}" if result.source else "no job"
        for known in self._members.values():
            with known.lock:
                if known.executors is not None and not known.executors.reason:
                    known.executors = replace(known.executors, reason=reason)


def _give(known: Application, order: ExecutorCount) -> None:
    with known.lock:
        known.executors = order
