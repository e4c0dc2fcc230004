"""One streaming job as an application: polled, measured, and rescaled.

Nothing is kept that Flink does not show, but for a history of polls: an adapter that was killed
goes on from the requirements, parallelism and start times that it reads.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from loadmaster.envs.errors import InputError
from loadmaster.platform.steering.core import (
    Action,
    Measurement,
    Memory,
    Plan,
    SilentError,
    StepResult,
    Target,
)
from loadmaster.platform.steering.flink.client import (
    NOT_FOUND,
    ApiError,
    FlinkClient,
    Json,
    seconds,
)
from loadmaster.platform.steering.flink.load_floor import load_floor
from loadmaster.platform.steering.flink.polling import (
    Poller,
    Sleep,
    fingerprint,
    remember,
    starting,
    with_counted_times,
)
from loadmaster.platform.steering.flink.quantities import (
    Slots,
    fit_to_slots,
    outcome_of,
    shortened,
)
from loadmaster.platform.steering.flink.rollback import Change, Rollback, flow_of
from loadmaster.platform.steering.flink.settings import FlinkSettings
from loadmaster.serving.decisions.guard import GuardSettings
from loadmaster.serving.systems.sure.flink import FlinkPoll, job_state
from loadmaster.serving.systems.sure.flink_answers import SETTLE_S, graph_of

ADAPTIVE = "adaptive"  # the scheduler that takes resource requirements
COOLDOWNS = (  # names in Flink's configuration, the present one first
    "jobmanager.adaptive-scheduler.executing.cooldown-after-rescaling",
    "jobmanager.adaptive-scheduler.scaling-interval.min",
)
FLINK_COOLDOWN_S = 30.0  # its default
AUTOSCALERS = ("job.autoscaler.enabled", "kubernetes.operator.job.autoscaler.enabled")
REFUSED_PAUSE_S, LONGEST_PAUSE_S = 60.0, 3_600.0  # after a first refusal; doubled after each
BLOCKED_MS = 500.0  # a source without pending records is behind above it

_log = logging.getLogger("loadmaster.steer")


class FlinkJob:
    """One streaming job."""

    def __init__(
        self,
        client: FlinkClient,
        job: str,
        application: str,
        settings: FlinkSettings,
        clock: Callable[[], float] = time.time,
        sleep: Sleep = time.sleep,
    ) -> None:
        self.application, self.job = application, job
        self._client, self._settings, self._clock = client, settings, clock
        self._poller = Poller(client, job, settings.refresh_s, clock, sleep)
        self._memory = Memory()
        self._was_read = False
        self._polls: list[FlinkPoll] = []  # with counted times
        self._last: FlinkPoll | None = None  # as Flink reported it
        self._moved: tuple[tuple[Any, ...], float] = (), -math.inf  # fingerprint, since when
        self._requested: tuple[dict[str, int], float] = {}, -math.inf  # bounds, seen since when
        self._config: dict[str, str] | None = None
        self._slots = Slots(0, {})
        self._bounds_now: dict[str, int] = {}
        self._refused: tuple[str, float, float] = "", -math.inf, 0.0  # reason, until, pause
        self._rollback = Rollback(
            settings.rollback_after_s, settings.rollback_tolerance, settings.rollback_hold_s
        )

    @property
    def is_new(self) -> bool:
        """Whether nothing was polled yet."""
        return not self._was_read

    def prepare(self) -> None:
        """Make Flink refresh its metrics; `read` then waits less. Faults are left to `read`."""
        try:
            self._poller.prepare()
        except (ApiError, SilentError) as fault:
            _log.debug("%s: %s", self.application, fault)

    def read(self) -> Target:
        """Poll the job once."""
        self._was_read = True
        try:
            poll = self._poller.poll()
            self._check_moves(poll)
            self._bounds_now = self._client.requirements(self.job)
            overview = self._client.overview()
            if self._config is None:
                self._config = self._client.config()
        except ApiError as fault:
            raise self._silent(fault) from None
        self._slots = Slots.of(poll.job, overview)
        off = self._keep(poll)
        plan = {name: float(poll.parallelism(vertex)) for name, vertex in _tasks(poll.job).items()}
        if not off:
            self._rollback.judge(self._polls, plan)
        return Target(
            self.application,
            plan,
            self._bounds(poll),
            self._guard(),
            "" if off else self._held(poll),
            self._memory,
            off,
        )

    def _check_moves(self, poll: FlinkPoll) -> None:
        """Refuse an answer that is older than the last one, or the same for long."""
        last, now = self._last, int(poll.job["now"])
        if last is not None and poll.time_s <= last.time_s:
            raise SilentError("engine", "the clock of this machine did not advance since a poll")
        if last is None or now <= int(last.job["now"]):
            if last is None:
                return
            behind = poll.time_s - last.time_s
            if now < int(last.job["now"]) or behind > self._settings.stale_s:
                raise SilentError("engine", f"Flink's answers have not changed for {behind:.0f} s")

    def _keep(self, poll: FlinkPoll) -> str:
        """Add a poll to the history; returns why there is nothing to decide on it."""
        if waiting := starting(poll.job):
            return waiting
        last, seen = self._last, fingerprint(poll)
        if last is not None and int(poll.job["now"]) == int(last.job["now"]):
            return "Flink's answers are those of the last poll"
        if seen != self._moved[0] or not seen:
            self._moved = seen, poll.time_s
        same = last is not None and last.job["jid"] == poll.job["jid"]
        counted_poll = with_counted_times(poll, last if same else None)
        remember(self._polls, counted_poll, self._settings.history_min)
        self._last = poll
        if pending := self._pending(poll):
            return pending
        if not poll.is_settled:
            return f"started {poll.seconds_up:.0f} s ago: metrics count after {SETTLE_S:.0f} s"
        if len(self._polls) < 2:
            return "first poll: rates need a second one"
        return ""

    def _pending(self, poll: FlinkPoll) -> str:
        """A rescale that Flink has yet to carry out, for `pending_s` after it was seen."""
        bounds = self._bounds_now
        shown = [
            f"{name} {poll.parallelism(vertex)} -> {bounds[vertex]}"
            for name, vertex in _tasks(poll.job).items()
            if bounds.get(vertex, poll.parallelism(vertex)) != poll.parallelism(vertex)
        ]
        if not shown:
            self._requested = {}, -math.inf
            return ""
        if bounds != self._requested[0]:
            self._requested = dict(bounds), poll.time_s
        if poll.time_s - self._requested[1] > self._settings.pending_s:
            return ""  # slots are missing, or Flink waits for something else
        return f"a rescale is under way: {', '.join(shown)}"

    def _held(self, poll: FlinkPoll) -> str:
        if self._settings.rollback and self._rollback.undo is not None:
            return ""
        cooldown = max(self._settings.cooldown_s, self._flink_cooldown_s())
        if poll.seconds_up < cooldown:
            return f"started or rescaled {poll.seconds_up:.0f} s ago, cooldown {cooldown:.0f} s"
        return ""

    def _flink_cooldown_s(self) -> float:
        config = self._config or {}
        return next((seconds(config[one]) for one in COOLDOWNS if one in config), FLINK_COOLDOWN_S)

    def _bounds(self, poll: FlinkPoll) -> dict[str, tuple[float, float]]:
        settings, vertices = self._settings, {v["id"]: v for v in poll.job["vertices"]}
        bounds: dict[str, tuple[float, float]] = {}
        for name, vertex in _tasks(poll.job).items():
            high = min(int(vertices[vertex]["maxParallelism"]), self._slots.most(vertex))
            if settings.max_parallelism is not None:
                high = min(high, settings.max_parallelism)
            high = max(high, 1)
            low = min(settings.floors.get(name, settings.floor), high)
            bounds[name] = float(low), float(high)
        if unknown := sorted(settings.floors.keys() - bounds.keys()):
            known = ", ".join(bounds)
            raise InputError(f"floors: unknown task {unknown[0]!r}; expected one of: {known}")
        return bounds

    def _guard(self) -> GuardSettings:
        settings = self._settings
        if settings.max_instances is None:
            return settings.guard
        return settings.guard.model_copy(update={"total": float(settings.max_instances)})

    def measure(self, target: Target) -> Measurement:
        settings, newest = self._settings, self._polls[-1]
        unmoved = newest.time_s - self._moved[1]
        if unmoved >= settings.stale_s:
            raise SilentError("metrics", f"no counter has changed for {unmoved:.0f} s")
        most = settings.max_instances
        if most is None:
            most = round(sum(high for _, high in target.bounds.values()))
        try:
            state, notes = job_state(self._polls, settings.history_min, most)
        except InputError as fault:
            raise SilentError("metrics", str(fault)) from None
        outcome = outcome_of(state)
        is_behind = False
        if outcome is not None:
            is_behind = outcome["latency_s"] > settings.latency_slo_s
        else:
            sources = [k for k, task in enumerate(state.tasks) if task.source]
            blocked = state.snapshots.backpressured_ms_per_s[-1]
            is_behind = any(blocked[k] > BLOCKED_MS for k in sources)
        flow = flow_of(self._polls, settings.rollback_after_s)
        is_steady = flow is not None and not flow.grows(settings.rollback_tolerance)
        lines = shortened(notes)
        floors: Plan = {}
        backlog_s = settings.guard.backlog_s
        if outcome is not None and backlog_s is not None and outcome["latency_s"] > backlog_s:
            floors = dict(target.plan)
            lines.append(f"no fall: {outcome['latency_s']:.0f} s of records wait")
        if self._requested[0]:
            lines.append("the requested parallelism is not reached: slots may be missing")
        if settings.load_floor is not None:
            least = load_floor(state, settings.load_floor, settings.load_floor_lead_s)
            floors = {
                name: max(value, floors.get(name, 0.0)) for name, value in least.instances.items()
            } or floors
            if least.reason:
                lines.append(least.reason)
        document = state.model_dump(mode="json")
        return Measurement(document, is_steady and not is_behind, outcome, floors, tuple(lines))

    def plan_of(self, decision: Mapping[str, Any]) -> Mapping[str, Any]:
        found = decision.get("parallelism")
        return found if isinstance(found, Mapping) else {}

    def check(self, target: Target) -> str:
        assert self._last is not None
        kind = str(self._last.job.get("schedulerType", ADAPTIVE))
        if kind.lower() != ADAPTIVE:
            return f"the scheduler of the job is {kind}; expected jobmanager.scheduler: adaptive"
        for name in AUTOSCALERS:
            if (self._config or {}).get(name, "").lower() == "true":
                return f"{name} is true: Flink's own autoscaler moves the job; expected one of them"
        reason, until, _ = self._refused
        left = until - self._clock()
        return f"{reason}; the next attempt is in {left:.0f} s" if left > 0 else ""

    def act(self, target: Target, plan: Plan) -> Action:
        """Set the upper bounds of all vertices where the plan differs from them."""
        assert self._last is not None
        now_s, undo = self._clock(), self._rollback.undo
        messages: list[str] = []
        if self._settings.rollback and undo is not None:
            if not undo.is_reverted_by(plan):
                messages.append(f"rolled back: {self._rollback.reason}")
                plan = undo.before
        elif held := self._rollback.held_back(plan, now_s):
            return Action("held", (held,))
        fitted, cuts = fit_to_slots(plan, target.plan, _tasks(self._last.job), self._slots)
        messages += cuts
        wanted = {vertex: int(fitted[name]) for name, vertex in _tasks(self._last.job).items()}
        if wanted == self._bounds_now:
            reached = all(fitted[name] == value for name, value in target.plan.items())
            return Action("unchanged" if reached else "pending", tuple(messages))
        flow = flow_of(self._polls, self._settings.rollback_after_s)
        try:
            self._client.set_requirements(self.job, wanted)
        except ApiError as fault:
            if fault.status == NOT_FOUND:
                raise self._silent(fault) from None
            pause = min(max(2 * self._refused[2], REFUSED_PAUSE_S), LONGEST_PAUSE_S)
            self._refused = f"Flink refused the plan: {fault}", now_s + pause, pause
            return Action("refused", (*messages, self._refused[0]))
        self._refused = "", -math.inf, 0.0
        if undo is not None:
            self._rollback.undone(now_s)
        else:
            self._rollback.requested(
                Change(self._last.started_ms, dict(target.plan), dict(fitted), flow)
            )
        return Action("acted", tuple(messages))

    def publish(self, target: Target, result: StepResult) -> None:
        """Flink has no place for it: the log and the metrics of the steps have all."""
        _log.info("%s", result.line())

    def _silent(self, fault: ApiError) -> SilentError:
        if fault.status == NOT_FOUND:
            return SilentError("engine", f"job {self.job} is gone: {fault}")
        return SilentError("engine", f"Flink: {fault.status}: {fault}")


def _tasks(job: Json) -> dict[str, str]:
    """Vertex ids by the names of the tasks in a state."""
    return {task.name: task.id or task.name for task in graph_of(job)[0]}
