"""A step of steering an engine's jobs: observe, decide on changes, carry out commands in bounds.

Commands are derived in each step from what the engine shows and from the last decision, never from
records of what was done: a command that got lost is derived again, one that took effect is not.
A decision is used for `stale_s` only. Where the recommender is silent for longer, nothing is
renewed, so that the engine goes on by its own rules.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self

from pydantic import Field, model_validator

from loadmaster.envs.settings import Settings
from loadmaster.platform.steering.core import (
    Mode,
    Recommendation,
    Recommender,
    RefusedError,
    Result,
    SilentError,
    StepResult,
)

START = "start"  # the kind of commands that are compared with the engine's own starts
DECISIONS_MAX = 20_000  # jobs whose decision is remembered for feedback


@dataclass(frozen=True)
class Command:
    """A change of the engine that has no further effect when it is repeated."""

    kind: str
    subject: str  # usually a job
    text: str  # for logs
    run: Callable[[], None]  # raises RefusedError or SilentError
    disruptive: bool = False  # stops work that runs
    routine: bool = False  # renews a state; neither counted as a change nor logged
    unlimited: bool = False  # sends nothing to the engine: no part of commands_per_minute


@dataclass(frozen=True)
class Observation:
    """What an engine shows now."""

    state: Mapping[str, Any] | None  # for the recommender; None: there is nothing to decide
    digest: Hashable  # a change of it requests a new decision
    upkeep: Sequence[Command] = ()  # carried out in act mode with any decision and without one
    outcomes: Sequence[tuple[str, Mapping[str, Any]]] = ()  # of jobs that have ended since
    started: frozenset[str] = frozenset()  # jobs that the engine has started since
    notes: tuple[str, ...] = ()


class JobEngine(Protocol):
    """A cluster whose jobs are steered. Methods raise SilentError, and InputError."""

    application: str

    def observe(self, now_s: float) -> Observation: ...

    def commands(
        self, observation: Observation, decision: Mapping[str, Any]
    ) -> Sequence[Command]: ...

    def publish(self, observation: Observation, result: StepResult) -> None:
        """Write the result where the engine's users see it, if anything has changed."""


class Limits(Settings):
    """Bounds of what is done to an engine, whatever is decided."""

    commands_per_minute: int = Field(default=240, ge=1, description="Of all kinds together.")
    stops_per_job_per_hour: int = Field(
        default=4, ge=0, description="Commands that stop running work, for each job."
    )
    back_off_s: float = Field(
        default=5, gt=0, description="After a refusal; twice as long after each further one."
    )
    back_off_max_s: float = Field(default=300, gt=0)


class Cadence(Settings):
    """When decisions are requested."""

    pause_s: float = Field(default=0.5, ge=0, description="The least time between two requests.")
    refresh_s: float = Field(default=15, gt=0, description="The most, where nothing changes.")
    stale_s: float = Field(
        default=45, gt=0, description="A decision of this age is not carried out any more."
    )

    @model_validator(mode="after")
    def check_order(self) -> Self:
        if self.stale_s <= self.refresh_s:
            raise ValueError(
                f"stale_s is {self.stale_s:g}; expected more than refresh_s, {self.refresh_s:g}"
            )
        return self


@dataclass
class _Refusals:
    count: int
    until_s: float


@dataclass
class _Memory:
    """What is known of an engine between steps.

    Losing it costs requests and feedback; limits, and waits after refusals, begin anew.
    """

    digest: Hashable = None
    requested_s: float = float("-inf")
    decided_s: float = float("-inf")
    found: Recommendation | None = None
    silent: SilentError | None = None  # the answer to the last request was none
    sent_s: deque[float] = field(default_factory=deque)  # times of commands in the last minute
    stops_s: dict[str, deque[float]] = field(default_factory=dict)
    refusals: dict[tuple[str, str], _Refusals] = field(default_factory=dict)
    decision_ids: dict[str, str] = field(default_factory=dict)  # that started a job
    wanted: frozenset[str] = frozenset()  # starts of the last decision that were not carried out


