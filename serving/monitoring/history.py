"""Counts of the last hour by interval, and latency histograms, in bounded memory."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from pydantic_core import from_json, to_json, to_jsonable_python

from loadmaster.serving.decisions.request import iso

INTERVAL_S = 10
INTERVALS = 360  # an hour
RECENT = 6  # intervals that the status covers

BUCKET_WIDTH = math.log(1.04)  # percentiles are right within 2%
MIN_MS, MAX_MS = 1e-3, 1e6


@dataclass
class IntervalCounts:
    """Counts of ten seconds."""

    number: int  # intervals since 1970
    decisions: int = 0
    fallbacks: int = 0
    by_cause: Counter[str] = field(default_factory=Counter)
    rewards: int = 0
    reward_mean: float = 0.0
    drift: int = 0
    shadowed: int = 0  # decisions that a shadow policy made too
    agreed: float = 0.0
    latencies: Counter[int] = field(default_factory=Counter)  # by logarithmic bucket

    def add_latency(self, ms: float) -> None:
        bucket = math.floor(math.log(min(max(ms, MIN_MS), MAX_MS)) / BUCKET_WIDTH)
        self.latencies[bucket] += 1

    def add_reward(self, reward: float) -> None:
        self.rewards += 1
        self.reward_mean += (reward - self.reward_mean) / self.rewards

    def as_json(self) -> dict[str, Any]:
        p50, p99 = percentiles([self])
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


def percentiles(intervals: Iterable[IntervalCounts]) -> tuple[float | None, float | None]:
    """p50 and p99 of the latencies in ms; None if there are none."""
    counts: Counter[int] = Counter()
    for interval in intervals:
        counts.update(interval.latencies)
    total = counts.total()
    return _at_rank(counts, 0.50 * total), _at_rank(counts, 0.99 * total)


def _at_rank(counts: Counter[int], rank: float) -> float | None:
    passed = 0
    for bucket in sorted(counts):
        passed += counts[bucket]
        if passed >= rank:
            return float(f"{math.exp((bucket + 0.5) * BUCKET_WIDTH):.4g}")
    return None


class IntervalHistory:
    """The intervals of the last hour. Empty ones are not stored but shown.

    All but the latest no longer change. They are kept as encoded JSON, a tenth of the memory:
    number, for the console, for the record.
    """

    def __init__(self, intervals: Iterable[IntervalCounts] = ()) -> None:
        self._latest: IntervalCounts | None = None
        self._finished: list[tuple[int, bytes, bytes]] = []  # an empty deque takes 600 bytes
        self._with_decisions: list[IntervalCounts] = []  # of the finished, the latest
        for interval in intervals:
            self._begin(interval)

    @property
    def memory_bytes(self) -> int:
        """Estimated."""
        return 700 * len(self._finished) + 1500 * len(self._with_decisions)

    def at(self, time: float) -> IntervalCounts:
        """Return the interval of `time`; the latest one if the clock was set back."""
        number = int(time // INTERVAL_S)
        if self._latest is None or number > self._latest.number:
            return self._begin(IntervalCounts(number))
        return self._latest

    def _begin(self, interval: IntervalCounts) -> IntervalCounts:
        if (last := self._latest) is not None:
            self._finished.append((last.number, to_json(last.as_json()), to_json(last)))
            del self._finished[: 1 - INTERVALS]
            if last.decisions:
                self._with_decisions.append(last)
                del self._with_decisions[:-RECENT]
        self._latest = interval
        return interval

    def latency_ms(self) -> dict[str, float | None]:
        """Percentiles over the latest intervals with decisions."""
        p50, p99 = percentiles(self._recent())
        return {"p50": p50, "p99": p99}

    def fallback_rate(self) -> float | None:
        decisions = sum(interval.decisions for interval in self._recent())
        fallbacks = sum(interval.fallbacks for interval in self._recent())
        return fallbacks / decisions if decisions else None

    def as_json(self, now: float) -> dict[str, Any]:
        """All intervals up to `now`, oldest first, without gaps."""
        if self._latest is None:
            return {"interval_s": INTERVAL_S, "intervals": []}
        last = max(int(now // INTERVAL_S), self._latest.number)
        stored = {number: encoded for number, encoded, _ in self._finished}
        oldest = min(stored, default=self._latest.number)
        first = max(last - INTERVALS + 1, oldest)
        intervals = [
            from_json(stored[n]) if n in stored else IntervalCounts(n).as_json()
            for n in range(first, last + 1)
        ]
        if self._latest.number >= first:
            intervals[self._latest.number - first] = self._latest.as_json()
        return {"interval_s": INTERVAL_S, "intervals": intervals}

    def record(self) -> list[Any]:
        """A copy for JSON that later counts do not change."""
        finished: list[Any] = from_json(b"[%b]" % b",".join(one for *_, one in self._finished))
        return finished if self._latest is None else [*finished, to_jsonable_python(self._latest)]

    def _recent(self) -> Iterator[IntervalCounts]:
        latest = [self._latest] if self._latest is not None and self._latest.decisions else []
        return islice(chain(latest, reversed(self._with_decisions)), RECENT)
