"""Drift detection: an ADWIN window on each stream of rewards and of input features.

ADWIN is that of Bifet and Gavaldà, "Learning from Time-Changing Data with Adaptive Windowing" (SDM
2007): ADWIN2, whose window is an exponential histogram. It is implemented here because the ADWIN of
the library `river` misses changes in streams of small scale. Two things differ from the paper:
- A bucket also keeps its extremes, and the window's range replaces 1 in the paper's bound, so that
  units do not matter.
- Everything before the most significant cut is dropped, where the paper drops the oldest bucket
  until no cut is left. So one change is reported once, and the window's mean is that after it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from loadmaster.envs.errors import InputError
from loadmaster.serving.timestamps import iso

MAX_VALUE = 1e100  # the square of a larger number overflows
BUCKETS = 5  # of one size, as in the paper
LEVELS = 24  # bucket sizes 1 to 2^23: at most 80 million numbers in a window
MIN_SIDE = 5  # numbers on either side of a cut
ROUNDING = 1e-12  # relative to the largest number: smaller differences of means are ignored
MAX_FEATURES = 64
CHECK_EVERY = 4  # numbers: a check costs more than an insertion


class Bucket(NamedTuple):
    """Summary of 2^level successive numbers."""

    mean: float
    squares: float  # sum of squared distances from the mean
    low: float
    high: float


class Cut(NamedTuple):
    """A split of the window whose two means differ significantly."""

    before: float  # mean of the older part
    after: float  # mean of the newer part
    deviation: float  # standard deviation within the parts
    older: int  # count of the older part


class Adwin:
    """A window over a stream of numbers that shrinks when their mean changes."""

    def __init__(self, delta: float = 0.002, every: int = 1, buckets: int = BUCKETS) -> None:
        """Check every `every`-th number; each check has a false positive rate of at most `delta`
        for independent numbers."""
        if not 0 < delta < 1 or every < 1 or buckets < 2:
            raise InputError(
                f"ADWIN with delta {delta:g}, every {every}, buckets {buckets}; expected "
                "0 < delta < 1, every >= 1, buckets >= 2"
            )
        self.delta = delta
        self.every = every
        self.buckets = buckets
        self.width = 0  # numbers in the window
        self.seen = 0
        self.cut: Cut | None = None  # latest
        self._levels: list[list[Bucket]] = [[]]  # [level]: buckets of 2^level, oldest first

    @property
    def mean(self) -> float | None:
        """Mean of the window; None while it is empty."""
        if not self.width:
            return None
        return math.fsum(size / self.width * bucket.mean for size, bucket in self.parts())

    def update(self, value: float) -> bool:
        """Insert a number; return whether the mean has changed, as described by `cut`."""
        if not abs(value) <= MAX_VALUE:  # also NaN
            raise InputError(f"value {value}; expected a finite number")
        self._append(float(value))
        self.seen += 1
        if self.seen % self.every or self.width < 2 * MIN_SIDE:
            return False
        found = self._find_cut()
        if found is None:
            return False
        self.cut = cut = found
        while True:
            kept = self.width - cut.older
            while self.width > kept:
                self._drop_oldest()
            if kept < 2 * MIN_SIDE or (found := self._find_cut()) is None:
                return True
            cut = found

    def parts(self) -> list[tuple[int, Bucket]]:
        """Sizes and buckets of the window, oldest first."""
        levels = self._levels
        return [(1 << n, each) for n in range(len(levels) - 1, -1, -1) for each in levels[n]]

    def _append(self, value: float) -> None:
        levels = self._levels
        levels[0].append(Bucket(value, 0.0, value, value))
        self.width += 1
        level = 0
        while len(levels[level]) > self.buckets:
            older, newer = levels[level][0], levels[level][1]
            del levels[level][:2]
            if level + 1 == len(levels):
                if level + 1 == LEVELS:  # the window is full
                    self.width -= 2 << level
                    return
                levels.append([])
            levels[level + 1].append(_merge(older, newer, 1 << level))
            level += 1

    def _drop_oldest(self) -> None:
        while not self._levels[-1]:
            self._levels.pop()
        self._levels[-1].pop(0)
        self.width -= 1 << (len(self._levels) - 1)

    def _find_cut(self) -> Cut | None:
        """Find the split between buckets whose difference of means exceeds the bound most."""
        parts, width = self.parts(), self.width
        origin = parts[0][1].mean  # sums of differences from it lose fewer digits
        total = squares = 0.0
        low = high = origin
        for size, (mean, within, least, most) in parts:
            distance = mean - origin
            total += size * distance
            squares += within + size * distance * distance
            low = least if least < low else low
            high = most if most > high else high
        if low == high:
            return None
        variance = max(squares - total * total / width, 0.0) / width
        # Section 4 of the paper: delta' = delta / ln n, and with the harmonic m of the two sides
        # eps = sqrt(2/m * variance * ln(2/delta')) + 2/(3m) * ln(2/delta'), here times the range
        log_term = math.log(2 * math.log(width) / self.delta)
        spread, reach = 2 * variance * log_term, 2 / 3 * (high - low) * log_term
        furthest = ROUNDING * max(abs(low), abs(high))
        found = None
        count, sum_ = 0, 0.0
        for size, bucket in parts:
            count += size
            sum_ += size * (bucket.mean - origin)
            rest = width - count
            if count < MIN_SIDE:
                continue
            if rest < MIN_SIDE:
                break
            older, newer = sum_ / count, (total - sum_) / rest
            share = 1 / count + 1 / rest  # 1/m
            beyond = abs(newer - older) - math.sqrt(spread * share) - reach * share
            if beyond > furthest:
                furthest, found = beyond, (older, newer, count)
        if found is None:
            return None
        older, newer, count = found
        between = count * (width - count) / width**2 * (newer - older) ** 2
        deviation = math.sqrt(max(variance - between, 0.0))
        return Cut(origin + older, origin + newer, deviation, count)

    def record(self) -> dict[str, Any]:
        """Return the complete state for JSON."""
        return {
            "delta": self.delta,
            "every": self.every,
            "buckets": self.buckets,
            "seen": self.seen,
            "cut": None if self.cut is None else list(self.cut),
            "levels": [[list(bucket) for bucket in level] for level in self._levels],
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Adwin:
        """Restore from `record()`; raise InputError if it is damaged."""
        try:
            adwin = cls(float(record["delta"]), int(record["every"]), int(record["buckets"]))
            adwin.seen = int(record["seen"])
            adwin.cut = None if record["cut"] is None else Cut(*record["cut"])
            adwin._levels = [
                [Bucket(*map(_finite, bucket)) for bucket in level] for level in record["levels"]
            ]
        except (KeyError, TypeError, ValueError, OverflowError) as fault:
            raise InputError(f"damaged ADWIN record: {fault!r}") from None
        if not 0 < len(adwin._levels) <= LEVELS or any(
            len(level) > adwin.buckets for level in adwin._levels
        ):
            raise InputError("damaged ADWIN record: too many buckets, or none")
        adwin.width = sum(size for size, _ in adwin.parts())
        return adwin


def _merge(older: Bucket, newer: Bucket, size: int) -> Bucket:
    """Merge two buckets of `size` numbers each."""
    distance = newer.mean - older.mean
    return Bucket(
        older.mean + distance / 2,
        older.squares + newer.squares + distance * distance * size / 2,
        min(older.low, newer.low),
        max(older.high, newer.high),
    )


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} in a bucket")
    return number


class Drift(NamedTuple):
    """A detected change."""

    time: float
    what: str  # "rewards" or "inputs"
    name: str  # the actor, or the input feature
    before: float
    after: float
    deviation: float

    @property
    def description(self) -> str:
        change = f"from {self.before:.4g} to {self.after:.4g}"
        if self.what == "inputs":
            return f"input {self.name!r} drifted {change}"
        return f"rewards of the {self.name} {'fell' if self.fell else 'rose'} {change}"

    @property
    def fell(self) -> bool:
        return self.after < self.before

    def exceeds(self, share: float) -> bool:
        """Whether it exceeds a share of max(|mean before|, standard deviation).

        A wide window detects changes that are too small to matter."""
        return abs(self.after - self.before) > share * max(abs(self.before), self.deviation)

    def as_json(self) -> dict[str, Any]:
        return {**self._asdict(), "time": iso(self.time)}


class StreamDetector:
    """Detect drift in a stream of numbers, by means of `block` successive ones.

    ADWIN assumes independent numbers. Successive states are correlated; means of blocks are less so
    and show a lasting change as well.
    """

    __slots__ = ("_adwin", "_block", "_count", "_left", "_total", "drifts", "last", "name", "what")

    def __init__(self, what: str, name: str, delta: float, block: int = 1, early: int = 0) -> None:
        """`early` shortens the first block, so that streams are not all checked at once."""
        self.what, self.name = what, name
        self.drifts = 0
        self.last: float | None = None  # time of the latest drift
        self._adwin = Adwin(delta, CHECK_EVERY)
        self._block = block
        self._left = block - early % block
        self._total, self._count = 0.0, 0  # of the block so far

    @property
    def mean(self) -> float | None:
        """Mean since the stream last changed."""
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
        if not self._adwin.update(mean) or (cut := self._adwin.cut) is None:
            return None
        self.drifts += 1
        self.last = time
        return Drift(time, self.what, self.name, cut.before, cut.after, cut.deviation)

    def reset(self) -> None:
        """Start a new stream; the count of drifts is kept."""
        self._adwin = Adwin(self._adwin.delta, CHECK_EVERY)
        self._left, self._total, self._count = self._block, 0.0, 0

    def status(self) -> dict[str, Any]:
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
        """Restore from `record()` under the present settings."""
        adwin = Adwin.from_record({**record["adwin"], "delta": self._adwin.delta})
        last = record["last"]
        self.drifts, self.last = int(record["drifts"]), None if last is None else float(last)
        self._left = min(int(record["left"]), self._block)
        self._total, self._count = float(record["total"]), int(record["count"])
        self._adwin = adwin


class FeatureDetectors:
    """A StreamDetector for each input feature, by name."""

    def __init__(self, delta: float, block: int) -> None:
        self._delta, self._block = delta, block
        self._detectors: dict[str, StreamDetector] = {}

    def add(self, time: float, features: Mapping[str, float]) -> list[Drift]:
        found = []
        for name, value in features.items():
            if not abs(value) <= MAX_VALUE:
                continue  # NaN, infinite or too large
            detector = self._detectors.get(name) or self._add_detector(name)
            drift = detector.add(time, value) if detector is not None else None
            if drift is not None:
                found.append(drift)
        return found

    def means(self) -> dict[str, float]:
        """Mean of each feature since it last changed."""
        means = ((name, each.mean) for name, each in self._detectors.items())
        return {name: mean for name, mean in means if mean is not None}

    def status(self) -> dict[str, Any]:
        return {n: {**each.status(), "mean": each.mean} for n, each in self._detectors.items()}

    def record(self) -> dict[str, Any]:
        return {name: each.record() for name, each in self._detectors.items()}

    def restore(self, record: Mapping[str, Any]) -> None:
        for name, kept in record.items():
            detector = self._add_detector(name)
            if detector is not None:
                detector.restore(kept)

    def _add_detector(self, name: str) -> StreamDetector | None:
        known = len(self._detectors)
        if known >= MAX_FEATURES:
            return None
        return self._detectors.setdefault(
            name, StreamDetector("inputs", name, self._delta, self._block, early=known)
        )
