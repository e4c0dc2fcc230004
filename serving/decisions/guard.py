"""Guard: keep the quantities of a decision within bounds, steps and totals, and from flapping.

It works on numbers only (`Quantity`), so it is the same for every system. Limits apply in this
order: bounds, step and factor from the current value, backlog, total, stabilisation, changes of
direction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, model_validator

from loadmaster.envs.errors import InputError, unknown_name
from loadmaster.envs.settings import Settings
from loadmaster.serving.system import Quantity

BOUNDS, STEP, FACTOR, BACKLOG, TOTAL = "bounds", "step", "factor", "backlog", "total"
STABILISATION, FLAP = "stabilisation", "flap"
KINDS = (BOUNDS, STEP, FACTOR, BACKLOG, TOTAL, STABILISATION, FLAP)

MAX_QUANTITIES = 10_000  # with a history; the least recently used are dropped first


class Limits(Settings):
    """Limits on quantities of one kind."""

    minimum: float | None = None  # of each quantity
    maximum: float | None = None
    step: PositiveFloat | None = None  # the most a quantity may change by in one decision
    # The most it may be multiplied or divided by in one decision; a change by 1 is always allowed
    factor: float | None = Field(default=None, gt=1)
    total: NonNegativeFloat | None = None  # of all quantities that one decision sets

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        low, high = self.minimum, self.maximum
        if low is not None and high is not None and low > high:
            raise ValueError(f"minimum {low:g} is above maximum {high:g}")
        return self

    @property
    def is_set(self) -> bool:
        ranges = (self.minimum, self.maximum, self.step, self.factor)
        return any(limit is not None for limit in (*ranges, self.total))


class GuardSettings(Limits):
    """Limits set by the operator; by default only flapping, and falls during a long backlog.

    Those of `Limits` are of quantities without a kind. Of the others, only `factor`, which has no
    unit, applies to kinds that are not in `kinds`.
    """

    kinds: dict[str, Limits] = Field(default_factory=dict)  # by kind: {"cpu_m": {"step": 500}}
    # No fall while so much work waits, or while this part of what arrives is added to it
    backlog_s: NonNegativeFloat | None = 300.0
    backlog_growth: NonNegativeFloat | None = None
    stabilisation_s: NonNegativeFloat = 0.0  # no fall below what was proposed in this window
    flaps: NonNegativeInt | None = 6  # changes of direction within `flap_window_s`; then it holds
    flap_window_s: PositiveFloat = Field(default=3600.0)

    def check_kinds(self, known: Sequence[str]) -> None:
        """Raise InputError for limits of a kind that a system does not have."""
        for kind in self.kinds:
            if not known:
                raise InputError(f"guard.kinds {kind!r}: the system's quantities have no kinds")
            if kind not in known:
                raise unknown_name("guard.kinds", kind, known)


class GuardResult(NamedTuple):
    """Changes to the quantities of a decision."""

    allowed: dict[str, float]  # only quantities that may not be as proposed
    messages: tuple[str, ...]  # one for each change
    kinds: tuple[str, ...]  # of the same changes
    proposed: dict[str, float]  # values of all quantities before stabilisation
    values: dict[str, float]  # of all quantities


@dataclass(slots=True)
class QuantityHistory:
    """Recent proposals and changes of direction of one quantity. An empty deque takes 600 bytes."""

    proposed: list[tuple[float, float]] = field(default_factory=list)  # time, value: falling
    turns: list[float] = field(default_factory=list)  # times of changes of direction
    direction: int = 0

    def record(self, clock_offset_s: float) -> list[Any]:
        """For JSON, with times shifted by `clock_offset_s`; may be called by another thread."""
        proposed = [(at + clock_offset_s, value) for at, value in tuple(self.proposed)]
        return [proposed, [at + clock_offset_s for at in tuple(self.turns)], self.direction]


def restore_history(record: Any, clock_offset_s: float, now_s: float) -> QuantityHistory:
    """Restore from `record()`; times in the future, after a clock was set back, become `now_s`.

    A damaged record raises ValueError, TypeError or OverflowError.
    """
    proposed, turns, direction = record
    return QuantityHistory(
        [(min(float(at) - clock_offset_s, now_s), float(value)) for at, value in proposed],
        [min(float(at) - clock_offset_s, now_s) for at in turns],
        int(direction),
    )


class Guard:
    """Applies the limits and keeps the history they need. Times are of a monotonic clock.

    `apply` changes nothing; `commit` records a result that was returned to be carried out.
    """

    def __init__(
        self,
        settings: GuardSettings,
        changed: Callable[[str, QuantityHistory], None] | None = None,
    ) -> None:
        """`changed` is called with every history that `commit` has changed."""
        self.settings, self._changed = settings, changed
        self._limits: dict[str, Limits] = {"": settings, **settings.kinds}
        self._other_limits = Limits(factor=settings.factor)
        self._has_limits = any(limits.is_set for limits in self._limits.values())
        self.histories: dict[str, QuantityHistory] = {}  # the least recently changed first

    def apply(self, quantities: Sequence[Quantity], now_s: float) -> GuardResult:
        """Limit the quantities of a decision."""
        values = {one.name: one.proposed for one in quantities}
        messages: list[str] = []
        kinds: list[str] = []

        def change(name: str, before: float, after: float, kind: str) -> float:
            if after != before:
                messages.append(f"{kind}: {name} from {before:g} to {after:g}")
                kinds.append(kind)
            return after

        if self._has_limits or any(one.backlog_s > 0 for one in quantities):
            for one in quantities:
                limits = self._limits.get(one.kind, self._other_limits)
                value = change(one.name, one.proposed, _bounded(limits, one.proposed), BOUNDS)
                value = change(one.name, value, _stepped(limits, one.current, value), STEP)
                value = change(one.name, value, _multiplied(limits, one.current, value), FACTOR)
                values[one.name] = change(one.name, value, self._caught_up(one, value), BACKLOG)
            for one, value in self._within_totals(quantities, values):
                values[one.name] = change(one.name, values[one.name], value, TOTAL)
        proposed = values
        for one in quantities:
            if (history := self.histories.get(one.name)) is None:
                continue
            value = values[one.name]
            stable = self._stabilised(history, one, value, now_s)
            kept = self._held(history, one, stable, now_s)
            if kept != value:
                change(one.name, value, stable, STABILISATION)
                change(one.name, stable, kept, FLAP)
                values = dict(values) if values is proposed else values
                values[one.name] = kept
        allowed = (
            {one.name: values[one.name] for one in quantities if values[one.name] != one.proposed}
            if kinds
            else {}
        )
        return GuardResult(allowed, tuple(messages), tuple(kinds), proposed, values)

    def commit(self, quantities: Sequence[Quantity], result: GuardResult, now_s: float) -> None:
        """Record the result of `apply` at the same time: it counts as carried out."""
        window = self.settings.stabilisation_s
        for one in quantities:
            value = result.values[one.name]
            direction = (value > one.current) - (value < one.current)
            history = self.histories.get(one.name)
            turned = direction != 0 and (history is None or direction != history.direction)
            if not turned and window == 0:
                continue
            if history is None:
                history = QuantityHistory()
            if window > 0:
                proposed, value = history.proposed, result.proposed[one.name]
                while proposed and proposed[0][0] <= now_s - window:
                    del proposed[0]
                while proposed and proposed[-1][1] <= value:  # only falling values matter
                    proposed.pop()
                proposed.append((now_s, value))
            if turned:
                turns = history.turns
                while turns and turns[0] <= now_s - self.settings.flap_window_s:
                    del turns[0]
                if history.direction != 0:
                    turns.append(now_s)
                history.direction = direction
            self._store(one.name, history)

    def _caught_up(self, one: Quantity, value: float) -> float:
        """Prevent a fall while work waits: what was added to catch up is still needed."""
        limit, growth = self.settings.backlog_s, self.settings.backlog_growth
        waits = limit is not None and one.backlog_s > limit
        grows = growth is not None and one.backlog_growth > growth
        return max(value, one.current) if waits or grows else value

    def _within_totals(
        self, quantities: Sequence[Quantity], values: dict[str, float]
    ) -> Iterator[tuple[Quantity, float]]:
        """Reduce rising quantities of a kind, the last first: the most important come first."""
        for kind, limits in self._limits.items():
            if limits.total is None:
                continue
            some = [one for one in quantities if one.kind == kind]
            excess = sum(values[one.name] for one in some) - limits.total
            for one in reversed(some):
                rise = values[one.name] - one.current
                if excess <= 0:
                    break
                if rise > 0:
                    yield one, values[one.name] - min(rise, excess)
                    excess -= min(rise, excess)

    def _stabilised(
        self, history: QuantityHistory, one: Quantity, value: float, now_s: float
    ) -> float:
        """Delay a fall: not below the highest value in the window, which never causes a rise.

        Horizontal autoscalers do the same. For a job that runs or does not, it is the least time
        that it runs before it is stopped.
        """
        if value >= one.current:
            return value
        oldest = now_s - self.settings.stabilisation_s
        # Values fall, so the first one in the window is the highest.
        highest = next((past for at, past in history.proposed if at > oldest), value)
        return max(value, min(highest, one.current))

    def _held(self, history: QuantityHistory, one: Quantity, value: float, now_s: float) -> float:
        """Hold a quantity that has changed direction too often in the window."""
        direction = (value > one.current) - (value < one.current)
        flaps = self.settings.flaps
        if flaps is None or direction in (0, history.direction) or history.direction == 0:
            return value
        oldest = now_s - self.settings.flap_window_s
        recent = sum(at > oldest for at in history.turns)
        return one.current if recent >= flaps else value

    def _store(self, name: str, history: QuantityHistory) -> None:
        """The quantity becomes the most recently changed."""
        self.histories.pop(name, None)
        self.histories[name] = history
        if len(self.histories) > MAX_QUANTITIES:
            del self.histories[next(iter(self.histories))]
        if self._changed is not None:
            self._changed(name, history)


def _bounded(limits: Limits, value: float) -> float:
    low, high = limits.minimum, limits.maximum
    if low is not None:
        value = max(value, low)
    return value if high is None else min(value, high)


def _stepped(limits: Limits, current: float, value: float) -> float:
    step = limits.step
    if step is None:
        return value
    return min(max(value, current - step), current + step)


def _multiplied(limits: Limits, current: float, value: float) -> float:
    """Limit the ratio to the current value; 1 more or less is always allowed."""
    factor = limits.factor
    if factor is None:
        return value
    low, high = min(current / factor, current - 1), max(current * factor, current + 1)
    return min(max(value, low), high)
