"""What happened lately, in bounded memory: latencies by size, and intervals for charts."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from loadmaster.serving.timestamps import iso

INTERVAL_S = 10
INTERVALS = 360  # an hour
RECENT = 6  # intervals that "lately" means
MOST_CAUSES = 32  # names that are counted; further ones as "other"

STEP = math.log(1.04)  # a latency is known to 2%
SHORTEST_MS, LONGEST_MS = 1e-3, 1e6


class Latencies:
    """How many decisions took how long."""

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self.counts: dict[int, int] = dict(counts or {})  # by the logarithm

    def add(self, ms: float) -> None:
        ms = min(max(ms, SHORTEST_MS), LONGEST_MS)
        place = math.floor(math.log(ms) / STEP)
        self.counts[place] = self.counts.get(place, 0) + 1

    @staticmethod
    def percentiles(parts: Iterable[Latencies]) -> tuple[float | None, float | None]:
        """p50 and p99 of all of them; None without any."""
        counts: dict[int, int] = {}
        for part in parts:
            for place, count in part.counts.items():
                counts[place] = counts.get(place, 0) + count
        total = sum(counts.values())
        return (_ranked(counts, 0.50 * total), _ranked(counts, 0.99 * total))


def _ranked(counts: Mapping[int, int], rank: float) -> float | None:
    passed = 0
    for place in sorted(counts):
        passed += counts[place]
        if passed >= rank:
            return float(f"{math.exp((place + 0.5) * STEP):.4g}")
    return None


@dataclass
class Interval:
    """Ten seconds."""

    number: int  # since 1970
    decisions: int = 0
    fallbacks: int = 0
    by_cause: dict[str, int] = field(default_factory=dict)
    rewards: int = 0
    reward_mean: float = 0.0
    drift: int = 0
    shadowed: int = 0  # decisions that a policy in shadow was asked about too
    agreed: int = 0
    latencies: Latencies = field(default_factory=Latencies)

    def add_reward(self, reward: float) -> None:
        self.rewards += 1
        self.reward_mean += (reward - self.reward_mean) / self.rewards

    def told(self) -> dict[str, Any]:
        p50, p99 = Latencies.percentiles([self.latencies])
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
        counts = {str(place): count for place, count in self.latencies.counts.items()}
        return {**vars(self), "by_cause": dict(self.by_cause), "latencies": counts}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Interval:
        kept: dict[str, Any] = {name: int(record[name]) for name in COUNTED}
        return cls(
            **kept,
            by_cause={str(cause): int(times) for cause, times in record["by_cause"].items()},
            reward_mean=float(record["reward_mean"]),
            latencies=Latencies({int(k): int(v) for k, v in record["latencies"].items()}),
        )


COUNTED = ("number", "decisions", "fallbacks", "rewards", "drift", "shadowed", "agreed")


class _Finished(NamedTuple):
    """An interval that nothing is counted in any more."""

    number: int
    told: dict[str, Any]
    record: dict[str, Any]


class History:
    """The last hour. Intervals in which nothing happened are not kept, but they are told."""

    def __init__(self, intervals: Iterable[Interval] = ()) -> None:
        self._kept: deque[Interval] = deque(maxlen=INTERVALS)  # by number
        # All but the latest, which alone still changes: to put an hour in words takes a while.
        self._finished: deque[_Finished] = deque(maxlen=INTERVALS - 1)
        for interval in intervals:
            self._begin(interval)

    def at(self, time: float) -> Interval:
        """The interval to count in. A clock that was set back counts in the latest there is."""
        number = int(time // INTERVAL_S)
        if not self._kept or number > self._kept[-1].number:
            self._begin(Interval(number))
        return self._kept[-1]

    def _begin(self, interval: Interval) -> None:
        if self._kept:
            last = self._kept[-1]
            self._finished.append(_Finished(last.number, last.told(), last.record()))
        self._kept.append(interval)

    def latency_ms(self) -> dict[str, float | None]:
        """Over the last intervals in which anything was decided."""
        p50, p99 = Latencies.percentiles(interval.latencies for interval in self._recent())
        return {"p50": p50, "p99": p99}

    def fallback_rate(self) -> float | None:
        decisions = sum(interval.decisions for interval in self._recent())
        fallbacks = sum(interval.fallbacks for interval in self._recent())
        return fallbacks / decisions if decisions else None

    def told(self, now: float) -> dict[str, Any]:
        """The oldest first, without gaps."""
        if not self._kept:
            return {"interval_s": INTERVAL_S, "intervals": []}
        last = max(int(now // INTERVAL_S), self._kept[-1].number)
        first = max(last - INTERVALS + 1, self._kept[0].number)
        told = {each.number: each.told for each in self._finished}
        told[self._kept[-1].number] = self._kept[-1].told()
        intervals = [told.get(n) or Interval(n).told() for n in range(first, last + 1)]
        return {"interval_s": INTERVAL_S, "intervals": intervals}

    def record(self) -> list[dict[str, Any]]:
        """It stays as it is, whatever is counted later."""
        latest = [self._kept[-1].record()] if self._kept else []
        return [*(each.record for each in self._finished), *latest]

    def _recent(self) -> Iterator[Interval]:
        return islice((each for each in reversed(self._kept) if each.decisions), RECENT)


def count(counts: dict[str, int], name: str) -> None:
    """One more of `name`, of which there may be too many."""
    name = name if name in counts or len(counts) < MOST_CAUSES else "other"
    counts[name] = counts.get(name, 0) + 1
