"""A step of steering, for any engine: observe, recommend, limit, act, publish.

Where a part is silent, the application holds its plan; after some silent steps each quantity rises
to that of the last safe plan, and none falls. A step never raises for a silent part: its result
names it, which the signals make visible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from loadmaster.envs.errors import InputError
from loadmaster.serving.decisions.guard import Guard, GuardSettings, restore_history
from loadmaster.serving.system import Quantity

Plan = Mapping[str, float]  # value of each quantity that is decided
Part = Literal["engine", "metrics", "recommender"]
# acted: changed something; unchanged: nothing to change; held: not acted on purpose; pending: the
# engine has not finished an earlier change; refused: the engine does not allow it; silent: a part
# did not answer; invalid: wrong input.
Result = Literal["acted", "unchanged", "dry-run", "held", "pending", "refused", "silent", "invalid"]
DEGRADED: frozenset[Result] = frozenset({"refused", "silent", "invalid"})

HOLD_STEPS = 3  # silent steps before quantities rise to those of the last safe plan


class SilentError(Exception):
    """A part that steering needs does not answer, or not with what is needed."""

    def __init__(self, part: Part, message: str) -> None:
        super().__init__(part, message)
        self.part, self.message = part, message

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True)
class Recommendation:
    """A plan and its reason. `id` refers to it in feedback; `source` names what has decided."""

    plan: Plan
    reason: str
    source: str
    id: str | None = None
    notes: tuple[str, ...] = ()


class Recommender(Protocol):
    """Decides about a state document. Raises SilentError where it cannot."""

    name: str

    def recommend(self, state: Mapping[str, Any]) -> Recommendation: ...

    def feedback(self, state: Mapping[str, Any], id: str, outcome: Mapping[str, Any]) -> None:
        """Report the outcome of the control step after the decision `id`."""


@dataclass
class Memory:
    """What outlasts a step, kept by the engine so that a restart loses nothing."""

    safe_plan: dict[str, float] | None = None  # the last one in a control step that kept the SLO
    silent_steps: int = 0
    measured: bool = False  # its metrics were complete at least once
    decision_id: str | None = None  # of the last decision, if it was carried out as decided
    histories: dict[str, Any] = field(default_factory=dict)  # of the guard

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "safePlan": self.safe_plan,
            "silentSteps": self.silent_steps,
            "measured": self.measured,
            "decisionId": self.decision_id,
            "histories": self.histories,
        }


def restore_memory(record: Any) -> Memory:
    """Restore from `Memory.record()`; a damaged record is an empty memory."""
    if not isinstance(record, Mapping):
        return Memory()
    try:
        safe = record.get("safePlan")
        decision_id = record.get("decisionId")
        return Memory(
            None if safe is None else {str(k): float(v) for k, v in dict(safe).items()},
            int(record.get("silentSteps") or 0),
            bool(record.get("measured")),
            None if decision_id is None else str(decision_id),
            dict(record.get("histories") or {}),
        )
    except (TypeError, ValueError, AttributeError):
        return Memory()


@dataclass(frozen=True)
class Target:
    """An application as its engine has it now."""

    application: str
    plan: Plan
    bounds: Mapping[str, tuple[float, float]]
    guard: GuardSettings
    held: str = ""  # why nothing may be changed: paused, or a mode without effect
    memory: Memory = field(default_factory=Memory)
    off: str = ""  # why there is nothing to decide: the application does not run
    recommenders: tuple[str, ...] = ()  # that the application names; none: those of the steerer


@dataclass(frozen=True)
class Measurement:
    """The state document of a recommender, and what the last control step was."""

    state: Mapping[str, Any]
    safe: bool  # the SLO was kept, and nothing restarted or was missing
    outcome: Mapping[str, Any] | None = None  # for feedback; None: not measured
    floors: Plan = field(default_factory=dict)  # values below which a quantity must not fall now
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Action:
    """The result of carrying out a plan, with one line for each thing that differs from it."""

    result: Result
    messages: tuple[str, ...] = ()


@dataclass(frozen=True)
class StepResult:
    """A step, for logs, metrics and the engine's own records."""

    application: str
    result: Result
    reason: str
    plan: Plan = field(default_factory=dict)  # before the step
    recommended: Plan = field(default_factory=dict)
    wanted: Plan = field(default_factory=dict)  # the recommendation within its limits
    source: str = ""
    messages: tuple[str, ...] = ()
    silent: Part | None = None

    @property
    def degraded(self) -> bool:
        return self.result in DEGRADED or self.silent is not None

    def line(self) -> str:
        """One line of text."""
        changes = [
            f"{name} {self.plan[name]:g} -> {value:g}"
            for name, value in self.wanted.items()
            if value != self.plan.get(name, value)
        ]
        text = f"{self.application} {self.result}: {', '.join(changes) or 'no change'}"
        return "; ".join([f"{text}; {self.reason}", *self.messages])


class Engine(Protocol):
    """One application of an engine. Methods raise SilentError, and InputError for wrong input."""

    application: str

    def read(self) -> Target: ...

    def measure(self, target: Target) -> Measurement: ...

    def act(self, target: Target, plan: Plan) -> Action:
        """Move the application to the plan; called only where it may change."""

    def check(self, target: Target) -> str:
        """The reason for which the engine refuses to act on the application, or nothing."""

    def publish(self, target: Target, result: StepResult) -> None:
        """Write the result and `target.memory` where the engine's users see them."""


