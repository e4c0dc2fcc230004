"""The guard: what a decision sets is kept within bounds, steps, totals, and from flapping.

It looks at numbers only (`Quantity`), so it is the same for every system. The order is that of an
operator's concern: bounds, then the step from where things are, then the sum of all, then how
often the same thing may go up and down. What it changes it says, in words and by kind.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, model_validator

from loadmaster.envs.settings import Settings
from loadmaster.serving.system import Quantity

BOUNDS, STEP, TOTAL, STABILISATION, FLAP = "bounds", "step", "total", "stabilisation", "flap"
KINDS = (BOUNDS, STEP, TOTAL, STABILISATION, FLAP)

REMEMBERED = 10_000  # quantities; those not heard of for longest are forgotten first


class GuardSettings(Settings):
    """What an operator may forbid; nothing is forbidden by default but endless flapping."""

    minimum: float | None = None  # of each quantity
    maximum: float | None = None
    step: PositiveFloat | None = None  # the most a quantity may change by in one decision
    total: NonNegativeFloat | None = None  # of all quantities that one decision sets
    stabilisation_s: NonNegativeFloat = 0.0  # nothing falls below what was proposed of late
    flaps: NonNegativeInt | None = 6  # changes of direction within `flap_window_s`; then it holds
    flap_window_s: PositiveFloat = Field(default=3600.0)

    @model_validator(mode="after")
    def _in_order(self) -> GuardSettings:
        if None not in (self.minimum, self.maximum) and self.minimum > self.maximum:  # type: ignore[operator]
            raise ValueError(f"minimum {self.minimum:g} is above maximum {self.maximum:g}")
        return self


class GuardResult(NamedTuple):
    """What becomes of the quantities of a decision."""

    allowed: dict[str, float]  # only those that may not be as proposed
    said: tuple[str, ...]  # one line an action
    kinds: tuple[str, ...]  # the same by kind


@dataclass
class _Past:
    """What is remembered of one quantity."""

    proposed: deque[tuple[float, float]] = field(default_factory=deque)  # time, value: falling
    turns: deque[float] = field(default_factory=deque)  # times of changes of direction
    direction: int = 0


class Guard:
    """Remembers what it let through. Times are seconds of any clock that does not jump back."""

    def __init__(self, settings: GuardSettings) -> None:
        self.settings = settings
        self._past: OrderedDict[str, _Past] = OrderedDict()

    def rule(self, quantities: Sequence[Quantity], now_s: float) -> GuardResult:
        """What is allowed of a decision. It counts as carried out: ask once for each."""
        found: dict[str, float] = {}
        said: list[str] = []
        kinds: list[str] = []

        def change(quantity: Quantity, before: float, after: float, kind: str) -> float:
            if after != before:
                said.append(f"{kind}: {quantity.name} from {before:g} to {after:g}")
                kinds.append(kind)
            return after

        for one in quantities:
            value = one.proposed
            value = change(one, value, self._bounded(value), BOUNDS)
            value = change(one, value, self._stepped(one.current, value), STEP)
            found[one.name] = value
        for one, value in self._within_total(quantities, found):
            found[one.name] = change(one, found[one.name], value, TOTAL)
        for one in quantities:
            past = self._remember(one.name)
            value = found[one.name]
            value = change(one, value, self._steadied(past, one, value, now_s), STABILISATION)
            value = change(one, value, self._calmed(past, one, value, now_s), FLAP)
            found[one.name] = value
        allowed = {one.name: found[one.name] for one in quantities}
        changed = {one.name: one.proposed for one in quantities}
        return GuardResult(
            {name: value for name, value in allowed.items() if value != changed[name]},
            tuple(said),
            tuple(kinds),
        )

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
        self, quantities: Sequence[Quantity], found: dict[str, float]
    ) -> list[tuple[Quantity, float]]:
        """Those that rise give way, the last first: a decision names the most important first."""
        if self.settings.total is None:
            return []
        excess = sum(found.values()) - self.settings.total
        given: list[tuple[Quantity, float]] = []
        for one in reversed(quantities):
            rise = found[one.name] - one.current
            if excess <= 0:
                break
            if rise > 0:
                given.append((one, found[one.name] - min(rise, excess)))
                excess -= min(rise, excess)
        return given

    def _steadied(self, past: _Past, one: Quantity, value: float, now_s: float) -> float:
        """Falling waits: not below the highest value of the window, nor is that a reason to rise.

        As a horizontal autoscaler does it; for a job that runs or not, it is the least time that
        it may run before it is stopped.
        """
        window = self.settings.stabilisation_s
        if window == 0:
            return value
        while past.proposed and past.proposed[0][0] <= now_s - window:
            past.proposed.popleft()
        highest = past.proposed[0][1] if past.proposed else value
        while past.proposed and past.proposed[-1][1] <= value:  # only falling values can matter
            past.proposed.pop()
        past.proposed.append((now_s, value))
        if value >= one.current:
            return value
        return max(value, min(highest, one.current))

    def _calmed(self, past: _Past, one: Quantity, value: float, now_s: float) -> float:
        """A quantity that has turned too often of late holds still."""
        direction = (value > one.current) - (value < one.current)
        if direction == 0:
            return value
        while past.turns and past.turns[0] <= now_s - self.settings.flap_window_s:
            past.turns.popleft()
        turns = past.direction != 0 and direction != past.direction
        if turns and self.settings.flaps is not None and len(past.turns) >= self.settings.flaps:
            return one.current
        if turns:
            past.turns.append(now_s)
        past.direction = direction
        return value

    def _remember(self, name: str) -> _Past:
        past = self._past.get(name)
        if past is None:
            past = self._past[name] = _Past()
            if len(self._past) > REMEMBERED:
                self._past.popitem(last=False)
        self._past.move_to_end(name)
        return past
