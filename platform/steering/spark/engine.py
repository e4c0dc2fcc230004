"""The engine Spark: applications whose drivers report, their decisions and their plans."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from loadmaster.envs.errors import InputError
from loadmaster.platform.steering.core import Mode, RefusedError, SilentError, StepResult
from loadmaster.platform.steering.jobs import START, Command, JobEngine, Observation
from loadmaster.platform.steering.registry import EngineSpec
from loadmaster.platform.steering.spark.applications import Application, Applications
from loadmaster.platform.steering.spark.executors import ExecutorsEngine, Master, open_master
from loadmaster.platform.steering.spark.listener import listen
from loadmaster.platform.steering.spark.plans import plan_of, state_of
from loadmaster.platform.steering.spark.reports import EndedJob, Report
from loadmaster.platform.steering.spark.settings import SparkSettings

WAIT_S = 0.05  # between looks for the first report, and for the end
EVERY_S = 0.25  # between steps of all applications, with and without a new report
PAUSE_S = 0.0  # between requests: drivers report no more often than spark.loadmaster.pause
ONLY_REPORTS = "the driver only reports: its master is not one of Loadmaster's"


class SparkEngine:
    """One application. What it knows is in the last report; a new adapter needs only the next."""

    def __init__(self, known: Application, ttl_s: float, clock: Callable[[], float]) -> None:
        self.application = known.name
        self._known, self._ttl_s, self._clock = known, ttl_s, clock
        self._report = known.report
        self._started: frozenset[str] | None = None
        self._decision: Mapping[str, Any] | None = None
        self._decided_s = float("-inf")
        self._planned: set[str] = set()  # waiting jobs that a plan had

    def observe(self, now_s: float) -> Observation:
        known = self._known
        with known.lock:
            report = self._report = known.report
            waited_s = max(now_s - known.received_s, 0.0)
            outcomes = [(job.id, _outcome(job)) for job in known.ended.values() if job.succeeded]
            known.reported |= known.ended.keys()
            known.ended.clear()
            state, notes = state_of(report, waited_s, known.durations, known.may_idle)
        if not report.acts:
            notes = (*notes, ONLY_REPORTS)
        started = frozenset(job.id for job in report.jobs if job.has_started)
        before, self._started = self._started, started
        return Observation(
            None if report.over else state,
            # Decisions are renewed in time, as a plan ends with its decision's time to live.
            (_digest(report), int(now_s // (self._ttl_s / 3))),
            outcomes=outcomes,
            started=frozenset() if before is None else started - before,
            notes=notes,
        )

    def commands(self, observation: Observation, decision: Mapping[str, Any]) -> Sequence[Command]:
        """The plan, where the driver has another one or its time is running out."""
        if decision is not self._decision:
            self._decision, self._decided_s = decision, self._clock()
        known = self._known
        plan = plan_of(decision, known.limit_factor, known.may_idle)
        waiting = {job.id for job in self._report.jobs if not job.has_started}
        self._planned &= waiting

        def give() -> None:
            self._require_scheduler()
            with known.lock:
                known.plan, known.decided_s = plan, self._decided_s

        def tell(job: str) -> None:
            self._require_scheduler()
            self._planned.add(job)

        with known.lock:
            is_same = known.plan is not None and known.plan.id == plan.id
            is_new = known.decided_s < self._decided_s
        commands = list[Command]()
        if not is_same or is_new:
            text = f"plan {plan.line()}"
            commands.append(
                Command("plan", self.application, text, give, routine=is_same, unlimited=True)
            )
        if not is_same:
            # They have no effect beside the plan's: outcomes and comparisons refer to them.
            commands += [
                Command(START, job, f"{job} may start", partial(tell, job), unlimited=True)
                for job in plan.jobs
                if job in waiting - self._planned
            ]
        return commands

    def _require_scheduler(self) -> None:
        if not self._report.acts:
            raise RefusedError(ONLY_REPORTS)

    def publish(self, observation: Observation, result: StepResult) -> None:
        """Keep the reason, which goes to the driver's log with the plan; the step has ended."""
        known = self._known
        with known.lock:
            known.reason = f"{result.source}: {result.reason}" if result.source else ""
            known.stepped = self._report.sequence
            known.lock.notify_all()


