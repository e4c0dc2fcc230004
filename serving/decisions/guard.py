"""Guard: keep the quantities of a decision within bounds, steps and totals, and from flapping.

It works on numbers only (`Quantity`), so it is the same for every system. Limits apply in this
order: bounds, step from the current value, total, stabilisation, changes of direction.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, model_validator

from loadmaster.envs.settings import Settings
from loadmaster.serving.system import Quantity

BOUNDS, STEP, TOTAL, STABILISATION, FLAP = "bounds", "step", "total", "stabilisation", "flap"
KINDS = (BOUNDS, STEP, TOTAL, STABILISATION, FLAP)

MAX_QUANTITIES = 10_000  # with a history; the least recently used are dropped first


class GuardSettings(Settings):
    """Limits set by the operator; by default only flapping is limited."""

    minimum: float | None = None  # of each quantity
    maximum: float | None = None
    step: PositiveFloat | None = None  # the most a quantity may change by in one decision
    total: NonNegativeFloat | None = None  # of all quantities that one decision sets
    stabilisation_s: NonNegativeFloat = 0.0  # no fall below what was proposed in this window
    flaps: NonNegativeInt | None = 6  # changes of direction within `flap_window_s`; then it holds
    flap_window_s: PositiveFloat = Field(default=3600.0)

    @model_validator(mode="after")
    def _in_order(self) -> GuardSettings:
        low, high = self.minimum, self.maximum
        if low is not None and high is not None and low > high:
            raise ValueError(f"minimum {low:g} is above maximum {high:g}")
        return self


class GuardResult(NamedTuple):
    """Changes to the quantities of a decision."""

    allowed: dict[str, float]  # only quantities that may not be as proposed
    messages: tuple[str, ...]  # one for each change
    kinds: tuple[str, ...]  # of the same changes


@dataclass
class QuantityHistory:
    """Recent proposals and changes of direction of one quantity."""

    proposed: deque[tuple[float, float]] = field(default_factory=deque)  # time, value: falling
    turns: deque[float] = field(default_factory=deque)  # times of changes of direction
    direction: int = 0


class Guard:
    """Applies the limits and keeps the history they need. Times are of a monotonic clock."""

    def __init__(self, settings: GuardSettings) -> None:
        self.settings = settings
        self._histories: dict[str, QuantityHistory] = {}  # the least recently used first

    def apply(self, quantities: Sequence[Quantity], now_s: float) -> GuardResult:
        """Limit the quantities of a decision. The result counts as carried out."""
        values: dict[str, float] = {}
        messages: list[str] = []
        kinds: list[str] = []

        def change(quantity: Quantity, before: float, after: float, kind: str) -> float:
            if after != before:
                messages.append(f"{kind}: {quantity.name} from {before:g} to {after:g}")
                kinds.append(kind)
            return after

        for one in quantities:
            value = change(one, one.proposed, self._bounded(one.proposed), BOUNDS)
            values[one.name] = change(one, value, self._stepped(one.current, value), STEP)
        for one, value in self._within_total(quantities, values):
            values[one.name] = change(one, values[one.name], value, TOTAL)
        for one in quantities:
            history, value = self._history(one.name), values[one.name]
            value = change(one, value, self._stabilise(history, one, value, now_s), STABILISATION)
            value = change(one, value, self._limit_flapping(history, one, value, now_s), FLAP)
            values[one.name] = value
        allowed = {
            one.name: values[one.name] for one in quantities if values[one.name] != one.proposed
        }
        return GuardResult(allowed, tuple(messages), tuple(kinds))

    def _bounded(self, value: float) -> float:
        low, high = self.settings.minimum, self.settings.maximum
        if low is not None:
            value = max(value, low)
        return value if high is None else min(value, high)

    def _stepped(self, current: float, value: float) -> float:
        step = self.settings.step
        if step is None:
            return value
        return min(max(value, current - step), current + step)

    def _within_total(
        self, quantities: Sequence[Quantity], values: dict[str, float]
    ) -> list[tuple[Quantity, float]]:
        """Reduce rising quantities, the last first: a decision lists the most important first."""
        if self.settings.total is None:
            return []
        excess = sum(values.values()) - self.settings.total
        reduced: list[tuple[Quantity, float]] = []
        for one in reversed(quantities):
            rise = values[one.name] - one.current
            if excess <= 0:
                break
            if rise > 0:
                reduced.append((one, values[one.name] - min(rise, excess)))
                excess -= min(rise, excess)
        return reduced

    def _stabilise(
        self, history: QuantityHistory, one: Quantity, value: float, now_s: float
    ) -> float:
        """Delay a fall: not below the highest value in the window, which never causes a rise.

        Horizontal autoscalers do the same. For a job that runs or does not, it is the least time
        that it runs before it is stopped.
        """
        window = self.settings.stabilisation_s
        if window == 0:
            return value
        while history.proposed and history.proposed[0][0] <= now_s - window:
            history.proposed.popleft()
        highest = history.proposed[0][1] if history.proposed else value
        while history.proposed and history.proposed[-1][1] <= value:  # only falling values matter
            history.proposed.pop()
        history.proposed.append((now_s, value))
        if value >= one.current:
            return value
        return max(value, min(highest, one.current))

    def _limit_flapping(
        self, history: QuantityHistory, one: Quantity, value: float, now_s: float
    ) -> float:
        """Hold a quantity that has changed direction too often in the window."""
        direction = (value > one.current) - (value < one.current)
        if direction == 0:
            return value
        while history.turns and history.turns[0] <= now_s - self.settings.flap_window_s:
            history.turns.popleft()
        turns = history.direction != 0 and direction != history.direction
        if turns and self.settings.flaps is not None and len(history.turns) >= self.settings.flaps:
            return one.current
        if turns:
            history.turns.append(now_s)
        history.direction = direction
        return value

    def _history(self, name: str) -> QuantityHistory:
        """Of the quantity, which becomes the most recently used."""
        history = self._histories.pop(name, None) or QuantityHistory()
        self._histories[name] = history
        if len(self._histories) > MAX_QUANTITIES:
            del self._histories[next(iter(self._histories))]
        return history
