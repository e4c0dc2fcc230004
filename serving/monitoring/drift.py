"""Drift detection: an ADWIN window on each stream of rewards and of input features.

ADWIN is that of Bifet and Gavaldà, "Learning from Time-Changing Data with Adaptive Windowing" (SDM
2007): ADWIN2, whose window is an exponential histogram. It is implemented here because the ADWIN of
the library `river` misses changes in streams of small scale. Two things differ from the paper:
- A bucket also keeps its extremes, and the window's range replaces 1 in the paper's bound, so that
  units do not matter.
- Everything before the most significant cut is dropped, where the paper drops the oldest bucket
  until no cut is left. So one change is reported once, and the window's mean is that after it.
"""

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

from pydantic import Field, FiniteFloat

from loadmaster.serving.decisions.request import iso

MAX_VALUE = 1e100  # the square of a larger number overflows
BUCKETS = 5  # of one size, as in the paper
LEVELS = 24  # bucket sizes 1 to 2^23: at most 80 million numbers in a window
MIN_SIDE = 5  # numbers on either side of a cut
ROUNDING = 1e-12  # relative to the largest number: smaller differences of means are ignored
MAX_STREAMS = 64
CHECK_EVERY = 4  # numbers: a check costs more than an insertion


class Bucket(NamedTuple):
    """Summary of 2^level successive numbers."""

    mean: FiniteFloat
    squares: FiniteFloat  # sum of squared distances from the mean
    low: FiniteFloat
    high: FiniteFloat


class Cut(NamedTuple):
    """A split of the window whose two means differ significantly."""

    before: float  # mean of the older part
    after: float  # mean of the newer part
    deviation: float  # standard deviation within the parts
    older: int  # count of the older part


@dataclass
class Adwin:
    """A window over a stream of finite numbers that shrinks when their mean changes.

    Every `every`-th number is followed by a check, with a false positive rate of at most `delta`
    for independent numbers.
    """

    delta: float = 0.002
    every: int = 1
    buckets: int = BUCKETS
    seen: int = 0
    cut: Cut | None = None  # latest
    # [level]: buckets of 2^level, oldest first
    levels: Annotated[list[list[Bucket]], Field(min_length=1, max_length=LEVELS)] = field(
        default_factory=lambda: [[]]
    )

    def __post_init__(self) -> None:
        self.width = sum(size for size, _ in self.parts())  # numbers in the window

    @property
    def mean(self) -> float | None:
        """Mean of the window; None while it is empty."""
        if not self.width:
            return None
        return math.fsum(size / self.width * bucket.mean for size, bucket in self.parts())

    def update(self, value: float) -> bool:
        """Insert a number; return whether the mean has changed, as described by `cut`."""
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
        sizes = range(len(self.levels) - 1, -1, -1)
        return [(1 << level, each) for level in sizes for each in self.levels[level]]

    def _append(self, value: float) -> None:
        levels = self.levels
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
        while not self.levels[-1]:
            self.levels.pop()
        self.levels[-1].pop(0)
        self.width -= 1 << (len(self.levels) - 1)

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


def _merge(older: Bucket, newer: Bucket, size: int) -> Bucket:
    """Merge two buckets of `size` numbers each."""
    distance = newer.mean - older.mean
    return Bucket(
        older.mean + distance / 2,
        older.squares + newer.squares + distance * distance * size / 2,
        min(older.low, newer.low),
        max(older.high, newer.high),
    )


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


@dataclass(slots=True)
class Stream:
    """A stream of numbers, and the drifts in it."""

    left: int  # numbers until the block ends
    adwin: Adwin | None = None  # from the end of the first block on
    total: float = 0.0  # of the block so far
    count: int = 0
    drifts: int = 0
    last: float | None = None  # time of the latest drift

    @property
    def mean(self) -> float | None:
        """Mean since the stream last changed."""
        if self.adwin is not None and self.adwin.width:
            return self.adwin.mean
        return self.total / self.count if self.count else None


class DriftDetectors:
    """Detect drift in streams of numbers, by means of `block` successive ones.

    ADWIN assumes independent numbers. Successive states are correlated; means of blocks are less so
    and show a lasting change as well.
    """

    def __init__(
        self,
        what: str,
        delta: float,
        block: int,
        streams: dict[str, Stream],
        *,
        staggered: bool = False,
    ) -> None:
        """`streams` are continued, and added to by name. `staggered`: shorten the first blocks, so
        that streams are not all checked at once."""
        self._what, self._delta, self._block, self._staggered = what, delta, block, staggered
        self._streams = streams
        for stream in streams.values():
            if stream.adwin is not None:
                stream.adwin.delta = delta
            stream.left = min(stream.left, block)

    def add(self, time: float, name: str, value: float) -> Drift | None:
        """Add a number to a stream; NaN, infinite and too large ones are ignored."""
        stream = self._streams.get(name)
        if not abs(value) <= MAX_VALUE or (stream is None and len(self._streams) == MAX_STREAMS):
            return None
        if stream is None:
            early = len(self._streams) % self._block if self._staggered else 0
            stream = Stream(self._block - early)
            self._streams[name] = stream
        stream.total += value
        stream.count += 1
        stream.left -= 1
        if stream.left > 0:
            return None
        mean = stream.total / stream.count
        stream.left, stream.total, stream.count = self._block, 0.0, 0
        if stream.adwin is None:
            stream.adwin = Adwin(self._delta, CHECK_EVERY)
        if not stream.adwin.update(mean) or (cut := stream.adwin.cut) is None:
            return None
        stream.drifts += 1
        stream.last = time
        return Drift(time, self._what, name, cut.before, cut.after, cut.deviation)

    def reset(self, name: str) -> None:
        """Start a new stream; the count of drifts is kept."""
        if (old := self._streams.get(name)) is not None:
            self._streams[name] = Stream(self._block, drifts=old.drifts, last=old.last)

    def restart(self, name: str, time: float) -> None:
        """Count a drift that was found in another way, and start a new stream after it."""
        self._streams.setdefault(name, Stream(self._block))
        self.reset(name)
        self._streams[name].drifts += 1
        self._streams[name].last = time

    def means(self) -> dict[str, float]:
        """Mean of each stream since it last changed."""
        means = ((name, each.mean) for name, each in self._streams.items())
        return {name: mean for name, mean in means if mean is not None}

    def status(self) -> dict[str, Any]:
        return {
            name: {
                "count": each.drifts,
                "last": None if each.last is None else iso(each.last),
                "mean": each.mean,
            }
            for name, each in self._streams.items()
        }