def _digest(report: Report) -> int:
    """A number that changes with what a decision depends on; starts of tasks do not count."""
    facts = [
        (job.id, stage.id, stage.tasks, stage.finished)
        for job in report.jobs
        for stage in job.stages
    ]
    return hash((report.slots, *facts))


def _outcome(job: EndedJob) -> dict[str, Any]:
    return {
        "job": job.id,
        "completion_s": job.completion_ms / 1000,
        "work_s": max(job.work_ms, 1.0) / 1000,
    }


class Connection:
    """Lists the applications that report to `url`: after a report, those with a new one."""

    def __init__(
        self,
        known: Applications,
        settings: SparkSettings,
        names: Sequence[str],
        url: str,
        master: Master | None = None,
    ) -> None:
        self.known, self.url = known, url
        self._settings, self._names = settings, names
        self._executors = (
            None
            if master is None
            else ExecutorsEngine(lambda: known.listed(names), master, settings, known.clock)
        )
        self._engines: dict[int, SparkEngine] = {}
        self._is_first, self._is_woken = True, False
        self._all_due_s = 0.0  # monotonic

    def __call__(self) -> list[JobEngine]:
        """The applications to step now, and their cluster. The first call waits for one."""
        found = self.known.listed(self._names)
        if self._is_first:
            self._is_first = False
            end_s = time.monotonic() + self._settings.first_report_s
            while not found:
                if time.monotonic() >= end_s:
                    raise SilentError("engine", self._missing())
                time.sleep(WAIT_S)
                found = self.known.listed(self._names)
        ttl_s, clock = self._settings.ttl_s, self.known.clock
        self._engines = {
            id(one): self._engines.get(id(one)) or SparkEngine(one, ttl_s, clock) for one in found
        }
        if self._is_woken and time.monotonic() < self._all_due_s:
            return [self._engines[id(one)] for one in found if one.has_news]
        self._all_due_s = time.monotonic() + EVERY_S
        cluster = [] if self._executors is None else [self._executors]
        return [*self._engines.values(), *cluster]

    def wait(self, stopped: threading.Event, seconds: float) -> bool:
        """Wait for a report, for `stopped`, or so long; whether `stopped` is set."""
        known, end_s = self.known, time.monotonic() + seconds
        self._is_woken, known.awaits_news = False, True
        while not (self._is_woken or stopped.is_set()) and time.monotonic() < end_s:
            self._is_woken = known.news.wait(min(WAIT_S, seconds))
        known.news.clear()
        known.awaits_news = not stopped.is_set()
        return stopped.is_set()

    def _missing(self) -> str:
        others = ", ".join(one.name for one in self.known.listed())
        if others:
            return f"{', '.join(self._names)} has not reported; expected one of: {others}"
        where = f"spark.loadmaster.url={self.url}"
        return f"no application has reported yet; expected {where}"


@contextmanager
def connect(settings: SparkSettings, names: Sequence[str], mode: Mode) -> Iterator[Connection]:
    """Listen for reports while the block runs."""
    token = None if settings.token_file is None else _read_token(settings.token_file)
    known = Applications(settings, mode)
    with (
        open_master(settings) as master,
        listen(settings.host, settings.port, token, known.receive, known.plans) as url,
    ):
        yield Connection(known, settings, names, url, master)


def _read_token(path: Path) -> str:
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as fault:
        raise InputError(f"token_file {path}: {fault}; expected a readable file") from None
    if not token:
        raise InputError(f"token_file {path} is empty; expected a token")
    return token


SPEC = EngineSpec(
    name="spark",
    endpoint="loadmaster.serving.systems.decima.system:ENDPOINT",
    summary="Order of stages and limits of jobs inside applications.",
    settings=SparkSettings,
    connect=connect,
    by_jobs=True,
    every_s=EVERY_S,
    pause_s=PAUSE_S,
)