class Steerer:
    """Runs the steps of applications; `apply` lets them act, else they are a dry run.

    `named` builds the recommender of an application that names its own.
    """

    def __init__(
        self,
        recommender: Recommender,
        apply: bool,
        hold_steps: int = HOLD_STEPS,
        named: Callable[[tuple[str, ...]], Recommender] | None = None,
    ) -> None:
        self.recommender, self.apply, self.hold_steps = recommender, apply, hold_steps
        self._named = named

    def step(self, engine: Engine, now_s: float) -> StepResult:
        """Run one step; `now_s` is in seconds since 1970. Raises InputError for wrong input."""
        try:
            target = engine.read()
        except SilentError as fault:
            return StepResult(engine.application, "silent", str(fault), silent=fault.part)
        if target.off:
            result = StepResult(target.application, "held", target.off, target.plan)
        else:
            result = self._decide(engine, target, now_s)
        try:
            engine.publish(target, result)
        except SilentError as fault:
            messages = (*result.messages, f"not published: {fault}")
            return replace(result, messages=messages, silent=result.silent or fault.part)
        return result

    def _decide(self, engine: Engine, target: Target, now_s: float) -> StepResult:
        memory, recommender = target.memory, self.recommender
        if target.recommenders and self._named is not None:
            recommender = self._named(target.recommenders)
        try:
            measurement = engine.measure(target)
            self._note_outcome(target, measurement, recommender)
            recommended = _checked(recommender.recommend(measurement.state), target)
        except SilentError as fault:
            memory.silent_steps += 1
            return self._without_recommendation(engine, target, fault)
        memory.silent_steps = 0
        return self._carry_out(engine, target, measurement, recommended, now_s)

    def _note_outcome(
        self, target: Target, measurement: Measurement, recommender: Recommender
    ) -> None:
        """Keep a safe plan, and report the outcome of the last decision."""
        memory = target.memory
        memory.measured = True
        if measurement.safe:
            memory.safe_plan = dict(target.plan)
        given, memory.decision_id = memory.decision_id, None
        if given is not None and measurement.outcome is not None:
            recommender.feedback(measurement.state, given, measurement.outcome)

    def _carry_out(
        self,
        engine: Engine,
        target: Target,
        measurement: Measurement,
        recommended: Recommendation,
        now_s: float,
    ) -> StepResult:
        guard = Guard(target.guard)
        for name, record in target.memory.histories.items():
            try:
                guard.histories[name] = restore_history(record, 0.0, now_s)
            except (ValueError, TypeError, OverflowError):
                continue
        quantities, changes = [], []
        for name, current in target.plan.items():
            low, high = target.bounds[name]
            given = recommended.plan[name]
            value = min(max(given, low), high)
            if value < (floor := min(measurement.floors.get(name, 0.0), high)):
                value = floor
            if value != given:
                changes.append(f"bounds: {name} from {given:g} to {value:g}")
            quantities.append(Quantity(name, current, value))
        limited = guard.apply(quantities, now_s)
        wanted = dict(limited.values)
        action = self._act(engine, target, wanted)
        if action.result in ("acted", "unchanged", "pending") and wanted == recommended.plan:
            target.memory.decision_id = recommended.id  # its outcome is the decision's
        if action.result not in ("refused", "silent") and not (self.apply and target.held):
            guard.commit(quantities, limited, now_s)
            target.memory.histories = {
                name: history.record(0.0) for name, history in guard.histories.items()
            }
        return StepResult(
            target.application,
            action.result,
            recommended.reason,
            target.plan,
            recommended.plan,
            wanted,
            recommended.source,
            (*measurement.notes, *recommended.notes, *changes, *limited.messages, *action.messages),
            "engine" if action.result == "silent" else None,
        )

    def _without_recommendation(
        self, engine: Engine, target: Target, fault: SilentError
    ) -> StepResult:
        """Hold the plan, then raise it to the last safe one."""
        memory, wanted = target.memory, dict(target.plan)
        reason = f"silent {fault.part}: {fault}"
        if memory.silent_steps >= self.hold_steps and memory.safe_plan is not None:
            for name, (_, high) in target.bounds.items():
                safe = min(memory.safe_plan.get(name, 0.0), high)
                wanted[name] = max(wanted[name], safe)
            doing = "at least the last safe plan"
        else:
            doing = "the plan is held"
        messages = [f"{doing}, after {memory.silent_steps} silent steps"]
        if wanted != dict(target.plan):
            try:
                messages += self._act(engine, target, wanted).messages
            except SilentError as second:
                messages.append(f"silent {second.part}: {second}")
        return StepResult(
            target.application,
            "silent",
            reason,
            target.plan,
            wanted=wanted,
            messages=tuple(messages),
            silent=fault.part,
        )

    def _act(self, engine: Engine, target: Target, wanted: Plan) -> Action:
        try:
            refusal = engine.check(target)
            if not self.apply:
                notes = (f"--apply would be refused: {refusal}",) if refusal else ()
                return Action("dry-run", notes)
            if target.held:
                return Action("held", (target.held,))
            if refusal:
                return Action("refused", (refusal,))
            return engine.act(target, wanted)
        except SilentError as fault:
            return Action("silent", (f"silent {fault.part}: {fault}",))


def _checked(recommended: Recommendation, target: Target) -> Recommendation:
    """Require a finite value above 0 for each quantity; other fields are dropped."""
    plan: dict[str, float] = {}
    for name in target.plan:
        value = recommended.plan.get(name)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or value is None or not math.isfinite(value) or value <= 0:
            raise SilentError(
                "recommender", f"{recommended.source} returned {name} {value!r}; expected a number"
            )
        plan[name] = float(value)
    return replace(recommended, plan=plan)


def invalid_result(application: str, fault: InputError) -> StepResult:
    """The result of a step that wrong input prevented."""
    return StepResult(application, "invalid", str(fault))
