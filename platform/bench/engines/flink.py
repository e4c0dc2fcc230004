"""Instances and lag of a real Flink job under a peak: a fixed plan, Flink's rule, and SURE.

Two loads: `daily` rises threefold in two hours, as the steepest of the load that SURE was trained
on; `steep` sixfold in half an hour. Three jobs get the same load at the same time in one cluster:
one keeps the plan for the peak, one is steered by the rule `flink`, one by the shipped SURE policy,
both through the engine Flink. Tasks wait instead of computing, so that the jobs fit on two cores.

A minute of the policies takes 2 s here: `PacedClient` multiplies all times of Flink's answers, and
the clock of the adapter, by PACE. What is left of an answer stays true: rates are differences of
counters, and busy times too, so no metric is a mean over real minutes. A rescale takes as much
longer, which is about the 30 s of the simulator.
"""

from __future__ import annotations

import math
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from os import getloadavg
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import t as student

from loadmaster.platform.bench.engines.flink_cluster import (
    QUICK,
    FlinkCluster,
    Load,
    flink_cluster,
)
from loadmaster.platform.bench.measurements import Figure, write_tables
from loadmaster.platform.steering.core import Recommender, SilentError, Steerer
from loadmaster.platform.steering.flink.client import FlinkClient, Json
from loadmaster.platform.steering.flink.engine import ENDPOINT
from loadmaster.platform.steering.flink.job import FlinkJob
from loadmaster.platform.steering.flink.settings import FlinkSettings
from loadmaster.platform.steering.recommenders import find_recommender

PACE = 30.0  # seconds of the policies in a second
MINUTE_S = 60.0 / PACE
SETTLE_S = 4.0  # real seconds after a start in which counters may be those of before

NOISE = 0.1  # of the load from minute to minute, relative


class Profile(NamedTuple):
    """A load with one peak. Minutes are those of the policies."""

    name: str
    low: float  # records a second
    high: float
    minutes: tuple[int, int, int, int, int]  # low, rising, high, falling, low

    @property
    def measured_min(self) -> int:
        return sum(self.minutes)

    @property
    def total_min(self) -> int:
        return WARM_UP_MIN + self.measured_min


WARM_UP_MIN = 65  # not measured; the rule flink lowers nothing in the first 60
DAILY = Profile("daily", 400.0, 1_200.0, (45, 120, 30, 120, 45))
STEEP = Profile("steep", 200.0, 1_200.0, (45, 30, 60, 30, 105))
PROFILES = (DAILY, STEEP)
PARSE_US, ENRICH_US = 4_000, 2_000  # of a record
FIXED = {"parse": 6, "enrich": 3}  # busy for 80% at 1,200 records a second
MOST = 8  # instances of a task
SAMPLE_S = 0.4

FIXED_PLAN, RULE, POLICY = ARMS = ("fixed", "flink", "sure")
EVERY_MIN = 1  # minutes between decisions, as of `loadmaster steer`
TABLE = "flink.csv"
AT_ONCE = 4  # repeats in one cluster


@dataclass
class Samples:
    """Observations of one job while it is measured."""

    instances: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    lag_s: list[float] = field(default_factory=list)  # age of the last record at the sink
    pending: list[int] = field(default_factory=list)
    starts: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Row:
    """A job in one repeat, in times of the policies.

    The lag is the age of the record that arrived last at the sink, since it was due: with its wait
    at the source and between tasks, restarts and repeated records.
    """

    profile: str
    repeat: int
    arm: str
    mean_instances: float
    instance_hours: float
    mean_slots: float
    mean_lag_s: float
    p99_lag_s: float
    peak_lag_s: float
    mean_pending: float
    peak_pending: int
    rescales: int
    steps: int
    silent_steps: int
    load_average: float


class PacedClient(FlinkClient):
    """A client whose times run PACE times as fast; tasks count as running once they settled."""

    def __init__(self, url: str, origin_s: float) -> None:
        super().__init__(url, None, 20.0)
        self._origin_ms = 1000 * origin_s

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
        return round(self._origin_ms + PACE * (float(moment_ms) - self._origin_ms))

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


