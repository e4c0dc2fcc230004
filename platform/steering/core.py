"""A step of steering an engine's quantities: observe, recommend, limit, act, publish.

Engines that are steered by jobs are in `jobs.py`; both have recommenders, modes and results. Where
a part is silent, the application holds its plan; after some silent steps each quantity rises to
that of the last safe plan, and none falls. A step never raises for a silent part: its result names
it, which the signals make visible.
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
# watch: decisions are shown. shadow: they are also compared with what the engine does by itself,
# whose outcomes are sent as feedback. act: decisions are carried out.
Mode = Literal["watch", "shadow", "act"]
Part = Literal["engine", "metrics", "recommender"]
# acted: changed something; unchanged: nothing to change; held: not acted on purpose; pending: the
# engine has not finished an earlier change; refused: the engine does not allow it; silent: a part
# did not answer; invalid: wrong input.
Result = Literal["acted", "unchanged", "dry-run", "held", "pending", "refused", "silent", "invalid"]
DEGRADED: frozenset[Result] = frozenset({"refused", "silent", "invalid"})

MODES: tuple[Mode, ...] = ("watch", "shadow", "act")
HOLD_STEPS = 3  # silent steps before quantities rise to those of the last safe plan


class SilentError(Exception):
    """A part that steering needs does not answer, or not with what is needed."""

    def __init__(self, part: Part, message: str) -> None:
        super().__init__(part, message)
        self.part, self.message = part, message

    def __str__(self) -> str:
        return self.message


class RefusedError(Exception):
    """The engine does not allow an action, or no longer; the message is its reason."""


@dataclass(frozen=True)
class Recommendation:
    """A decision of an endpoint and its reason.

    `id` refers to it in feedback; `source` names what has decided.
    """

    decision: Mapping[str, Any]
    reason: str
    source: str
    id: str | None = None
    notes: tuple[str, ...] = ()


class Recommender(Protocol):
    """Decides about the state document of an application. Raises SilentError where it cannot."""

    name: str

    def recommend(self, application: str, state: Mapping[str, Any]) -> Recommendation: ...

    def feedback(self, application: str, id: str | None, outcome: Mapping[str, Any]) -> None:
        """Report an outcome of the decision `id`; None: of what the engine did by itself."""


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
    commands: tuple[str, ...] = ()  # of an engine that is steered by jobs
    agreement: float | None = None  # with what the engine did by itself since the last step, 0 to 1

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
        shown = ", ".join([*changes, *self.commands]) or "no change"
        text = f"{self.application} {self.result}: {shown}"
        return "; ".join([f"{text}; {self.reason}", *self.messages])


class Engine(Protocol):
    """One application of an engine. Methods raise SilentError, and InputError for wrong input."""

    application: str

    def read(self) -> Target: ...

    def measure(self, target: Target) -> Measurement: ...

    def plan_of(self, decision: Mapping[str, Any]) -> Mapping[str, Any]:
        """The value of each quantity of `Target.plan` in a decision of the endpoint."""

    def act(self, target: Target, plan: Plan) -> Action:
        """Move the application to the plan; called only where it may change.

        A RefusedError counts as an action whose result is `refused`.
        """

    def check(self, target: Target) -> str:
        """The reason for which the engine refuses to act on the application, or nothing."""

    def publish(self, target: Target, result: StepResult) -> None:
        """Write the result and `target.memory` where the engine's users see them."""


class Steerer:
    """Runs the steps of applications. `named` builds the recommender of one that names its own."""

    def __init__(
        self,
        recommender: Recommender,
        mode: Mode = "watch",
        hold_steps: int = HOLD_STEPS,
        named: Callable[[tuple[str, ...]], Recommender] | None = None,
    ) -> None:
        self.recommender, self.mode, self.hold_steps = recommender, mode, hold_steps
        self._named = named
        self._wanted: dict[str, Plan] = {}  # of the last step in shadow mode, by application

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
            found = recommender.recommend(target.application, measurement.state)
            recommended = _checked(engine.plan_of(found.decision), found.source, target)
        except SilentError as fault:
            memory.silent_steps += 1
            return self._without_recommendation(engine, target, fault)
        memory.silent_steps = 0
        return self._carry_out(engine, target, measurement, found, recommended, now_s)

    def _note_outcome(
        self, target: Target, measurement: Measurement, recommender: Recommender
    ) -> None:
        """Keep a safe plan, and report the outcome of the last decision."""
        memory = target.memory
        memory.measured = True
        if measurement.safe:
            memory.safe_plan = dict(target.plan)
        given, memory.decision_id = memory.decision_id, None
        if measurement.outcome is not None and (given is not None or self.mode == "shadow"):
            recommender.feedback(target.application, given, measurement.outcome)

    def _carry_out(
        self,
        engine: Engine,
        target: Target,
        measurement: Measurement,
        found: Recommendation,
        recommended: Plan,
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
            given = recommended[name]
            value = min(max(given, low), high)
            if value < (floor := min(measurement.floors.get(name, 0.0), high)):
                value = floor
            if value != given:
                changes.append(f"bounds: {name} from {given:g} to {value:g}")
            quantities.append(Quantity(name, current, value))
        limited = guard.apply(quantities, now_s)
        wanted = dict(limited.values)
        action = self._act(engine, target, wanted)
        if action.result in ("acted", "unchanged", "pending") and wanted == recommended:
            target.memory.decision_id = found.id  # its outcome is the decision's
        acts = self.mode == "act"
        if action.result not in ("refused", "silent") and not (acts and target.held):
            guard.commit(quantities, limited, now_s)
            target.memory.histories = {
                name: history.record(0.0) for name, history in guard.histories.items()
            }
        agreement = None
        if self.mode == "shadow":
            agreement = _agreement(self._wanted.get(target.application), target.plan)
            self._wanted[target.application] = wanted
        return StepResult(
            target.application,
            action.result,
            found.reason,
            target.plan,
            recommended,
            wanted,
            found.source,
            (*measurement.notes, *found.notes, *changes, *limited.messages, *action.messages),
            "engine" if action.result == "silent" else None,
            agreement=agreement,
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
            messages += self._act(engine, target, wanted).messages
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
            if self.mode != "act":
                notes = (f"the engine would refuse to act: {refusal}",) if refusal else ()
                return Action("dry-run", notes)
            if target.held:
                return Action("held", (target.held,))
            if refusal:
                return Action("refused", (refusal,))
            return engine.act(target, wanted)
        except RefusedError as fault:
            return Action("refused", (str(fault),))
        except SilentError as fault:
            return Action("silent", (f"silent {fault.part}: {fault}",))


def _checked(plan: Mapping[str, Any], source: str, target: Target) -> Plan:
    """Require a finite value above 0 for each quantity; other fields are dropped."""
    checked: dict[str, float] = {}
    for name in target.plan:
        value = plan.get(name)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or value is None or not math.isfinite(value) or value <= 0:
            raise SilentError(
                "recommender", f"{source} returned {name} {value!r}; expected a number"
            )
        checked[name] = float(value)
    return checked


def _agreement(wanted: Plan | None, plan: Plan) -> float | None:
    """How near the engine's plan is to what was wanted of it: the mean ratio of the quantities."""
    if wanted is None or wanted.keys() != plan.keys() or not plan:
        return None
    pairs = [sorted((wanted[name], value)) for name, value in plan.items()]
    return sum(low / high for low, high in pairs) / len(pairs)


def invalid_result(application: str, fault: InputError) -> StepResult:
    """The result of a step that wrong input prevented."""
    return StepResult(application, "invalid", str(fault))