class JobSteerer:
    """Runs the steps of engines of jobs."""

    def __init__(
        self,
        recommender: Recommender,
        mode: Mode = "watch",
        limits: Limits | None = None,
        cadence: Cadence | None = None,
    ) -> None:
        self.recommender, self.mode = recommender, mode
        self.limits, self.cadence = limits or Limits(), cadence or Cadence()
        self._memories: dict[str, _Memory] = {}

    def step(self, engine: JobEngine, now_s: float) -> StepResult:
        """Run one step; `now_s` is in seconds since 1970. Raises InputError for wrong input."""
        memory = self._memories.setdefault(engine.application, _Memory())
        try:
            observation = engine.observe(now_s)
        except SilentError as fault:
            return StepResult(engine.application, "silent", str(fault), silent=fault.part)
        self._report_outcomes(engine.application, observation, memory)
        result = self._decide(engine, observation, memory, now_s)
        try:
            engine.publish(observation, result)
        except SilentError as fault:
            messages = (*result.messages, f"not published: {fault}")
            return replace(result, messages=messages, silent=result.silent or fault.part)
        return result

    def _report_outcomes(self, name: str, observation: Observation, memory: _Memory) -> None:
        if self.mode == "watch":
            return
        for job, outcome in observation.outcomes:
            id = memory.decision_ids.pop(job, None)
            if id is not None or self.mode == "shadow":
                self.recommender.feedback(name, id, outcome)

    def _decide(
        self, engine: JobEngine, observation: Observation, memory: _Memory, now_s: float
    ) -> StepResult:
        if observation.state is None:
            memory.found, memory.digest, memory.silent = None, None, None
        elif self._is_due(observation, memory, now_s):
            memory.requested_s = now_s
            try:
                memory.found = self.recommender.recommend(engine.application, observation.state)
                memory.digest, memory.decided_s = observation.digest, now_s
                memory.silent = None
            except SilentError as fault:
                memory.silent = fault
        silent = memory.silent  # in every step until the next answer
        if now_s - memory.decided_s > self.cadence.stale_s:
            memory.found = None
        found = memory.found
        commands = list(observation.upkeep)
        if found is not None:
            try:
                commands += engine.commands(observation, found.decision)
            except SilentError as fault:
                silent = silent or fault
        agreement = None
        if self.mode == "shadow":
            agreement = _agreement(memory.wanted, observation.started)
            memory.wanted = frozenset(one.subject for one in commands if one.kind == START)
        outcome, shown, messages = self._carry_out(commands, memory, now_s)
        if silent is not None:
            outcome = "silent"
            left_s = max(self.cadence.stale_s - (now_s - memory.decided_s), 0.0)
            messages = [f"the last decision is used for {left_s:.0f} s more", *messages]
        part = None if silent is None else silent.part
        if silent is None and outcome == "silent":
            part = "engine"  # it did not answer to a command
        idle = "nothing waits or runs" if observation.state is None else "no decision yet"
        reason = idle if found is None else found.reason
        return StepResult(
            engine.application,
            outcome,
            reason if silent is None else f"silent {silent.part}: {silent}",
            source="" if found is None else found.source,
            messages=(*observation.notes, *(() if found is None else found.notes), *messages),
            silent=part,
            commands=tuple(shown),
            agreement=agreement,
        )

    def _is_due(self, observation: Observation, memory: _Memory, now_s: float) -> bool:
        since_s = now_s - memory.requested_s
        if since_s < self.cadence.pause_s:
            return False
        return observation.digest != memory.digest or since_s >= self.cadence.refresh_s

    def _carry_out(
        self, commands: Sequence[Command], memory: _Memory, now_s: float
    ) -> tuple[Result, list[str], list[str]]:
        """Run the commands that the limits allow; returns the result, their texts and messages."""
        if self.mode != "act":
            shown = [one.text for one in commands if not one.routine]
            return ("dry-run" if shown else "unchanged"), shown, []
        done, messages = list[str](), list[str]()
        result: Result = "unchanged"
        while memory.sent_s and memory.sent_s[0] <= now_s - 60:
            memory.sent_s.popleft()
        for place, one in enumerate(commands):
            if blocked := self._blocked(one, memory, now_s):
                messages.append(f"{one.text}: {blocked}")
                continue
            if not one.unlimited:
                if len(memory.sent_s) >= self.limits.commands_per_minute:
                    left = len(commands) - place
                    messages.append(f"limit of commands a minute: {left} are put off")
                    break
                memory.sent_s.append(now_s)
            try:
                one.run()
            except RefusedError as fault:
                result = "refused"
                messages.append(f"{one.text}: refused: {fault}")
                self._note_refusal(one, memory, now_s)
                continue
            except SilentError as fault:
                messages.append(f"{one.text}: silent {fault.part}: {fault}")
                return "silent", done, messages
            memory.refusals.pop((one.kind, one.subject), None)
            if one.disruptive:
                memory.stops_s.setdefault(one.subject, deque()).append(now_s)
            if one.kind == START and memory.found is not None and memory.found.id is not None:
                if len(memory.decision_ids) >= DECISIONS_MAX:
                    memory.decision_ids.pop(next(iter(memory.decision_ids)))
                memory.decision_ids[one.subject] = memory.found.id
            if not one.routine:
                done.append(one.text)
                result = "acted" if result == "unchanged" else result
        return result, done, messages

    def _blocked(self, command: Command, memory: _Memory, now_s: float) -> str:
        """The reason for which a command may not be sent now, or nothing."""
        refused = memory.refusals.get((command.kind, command.subject))
        if refused is not None and now_s < refused.until_s:
            return f"refused {refused.count} times, next try in {refused.until_s - now_s:.0f} s"
        if command.disruptive:
            times = memory.stops_s.get(command.subject, deque())
            while times and times[0] <= now_s - 3600:
                times.popleft()
            if len(times) >= self.limits.stops_per_job_per_hour:
                return f"stopped {len(times)} times within the hour"
        return ""

    def _note_refusal(self, command: Command, memory: _Memory, now_s: float) -> None:
        key = command.kind, command.subject
        count = memory.refusals[key].count + 1 if key in memory.refusals else 1
        wait_s = min(self.limits.back_off_s * 2 ** (count - 1), self.limits.back_off_max_s)
        memory.refusals[key] = _Refusals(count, now_s + wait_s)
        if len(memory.refusals) > DECISIONS_MAX:
            memory.refusals = {k: v for k, v in memory.refusals.items() if v.until_s > now_s}


def _agreement(wanted: frozenset[str], started: frozenset[str]) -> float | None:
    """The jobs in both as a share of those in either; None: the engine has started none."""
    either = wanted | started
    return len(wanted & started) / len(either) if started else None
