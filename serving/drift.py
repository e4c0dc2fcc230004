"""Whether rewards and inputs are still what they were: an ADWIN window on each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from loadmaster.serving.adwin import LARGEST, Adwin
from loadmaster.serving.times import iso

MOST_INPUTS = 64  # figures of a state that are watched
LOOK_EVERY = 4  # numbers: a look costs more than taking one in


class Drift(NamedTuple):
    """A change that was noticed."""

    time: float
    what: str  # "rewards" or "inputs"
    name: str  # who earned them, or which input
    before: float
    after: float
    deviation: float

    @property
    def words(self) -> str:
        change = f"from {self.before:.4g} to {self.after:.4g}"
        if self.what == "inputs":
            return f"input {self.name!r} drifted {change}"
        return f"rewards of the {self.name} {'fell' if self.fell else 'rose'} {change}"

    @property
    def fell(self) -> bool:
        return self.after < self.before

    def exceeds(self, share: float) -> bool:
        """Whether it is more than a share of what was there before: of the mean's size, or of the
        deviation where that is larger. A wide window notices changes that matter to nobody."""
        return abs(self.after - self.before) > share * max(abs(self.before), self.deviation)

    def told(self) -> dict[str, Any]:
        return {**self._asdict(), "time": iso(self.time)}


class Watch:
    """One stream of numbers, seen as means of `block` successive ones.

    ADWIN supposes that numbers do not depend on each other. Successive states do; means of a few
    of them depend less, and say as much about a lasting change.
    """

    __slots__ = ("_adwin", "_block", "_count", "_left", "_total", "drifts", "last", "name", "what")

    def __init__(self, what: str, name: str, delta: float, block: int = 1, early: int = 0) -> None:
        """`early` shortens the first block, so that several streams are not looked at at once."""
        self.what, self.name = what, name
        self.drifts = 0
        self.last: float | None = None  # when it drifted
        self._adwin = Adwin(delta, LOOK_EVERY)
        self._block = block
        self._left = block - early % block
        self._total, self._count = 0.0, 0  # of the block so far

    @property
    def mean(self) -> float | None:
        """Lately: of the window, which is cut where the stream changed."""
        if self._adwin.width:
            return self._adwin.mean
        return self._total / self._count if self._count else None

    def add(self, time: float, value: float) -> Drift | None:
        self._total += value
        self._count += 1
        self._left -= 1
        if self._left > 0:
            return None
        mean = self._total / self._count
        self._left, self._total, self._count = self._block, 0.0, 0
        if not self._adwin.update(mean) or self._adwin.cut is None:
            return None
        self.drifts += 1
        self.last = time
        return Drift(time, self.what, self.name, *self._adwin.cut)

    def forget(self) -> None:
        """What comes now is another stream; how often the old one drifted is still told."""
        self._adwin = Adwin(self._adwin.delta, LOOK_EVERY)
        self._left, self._total, self._count = self._block, 0.0, 0

    def told(self) -> dict[str, Any]:
        return {"count": self.drifts, "last": None if self.last is None else iso(self.last)}

    def record(self) -> dict[str, Any]:
        return {
            "drifts": self.drifts,
            "last": self.last,
            "left": self._left,
            "total": self._total,
            "count": self._count,
            "adwin": self._adwin.record(),
        }

    def restore(self, record: Mapping[str, Any]) -> None:
        """As it was; the settings are today's."""
        adwin = Adwin.from_record({**record["adwin"], "delta": self._adwin.delta})
        last = record["last"]
        self.drifts, self.last = int(record["drifts"]), None if last is None else float(last)
        self._left = min(int(record["left"]), self._block)
        self._total, self._count = float(record["total"]), int(record["count"])
        self._adwin = adwin


class Inputs:
    """The figures of the states that come in, by name."""

    def __init__(self, delta: float, block: int) -> None:
        self._delta, self._block = delta, block
        self._watches: dict[str, Watch] = {}

    def add(self, time: float, features: Mapping[str, float]) -> list[Drift]:
        found = []
        for name, value in features.items():
            if not abs(value) <= LARGEST:
                continue  # no figure: nan, or beyond what can be squared
            watch = self._watches.get(name) or self._watch(name)
            drift = watch.add(time, value) if watch is not None else None
            if drift is not None:
                found.append(drift)
        return found

    def means(self) -> dict[str, float]:
        """What the inputs are like lately, by name."""
        means = ((name, watch.mean) for name, watch in self._watches.items())
        return {name: mean for name, mean in means if mean is not None}

    def told(self) -> dict[str, Any]:
        return {name: {**watch.told(), "mean": watch.mean} for name, watch in self._watches.items()}

    def record(self) -> dict[str, Any]:
        return {name: watch.record() for name, watch in self._watches.items()}

    def restore(self, record: Mapping[str, Any]) -> None:
        for name, kept in record.items():
            watch = self._watch(name)
            if watch is not None:
                watch.restore(kept)

    def _watch(self, name: str) -> Watch | None:
        known = len(self._watches)
        if known >= MOST_INPUTS:
            return None
        return self._watches.setdefault(
            name, Watch("inputs", name, self._delta, self._block, early=known)
        )
