"""The engine Spark: applications whose drivers report, their decisions and their plans."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import Settings
from loadmaster.platform.steering.core import Mode, RefusedError, SilentError, StepResult
from loadmaster.platform.steering.jobs import START, Command, Observation
from loadmaster.platform.steering.registry import EngineSpec
from loadmaster.platform.steering.spark.durations import TaskDurations, read_profile
from loadmaster.platform.steering.spark.listener import listen
from loadmaster.platform.steering.spark.plans import Plan, plan_of, state_of
from loadmaster.platform.steering.spark.reports import EndedJob, Report

_log = logging.getLogger("loadmaster.steer")

WAIT_S = 0.05  # between looks for the first report, and for the end
EVERY_S = 0.25  # between steps of all applications, with and without a new report
PAUSE_S = 0.0  # between requests: drivers report no more often than spark.loadmaster.pause
HOLD_S = 0.25  # most that a reply waits for the decision; drivers wait for one second
ONLY_REPORTS = "the driver only reports: its master is not one of Loadmaster's"


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
    applications_max: int = Field(
        default=64, ge=1, description="Applications at a time; reports of others are refused."
    )


@dataclass(eq=False)
class Application:
    """The last report of a driver, and the plan it may fetch.

    `lock` guards all fields, and is notified when a step has ended.
    """

    name: str  # unique among those known
    report: Report
    received_s: float
    durations: TaskDurations
    limit_factor: float | None = None
    may_idle: bool = False
    lock: threading.Condition = field(default_factory=threading.Condition)
    stepped: int = -1  # number of the report that the last step was from
    plan: Plan | None = None
    decided_s: float = float("-inf")  # when the plan's decision was made
    reason: str = ""
    ended: dict[str, EndedJob] = field(default_factory=dict)  # whose outcome is not reported
    reported: set[str] = field(default_factory=set)

    @property
    def has_news(self) -> bool:
        return self.report.sequence > self.stepped

    def receive(self, report: Report, now_s: float) -> None:
        """Replace the report, unless it is older than the last."""
        with self.lock:
            if report.sequence < self.report.sequence:
                return
            self.report, self.received_s = report, now_s
            self.durations.note(report)
            listed = {job.id for job in report.ended}
            self.reported &= listed
            for job in report.ended:
                if job.id not in self.reported:
                    self.ended[job.id] = job

    def await_step(self, sequence: int) -> None:
        """Wait for a step from that report or a later one."""
        with self.lock:
            self.lock.wait_for(lambda: self.stepped >= sequence, HOLD_S)


class Applications:
    """All applications that report; safe for the threads of the listener and of steering."""

    def __init__(
        self, settings: SparkSettings, mode: Mode, clock: Callable[[], float] = time.time
    ) -> None:
        self.settings, self.mode, self.clock = settings, mode, clock
        self._profile = {} if settings.profile is None else read_profile(settings.profile)
        self._lock = threading.Lock()
        self._known: dict[str, Application] = {}  # by Spark's id
        self.news = threading.Event()  # a report has come
        self.awaits_news = False  # each report is followed by a step at once

    def receive(self, report: Report) -> dict[str, Any]:
        """Take a report; the reply for the driver.

        It waits for the decision, so that the plan in it is that of this report. The driver sends
        one report at a time: reports are thus no more frequent than decisions can be made.
        """
        now_s = self.clock()
        found = self._find(report, now_s)
        if found is None:
            return {}
        found.receive(report, now_s)
        self.news.set()
        if self.mode != "act":
            return {"plan": None}
        if self.awaits_news:
            found.await_step(report.sequence)
        with found.lock:
            left_s = found.decided_s + self.settings.ttl_s - self.clock()
            if found.plan is None or left_s <= 0:
                return {}  # the driver's plan, if it has one, ends by itself
            return {"plan": found.plan.document(left_s, found.reason)}

    def _find(self, report: Report, now_s: float) -> Application | None:
        with self._lock:
            found = self._known.get(report.application)
            if found is not None:
                return found
            self._forget(now_s)
            if len(self._known) >= self.settings.applications_max:
                _log.warning("%s: too many applications; it is left to Spark", report.application)
                return None
            name = report.name or report.application
            if any(one.name == name for one in self._known.values()):
                name = f"{name}@{report.application}"
            durations = TaskDurations(self.settings.task_ms, self._profile)
            settings = self.settings
            found = Application(
                name, report, now_s, durations, settings.limit_factor, settings.idle
            )
            self._known[report.application] = found
            return found

    def _forget(self, now_s: float) -> None:
        oldest_s = now_s - self.settings.forget_s
        for id, one in list(self._known.items()):
            if one.received_s < oldest_s or (one.report.over and not one.ended):
                del self._known[id]

    def listed(self) -> list[Application]:
        """Those to steer now. One that has ended is listed until its outcomes are reported."""
        with self._lock:
            known = list(self._known.values())
            self._forget(self.clock())
            return known

    def plans(self) -> dict[str, Any]:
        """The plans in force with their reasons, for people."""
        now_s, shown = self.clock(), []
        with self._lock:
            known = list(self._known.items())
        for id, one in known:
            with one.lock:
                left_s = one.decided_s + self.settings.ttl_s - now_s
                plan = None if one.plan is None or left_s <= 0 else one.plan.document(left_s)
                shown.append(
                    {"application": one.name, "id": id, "slots": one.report.slots,
                     "jobs": len(one.report.jobs), "plan": plan, "reason": one.reason}
                )  # fmt: skip
        return {"mode": self.mode, "applications": shown}


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
        self, known: Applications, settings: SparkSettings, names: Sequence[str], url: str
    ) -> None:
        self.known, self.url = known, url
        self._settings, self._names = settings, names
        self._engines: dict[int, SparkEngine] = {}
        self._is_first, self._is_woken = True, False
        self._all_due_s = 0.0  # monotonic

    def __call__(self) -> list[SparkEngine]:
        """The applications to step now. The first call waits for one."""
        found = self._chosen()
        if self._is_first:
            self._is_first = False
            end_s = time.monotonic() + self._settings.first_report_s
            while not found:
                if time.monotonic() >= end_s:
                    raise SilentError("engine", self._missing())
                time.sleep(WAIT_S)
                found = self._chosen()
        ttl_s, clock = self._settings.ttl_s, self.known.clock
        self._engines = {
            id(one): self._engines.get(id(one)) or SparkEngine(one, ttl_s, clock) for one in found
        }
        if self._is_woken and time.monotonic() < self._all_due_s:
            return [self._engines[id(one)] for one in found if one.has_news]
        self._all_due_s = time.monotonic() + EVERY_S
        return list(self._engines.values())

    def wait(self, stopped: threading.Event, seconds: float) -> bool:
        """Wait for a report, for `stopped`, or so long; whether `stopped` is set."""
        known, end_s = self.known, time.monotonic() + seconds
        self._is_woken, known.awaits_news = False, True
        while not (self._is_woken or stopped.is_set()) and time.monotonic() < end_s:
            self._is_woken = known.news.wait(min(WAIT_S, seconds))
        known.news.clear()
        known.awaits_news = not stopped.is_set()
        return stopped.is_set()

    def _chosen(self) -> list[Application]:
        return [
            one
            for one in self.known.listed()
            if not self._names or one.name in self._names or one.report.application in self._names
        ]

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
    with listen(settings.host, settings.port, token, known.receive, known.plans) as url:
        yield Connection(known, settings, names, url)


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