def load_rate(profile: Profile, repeat: int) -> Callable[[float], float]:
    """Records a second after so many real seconds, the same for all jobs of a repeat."""
    draw = random.Random(repeat)
    factors = [1 + draw.uniform(-NOISE, NOISE) for _ in range(profile.total_min + 1)]
    low, rising, high, falling, _ = profile.minutes
    begin = WARM_UP_MIN + low

    def rate(seconds: float) -> float:
        minute = seconds / MINUTE_S
        up = min(max((minute - begin) / rising, 0.0), 1.0)
        down = min(max((minute - begin - rising - high) / falling, 0.0), 1.0)
        mean = profile.low + (profile.high - profile.low) * (up - down)
        return mean * factors[min(int(minute), profile.total_min)]

    return rate


class Arm:
    """One job with its load, and the thread's work that steers it."""

    def __init__(
        self,
        cluster: FlinkCluster,
        profile: Profile,
        repeat: int,
        arm: str,
        origin_s: float,
    ) -> None:
        self.profile, self.repeat, self.arm, self._cluster = profile, repeat, arm, cluster
        self.load = Load(cluster.folder / f"load-{repeat}-{arm}", load_rate(profile, repeat))
        self.samples = Samples()
        self.steps = self.silent = 0
        self._origin_s = origin_s
        name = f"{arm}-{repeat}"
        self.job = cluster.start_load_job(self.load, name, PARSE_US, ENRICH_US, FIXED["parse"])
        self._set_fixed()

    def _set_fixed(self) -> None:
        """All begin with the fixed plan."""
        cluster = self._cluster
        found = cluster.call("GET", f"/jobs/{self.job}")
        body = {
            vertex["id"]: {
                "parallelism": {"lowerBound": 1, "upperBound": FIXED.get(vertex["name"], 1)}
            }
            for vertex in found["vertices"]
        }
        cluster.call("PUT", f"/jobs/{self.job}/resource-requirements", body)
        total = sum(one["parallelism"]["upperBound"] for one in body.values())

        def reached() -> bool:
            vertices = cluster.call("GET", f"/jobs/{self.job}")["vertices"]
            return bool(sum(one["parallelism"] for one in vertices) == total)

        cluster.wait(lambda: reached() and cluster.is_running(self.job), f"plan of {self.arm}")

    def steer(self, recommender: Recommender, end_s: float) -> None:
        """Poll each minute, and decide in those of the arm."""
        client = PacedClient(self._cluster.url, self._origin_s)
        settings = FlinkSettings(
            refresh_s=0.4 * PACE, cooldown_s=300, stale_s=900, pending_s=900,
            max_parallelism=MOST, rollback_after_s=300,
        )  # fmt: skip
        engine = FlinkJob(client, self.job, self.job, settings, self._clock, _paced_sleep)
        steerer, due, minute = Steerer(recommender, "act"), time.time(), 0
        while (now := time.time()) < end_s:
            if minute % EVERY_MIN == 0:
                result = steerer.step(engine, self._clock())
                self.steps += 1
                self.silent += result.result == "silent"
            else:
                try:
                    engine.read()
                except SilentError:
                    self.silent += 1
            minute += 1
            due = max(due + MINUTE_S, now)
            time.sleep(max(due - time.time(), 0.0))
        client.close()

    def observe(self, begin_s: float, end_s: float) -> None:
        """Sample instances and lag from `begin_s` on."""
        times, dues = [time.time()], [self.load.counts().due]
        while (now := time.time()) < end_s:
            counts = self.load.counts()
            times.append(now)
            dues.append(counts.due)
            if now >= begin_s:
                self.samples.pending.append(max(counts.due - counts.following, 0))
                due_at = float(np.interp(counts.last + 1, dues, times))
                self.samples.lag_s.append(PACE * (now - due_at))
                self._sample_plan()
            time.sleep(SAMPLE_S)

    def _sample_plan(self) -> None:
        samples = self.samples
        vertices = self._cluster.call("GET", f"/jobs/{self.job}")["vertices"]
        samples.instances.append(sum(one["parallelism"] for one in vertices))
        samples.slots.append(max(one["parallelism"] for one in vertices))
        samples.starts.add(max(int(one["start-time"]) for one in vertices))

    def row(self) -> Row:
        samples = self.samples
        mean = float(np.mean(samples.instances))
        return Row(
            profile=self.profile.name,
            repeat=self.repeat,
            arm=self.arm,
            mean_instances=mean,
            instance_hours=mean * self.profile.measured_min / 60,
            mean_slots=float(np.mean(samples.slots)),
            mean_lag_s=float(np.mean(samples.lag_s)),
            p99_lag_s=float(np.percentile(samples.lag_s, 99)),
            peak_lag_s=max(samples.lag_s),
            mean_pending=float(np.mean(samples.pending)),
            peak_pending=max(samples.pending),
            rescales=len(samples.starts) - 1,
            steps=self.steps,
            silent_steps=self.silent,
            load_average=getloadavg()[0],
        )

    def _clock(self) -> float:
        return self._origin_s + PACE * (time.time() - self._origin_s)


