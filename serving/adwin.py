"""ADWIN: a window over a stream of numbers that shrinks when their mean has changed.

After Bifet and Gavaldà, "Learning from Time-Changing Data with Adaptive Windowing" (SDM 2007):
their ADWIN2, whose window is an exponential histogram. Their bound is for numbers between 0 and 1;
ours holds for any, since a bucket also knows its extremes, and the window's range stands in the
bound where theirs has 1. So a change of units changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from loadmaster.envs.errors import InputError

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
        cut = self._find_cut()
        if cut is None:
            return False
        self.cut = cut
        while self.width >= 2 * LEAST and self._find_cut() is not None:
            self._drop_oldest()
        return True

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
        return Cut(origin + older, origin + newer, math.sqrt(max(variance - between, 0.0)))

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
            adwin.cut = None if record["cut"] is None else Cut(*map(float, record["cut"]))
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
