"""Whether rewards and inputs are still what they were: an ADWIN window on each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from loadmaster.envs.errors import InputError
from loadmaster.serving.timestamps import iso

# ADWIN: a window over a stream of numbers that shrinks when their mean has changed.
#
# After Bifet and Gavaldà, "Learning from Time-Changing Data with Adaptive Windowing" (SDM 2007):
# their ADWIN2, whose window is an exponential histogram. Two things are ours. Their bound is for
# numbers between 0 and 1; since a bucket also knows its extremes, the window's range stands in our
# bound where theirs has 1, and a change of units changes nothing. And where they drop the oldest
# bucket until no cut is left, we drop all that lies before the plainest cut, so that one change is
# told once and the window's mean is that of what came after.


LARGEST = 1e100  # of a number: squares of larger ones would not fit
BUCKETS = 5  # of one size, as in the paper
LEVELS = 24  # sizes of buckets, 1 to 2^23: a window of 80 million numbers, and no memory beyond
LEAST = 5  # numbers on either side of a cut
ROUNDING = 1e-12  # of the largest number: means that differ by less are the same


class Bucket(NamedTuple):
    """What is kept of some successive numbers, 2^level of them."""

    mean: float
    squares: float  # sum of squared distances from the mean
    low: float
    high: float


class Cut(NamedTuple):
    """Where the window fell apart."""

    before: float  # mean of the older part
    after: float  # mean of the newer one
    deviation: float  # standard deviation within the parts
    older: int  # numbers in the older part


class Adwin:
    """`update` takes a number and says whether the mean has changed; the window then forgets."""

    def __init__(self, delta: float = 0.002, every: int = 1, buckets: int = BUCKETS) -> None:
        """A change is looked for at every `every`-th number; each look is wrong with probability
        `delta` at most, as far as the numbers do not depend on each other."""
        if not 0 < delta < 1 or every < 1 or buckets < 2:
            raise InputError(
                f"ADWIN with delta {delta:g}, every {every}, buckets {buckets}; expected delta "
                "between 0 and 1, every from 1, buckets from 2"
            )
        self.delta = delta
        self.every = every
        self.buckets = buckets
        self.width = 0  # numbers in the window
        self.seen = 0
        self.cut: Cut | None = None  # the last one
        self._levels: list[list[Bucket]] = [[]]  # [level]: buckets of 2^level, the oldest first

    @property
    def mean(self) -> float | None:
        """Of the window; None while it is empty."""
        if not self.width:
            return None
        return math.fsum(size / self.width * bucket.mean for size, bucket in self.parts())

    def update(self, value: float) -> bool:
        """Take the next number; whether the mean has changed, then `cut` tells how."""
        if not abs(value) <= LARGEST:  # nan too
            raise InputError(f"{value} cannot be watched; expected a finite number")
        self._append(float(value))
        self.seen += 1
        if self.seen % self.every or self.width < 2 * LEAST:
            return False
        found = self._find_cut()
        if found is None:
            return False
        self.cut = cut = found
        while True:
            kept = self.width - cut.older
            while self.width > kept:
                self._drop_oldest()
            if kept < 2 * LEAST or (found := self._find_cut()) is None:
                return True
            cut = found

    def parts(self) -> list[tuple[int, Bucket]]:
        """The window from old to new: how many numbers, and their bucket."""
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
                if level + 1 == LEVELS:  # as wide as it gets
                    self.width -= 2 << level
                    return
                levels.append([])
            levels[level + 1].append(_merged(older, newer, 1 << level))
            level += 1

    def _drop_oldest(self) -> None:
        while not self._levels[-1]:
            self._levels.pop()
        self._levels[-1].pop(0)
        self.width -= 1 << (len(self._levels) - 1)

    def _find_cut(self) -> Cut | None:
        """The split between buckets whose means lie furthest beyond what chance explains."""
        parts, width = self.parts(), self.width
        origin = parts[0][1].mean  # sums of distances from it lose fewer digits than plain ones
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
        doubt = math.log(2 * math.log(width) / self.delta)
        spread, reach = 2 * variance * doubt, 2 / 3 * (high - low) * doubt
        furthest = ROUNDING * max(abs(low), abs(high))
        found = None
        count, sum_ = 0, 0.0
        for size, bucket in parts:
            count += size
            sum_ += size * (bucket.mean - origin)
            rest = width - count
            if count < LEAST:
                continue
            if rest < LEAST:
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
        """Everything, as JSON can hold it."""
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
        """The same as it was; an InputError if the record is none."""
        try:
            adwin = cls(float(record["delta"]), int(record["every"]), int(record["buckets"]))
            adwin.seen = int(record["seen"])
            adwin.cut = None if record["cut"] is None else Cut(*record["cut"])
            adwin._levels = [
                [Bucket(*map(_finite, bucket)) for bucket in level] for level in record["levels"]
            ]
        except (KeyError, TypeError, ValueError, OverflowError) as fault:
            raise InputError(f"the record of an ADWIN window is damaged: {fault!r}") from None
        if not 0 < len(adwin._levels) <= LEVELS or any(
            len(level) > adwin.buckets for level in adwin._levels
        ):
            raise InputError("the record of an ADWIN window is damaged: too many buckets, or none")
        adwin.width = sum(size for size, _ in adwin.parts())
        return adwin


def _merged(older: Bucket, newer: Bucket, size: int) -> Bucket:
    """Two buckets of `size` numbers each as one."""
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


class StreamDetector:
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
        if not self._adwin.update(mean) or (cut := self._adwin.cut) is None:
            return None
        self.drifts += 1
        self.last = time
        return Drift(time, self.what, self.name, cut.before, cut.after, cut.deviation)

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


class FeatureDetectors:
    """The figures of the states that come in, by name."""

    def __init__(self, delta: float, block: int) -> None:
        self._delta, self._block = delta, block
        self._watches: dict[str, StreamDetector] = {}

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

    def _watch(self, name: str) -> StreamDetector | None:
        known = len(self._watches)
        if known >= MOST_INPUTS:
            return None
        return self._watches.setdefault(
            name, StreamDetector("inputs", name, self._delta, self._block, early=known)
        )
