"""Counts of the last hour by interval, and latency histograms, in bounded memory."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from loadmaster.serving.timestamps import iso

INTERVAL_S = 10
INTERVALS = 360  # an hour
RECENT = 6  # intervals that the status covers
MAX_CAUSES = 32  # counted by name; further ones as "other"

BUCKET_WIDTH = math.log(1.04)  # percentiles are right within 2%
MIN_MS, MAX_MS = 1e-3, 1e6


class LatencyHistogram:
    """Counts of latencies in logarithmic buckets."""

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self.counts: dict[int, int] = dict(counts or {})  # by bucket

    def add(self, ms: float) -> None:
        bucket = math.floor(math.log(min(max(ms, MIN_MS), MAX_MS)) / BUCKET_WIDTH)
        self.counts[bucket] = self.counts.get(bucket, 0) + 1

    @staticmethod
    def percentiles(parts: Iterable[LatencyHistogram]) -> tuple[float | None, float | None]:
        """p50 and p99 of the merged histograms; None if they are empty."""
        counts: Counter[int] = Counter()
        for part in parts:
            counts.update(part.counts)
        total = counts.total()
        return (_at_rank(counts, 0.50 * total), _at_rank(counts, 0.99 * total))


def _at_rank(counts: Mapping[int, int], rank: float) -> float | None:
    passed = 0
    for bucket in sorted(counts):
        passed += counts[bucket]
        if passed >= rank:
            return float(f"{math.exp((bucket + 0.5) * BUCKET_WIDTH):.4g}")
    return None


@dataclass
class IntervalCounts:
    """Counts of ten seconds."""

    number: int  # intervals since 1970
    decisions: int = 0
    fallbacks: int = 0
    by_cause: dict[str, int] = field(default_factory=dict)
    rewards: int = 0
    reward_mean: float = 0.0
    drift: int = 0
    shadowed: int = 0  # decisions that a shadow policy made too
    agreed: int = 0
    latencies: LatencyHistogram = field(default_factory=LatencyHistogram)

    def add_reward(self, reward: float) -> None:
        self.rewards += 1
        self.reward_mean += (reward - self.reward_mean) / self.rewards

    def as_json(self) -> dict[str, Any]:
        p50, p99 = LatencyHistogram.percentiles([self.latencies])
        return {
            "time": iso(self.number * INTERVAL_S),
            "decisions": self.decisions,
            "fallbacks": self.fallbacks,
            "by_cause": dict(self.by_cause),
            "p50_ms": p50,
            "p99_ms": p99,
            "reward_mean": self.reward_mean if self.rewards else None,
            "drift": self.drift,
            "shadow_agreement": self.agreed / self.shadowed if self.shadowed else None,
        }

    def record(self) -> dict[str, Any]:
        counts = {str(bucket): count for bucket, count in self.latencies.counts.items()}
        return {**vars(self), "by_cause": dict(self.by_cause), "latencies": counts}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> IntervalCounts:
        kept: dict[str, Any] = {name: int(record[name]) for name in COUNTERS}
        return cls(
            **kept,
            by_cause={str(cause): int(times) for cause, times in record["by_cause"].items()},
            reward_mean=float(record["reward_mean"]),
            latencies=LatencyHistogram({int(k): int(v) for k, v in record["latencies"].items()}),
        )


COUNTERS = ("number", "decisions", "fallbacks", "rewards", "drift", "shadowed", "agreed")


class _Finished(NamedTuple):
    """The encoded forms of an interval that no longer changes."""

    number: int
    as_json: dict[str, Any]
    record: dict[str, Any]


class IntervalHistory:
    """The intervals of the last hour. Empty ones are not stored but shown."""

    def __init__(self, intervals: Iterable[IntervalCounts] = ()) -> None:
        self._kept: deque[IntervalCounts] = deque(maxlen=INTERVALS)  # by number
        # All but the latest interval: encoding a whole hour at once takes too long.
        self._finished: deque[_Finished] = deque(maxlen=INTERVALS - 1)
        for interval in intervals:
            self._begin(interval)

    def at(self, time: float) -> IntervalCounts:
        """Return the interval of `time`; the latest one if the clock was set back."""
        number = int(time // INTERVAL_S)
        if not self._kept or number > self._kept[-1].number:
            self._begin(IntervalCounts(number))
        return self._kept[-1]

    def _begin(self, interval: IntervalCounts) -> None:
        if self._kept:
            last = self._kept[-1]
            self._finished.append(_Finished(last.number, last.as_json(), last.record()))
        self._kept.append(interval)

    def latency_ms(self) -> dict[str, float | None]:
        """Percentiles over the latest intervals with decisions."""
        p50, p99 = LatencyHistogram.percentiles(interval.latencies for interval in self._recent())
        return {"p50": p50, "p99": p99}

    def fallback_rate(self) -> float | None:
        decisions = sum(interval.decisions for interval in self._recent())
        fallbacks = sum(interval.fallbacks for interval in self._recent())
        return fallbacks / decisions if decisions else None

    def as_json(self, now: float) -> dict[str, Any]:
        """All intervals up to `now`, oldest first, without gaps."""
        if not self._kept:
            return {"interval_s": INTERVAL_S, "intervals": []}
        last = max(int(now // INTERVAL_S), self._kept[-1].number)
        first = max(last - INTERVALS + 1, self._kept[0].number)
        stored = {each.number: each.as_json for each in self._finished}
        stored[self._kept[-1].number] = self._kept[-1].as_json()
        intervals = [stored.get(n) or IntervalCounts(n).as_json() for n in range(first, last + 1)]
        return {"interval_s": INTERVAL_S, "intervals": intervals}

    def record(self) -> list[dict[str, Any]]:
        """A copy for JSON that later counts do not change."""
        latest = [self._kept[-1].record()] if self._kept else []
        return [*(each.record for each in self._finished), *latest]

    def _recent(self) -> Iterator[IntervalCounts]:
        return islice((each for each in reversed(self._kept) if each.decisions), RECENT)


def count(counts: dict[str, int], name: str) -> None:
    """Increment `name`, or "other" once there are too many names."""
    name = name if name in counts or len(counts) < MAX_CAUSES else "other"
    counts[name] = counts.get(name, 0) + 1