def _paced_sleep(seconds: float) -> None:
    time.sleep(seconds / PACE)


def run_repeats(profile: Profile, repeats: Sequence[int]) -> list[Row]:
    """Run all arms of some repeats at once, in a cluster of their own."""
    slots = MOST * len(ARMS) * len(repeats)
    settings = {
        **QUICK,
        "execution.checkpointing.interval": "2 s",
        "metrics.fetcher.update-interval": "300",
        # Else buffers hold half a minute of these small records, which no metric shows.
        "taskmanager.memory.segment-size": "4kb",
        "taskmanager.network.memory.buffer-debloat.enabled": "true",
        "jobmanager.adaptive-scheduler.rescale-trigger.max-delay": "500 ms",
        "taskmanager.memory.process.size": "2500m",
        "taskmanager.memory.network.min": "512m",
        "taskmanager.memory.network.max": "512m",
    }
    recommenders = {
        RULE: find_recommender([RULE], ENDPOINT),
        POLICY: find_recommender([f"bundle:{POLICY}"], ENDPOINT),
    }
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        cluster = stack.enter_context(flink_cluster(Path(name), 2, -(-slots // 2), settings))
        origin_s = time.time()
        arms = [Arm(cluster, profile, one, arm, origin_s) for one in repeats for arm in ARMS]
        for arm in arms:
            stack.enter_context(arm.load)
        begin_s = time.time() + MINUTE_S * WARM_UP_MIN
        end_s = begin_s + MINUTE_S * profile.measured_min
        with ThreadPoolExecutor(2 * len(arms)) as pool:
            work = [pool.submit(arm.observe, begin_s, end_s) for arm in arms]
            work += [
                pool.submit(arm.steer, recommenders[arm.arm], end_s)
                for arm in arms
                if arm.arm in recommenders
            ]
            for one in work:
                one.result()
        return [arm.row() for arm in arms]


def measure(
    report_step: Callable[[str], None],
    repeats: int = 10,
    folder: Path | None = None,
    profiles: Sequence[Profile] = PROFILES,
) -> Iterator[Figure]:
    """Run the arms `repeats` times on each load; every run is a row of `flink.csv` in `folder`.

    Figures are means over the repeats, and half widths of 95% intervals of the paired differences.
    """
    rows: list[Row] = []
    for profile in profiles:
        for first in range(0, repeats, AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, repeats))
            minutes = MINUTE_S * profile.total_min / 60
            shown = f"{numbers[0] + 1} to {numbers[-1] + 1}"
            report_step(f"load {profile.name}, repeats {shown}: {minutes:.0f} minutes")
            rows += run_repeats(profile, numbers)
            if folder is not None:
                write_tables(folder, {TABLE: [asdict(row) for row in rows]})
        yield from figures([row for row in rows if row.profile == profile.name])


COLUMNS = (
    ("instance_hours", "h"), ("mean_slots", "slots"), ("mean_lag_s", "s"), ("p99_lag_s", "s"),
    ("peak_lag_s", "s"), ("rescales", ""),
)  # fmt: skip


def figures(rows: Sequence[Row]) -> Iterator[Figure]:
    """Means of each arm, and SURE's paired differences from the others."""
    begin = f"flink/{rows[0].profile}"
    by_arm = {arm: [row for row in rows if row.arm == arm] for arm in ARMS}
    for column, unit in COLUMNS:
        values = {arm: np.array([getattr(row, column) for row in by_arm[arm]]) for arm in ARMS}
        for arm in ARMS:
            yield Figure(f"{begin}/{arm}/{column}", float(values[arm].mean()), unit)
        for rival in (FIXED_PLAN, RULE):
            differences = values[POLICY] - values[rival]
            name = f"{begin}/sure-{rival}/{column}"
            yield Figure(name, float(differences.mean()), unit, higher_is_better=False)
            yield Figure(f"{name}_half_width", half_width(differences), unit)


def half_width(values: Any) -> float:
    """Of the 95% interval of the mean, by Student's distribution; NaN of one value."""
    if len(values) < 2:
        return math.nan
    scale = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return float(student.ppf(0.975, len(values) - 1)) * scale
