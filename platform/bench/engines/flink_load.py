"""Loads and jobs of the Flink bench, and its paced times: a minute of the policies takes 2 or 6 s.

`PacedClient` multiplies all times of Flink's answers by the pace. What is left of an answer stays
true: rates are differences of counters, and busy times too, so no metric is a mean over real
minutes. A rescale takes as much longer, at a pace of 30 about the 30 s of the simulator.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from loadmaster.platform.steering.flink.client import FlinkClient, Json

PACE, SLOW_PACE = 30.0, 10.0  # seconds of the policies in a second
SETTLE_S = 4.0  # real seconds after a start in which counters may be those of before

NOISE = 0.1  # of the load from minute to minute, relative
WARM_UP_MIN = 65  # not measured; the rule flink lowers nothing in the first 60

Plan = Mapping[str, int]  # instances of parse and enrich
FIXED_PLAN, MEAN_PLAN, RULE, POLICY, FLOOR = ARMS = (
    "fixed", "fixed-mean", "flink", "sure", "sure-floor",
)  # fmt: skip


class Profile(NamedTuple):
    """A load with one peak. Minutes are those of the policies."""

    name: str
    low: float  # records a second
    high: float
    minutes: tuple[int, int, int, int, int]  # low, rising, high, falling, low
    mean_plan: Plan  # a fixed one, of about the instance-hours that SURE took
    pace: float = PACE
    arms: tuple[str, ...] = ARMS

    @property
    def minute_s(self) -> float:
        """Real seconds of a minute of the policies."""
        return 60.0 / self.pace

    @property
    def measured_min(self) -> int:
        return sum(self.minutes)

    @property
    def total_min(self) -> int:
        return WARM_UP_MIN + self.measured_min


DAILY = Profile("daily", 400.0, 1_200.0, (45, 120, 30, 120, 45), {"parse": 4, "enrich": 3})
STEEP = Profile("steep", 200.0, 1_200.0, (45, 30, 60, 30, 105), {"parse": 4, "enrich": 2})
SLOW = STEEP._replace(name="steep-slow", pace=SLOW_PACE, arms=(FIXED_PLAN, RULE, FLOOR))
PROFILES = (DAILY, STEEP, SLOW)


def load_rate(profile: Profile, repeat: int) -> Callable[[float], float]:
    """Records a second after so many real seconds, the same for all jobs of a repeat."""
    draw = random.Random(repeat)
    factors = [1 + draw.uniform(-NOISE, NOISE) for _ in range(profile.total_min + 1)]
    low, rising, high, falling, _ = profile.minutes
    begin = WARM_UP_MIN + low

    def rate(seconds: float) -> float:
        minute = seconds / profile.minute_s
        up = min(max((minute - begin) / rising, 0.0), 1.0)
        down = min(max((minute - begin - rising - high) / falling, 0.0), 1.0)
        mean = profile.low + (profile.high - profile.low) * (up - down)
        return mean * factors[min(int(minute), profile.total_min)]

    return rate


class PacedClient(FlinkClient):
    """A client whose times run `pace` times as fast; tasks count as running once they settled."""

    def __init__(self, url: str, origin_s: float, pace: float) -> None:
        super().__init__(url, None, 20.0)
        self._origin_ms, self._pace = 1000 * origin_s, pace

    def job(self, job: str) -> Json:
        found = dict(super().job(job))
        started = max(int(vertex["start-time"]) for vertex in found["vertices"])
        settled = int(found["now"]) - started >= 1000 * SETTLE_S
        found["now"] = self._paced(found["now"])
        found["vertices"] = [
            {
                **vertex,
                "start-time": self._paced(vertex["start-time"]),
                "tasks": vertex["tasks"] if settled else {},
                "metrics": _paced_times(vertex.get("metrics") or {}, self._pace),
            }
            for vertex in found["vertices"]
        ]
        return found

    def rescales(self, job: str) -> Json | None:
        found: Json | None = self._all_paced(super().rescales(job))
        return found

    def rescale(self, job: str, rescale: str) -> Json | None:
        found: Json | None = self._all_paced(super().rescale(job, rescale))
        return found

    def _paced(self, moment_ms: Any) -> int:
        return round(self._origin_ms + self._pace * (float(moment_ms) - self._origin_ms))

    def _all_paced(self, found: Any) -> Any:
        if isinstance(found, Mapping):
            return {
                name: self._paced(value)
                if name.endswith("TimestampInMillis") and value
                else self._all_paced(value)
                for name, value in found.items()
            }
        if isinstance(found, list):
            return [self._all_paced(one) for one in found]
        return found


def _paced_times(metrics: Json, pace: float) -> Json:
    """With the counted busy, idle and back-pressured time in times of the policies.

    Flink reports NaN as text.
    """
    return {
        name: pace * value
        if name.startswith("accumulated-") and isinstance(value, (int, float))
        else value
        for name, value in metrics.items()
    }
