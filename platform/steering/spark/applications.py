"""Applications that report: the last report of each driver, and the orders that it may fetch.

An order is a plan for the application's own jobs, or its number of executors. Each ends by itself.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadmaster.platform.steering.core import Mode
from loadmaster.platform.steering.spark.durations import TaskDurations, read_profile
from loadmaster.platform.steering.spark.plans import Plan
from loadmaster.platform.steering.spark.reports import EndedJob, Report
from loadmaster.platform.steering.spark.settings import SparkSettings

HOLD_S = 0.25  # most that a reply waits for the decision; drivers wait for one second
CLUSTER = "standalone-cluster"  # the name under which executors are shared

_log = logging.getLogger("loadmaster.steer")


@dataclass(frozen=True)
class ExecutorCount:
    """A number of executors that holds until a time."""

    count: int
    decided_s: float
    reason: str = ""

    def document(self, left_s: float) -> dict[str, Any]:
        """For the driver."""
        return {
            "count": self.count,
            "ttl_ms": round(max(left_s, 0.0) * 1000),
            "reason": self.reason,
        }


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
    executors: ExecutorCount | None = None
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
            return {"plan": None, "executors": None}
        if self.awaits_news:
            found.await_step(report.sequence)
        with found.lock:
            return self._orders(found)

    def _orders(self, known: Application) -> dict[str, Any]:
        """The orders in force; those that are left out end by themselves in the driver."""
        now_s, ttl_s, orders = self.clock(), self.settings.ttl_s, dict[str, Any]()
        if known.plan is not None and (left_s := known.decided_s + ttl_s - now_s) > 0:
            orders["plan"] = known.plan.document(left_s, known.reason)
        executors = known.executors
        if executors is not None and (left_s := executors.decided_s + ttl_s - now_s) > 0:
            orders["executors"] = executors.document(left_s)
        return orders

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
            if name == CLUSTER or any(one.name == name for one in self._known.values()):
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

    def listed(self, names: Sequence[str] = ()) -> list[Application]:
        """Those to steer now, or those of them with these names or ids of Spark.

        One that has ended is listed until its outcomes are reported.
        """
        with self._lock:
            known = list(self._known.values())
            self._forget(self.clock())
        if not names:
            return known
        return [one for one in known if one.name in names or one.report.application in names]

    def plans(self) -> dict[str, Any]:
        """The plans in force with their reasons, for people."""
        shown = []
        with self._lock:
            known = list(self._known.items())
        for id, one in known:
            with one.lock:
                orders = {"plan": None, "executors": None, **self._orders(one)}
                shown.append(
                    {"application": one.name, "id": id, "slots": one.report.slots,
                     "jobs": len(one.report.jobs), **orders, "reason": one.reason}
                )  # fmt: skip
        return {"mode": self.mode, "applications": shown}
