"""Instances and lag of a real Flink job under a peak: fixed plans, Flink's rule, and SURE.

Two loads: `daily` rises threefold in two hours, as the steepest of the load that SURE was trained
on; `steep` sixfold in half an hour. `steep-slow` is the same at a third of the pace, for which a
rescale costs a third. Jobs get the same load at the same time in one cluster: one keeps the plan
for the peak, one a plan of as many instance-hours as SURE takes, one is steered by the rule
`flink`, two by the shipped SURE policy, alone and with the load floor of the engine Flink
(`load_floor`). Tasks wait instead of computing, so that the jobs fit on two cores. `flink_load.py`
has the loads and the pace, `flink_lag.py` the parts of the lag.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from os import getloadavg
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from loadmaster.platform.bench.engines.flink_cluster import (
    QUICK,
    RESCALE_DELAY,
    FlinkCluster,
    Load,
    flink_cluster,
)
from loadmaster.platform.bench.engines.flink_lag import LagRow, Timeline, lag_row, minute_rows
from loadmaster.platform.bench.engines.flink_load import (
    FIXED_PLAN,
    FLOOR,
    MEAN_PLAN,
    POLICY,
    PROFILES,
    RULE,
    WARM_UP_MIN,
    PacedClient,
    Plan,
    Profile,
    load_rate,
)
from loadmaster.platform.bench.measurements import Figure, write_tables
from loadmaster.platform.steering.core import Steerer
from loadmaster.platform.steering.flink.engine import ENDPOINT
from loadmaster.platform.steering.flink.job import FlinkJob
from loadmaster.platform.steering.flink.settings import FlinkSettings
from loadmaster.platform.steering.recommenders import find_recommender

PARSE_US, ENRICH_US = 4_000, 2_000  # of a record
SECONDS = {"parse": PARSE_US / 1e6, "enrich": ENRICH_US / 1e6}
FIXED = {"parse": 6, "enrich": 3}  # busy for 80% at 1,200 records a second
MOST = 8  # instances of a task
SAMPLE_S = 0.4

LOAD_FLOOR = 0.9  # busy share, of the arm `sure-floor`
RECOMMENDED = {RULE: RULE, POLICY: "bundle:sure", FLOOR: "bundle:sure"}
TABLE, LAG_TABLE, MINUTES_TABLE = "flink.csv", "flink_lag.csv", "flink_minutes.csv"
AT_ONCE = 12  # jobs in one cluster, at most


@dataclass
class Samples:
    """Observations of one job while it is measured."""

    pending: list[int] = field(default_factory=list)
    starts: set[int] = field(default_factory=set)
    timeline: Timeline = field(default_factory=Timeline)  # from before it is measured


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
        self.begin_s = math.inf  # from then on it is measured
        self.steps = self.silent = 0
        self._origin_s = origin_s
        name = f"{arm}-{repeat}"
        self.job = cluster.start_load_job(self.load, name, PARSE_US, ENRICH_US, FIXED["parse"])
        self._set_plan(profile.mean_plan if arm == MEAN_PLAN else FIXED)

    def _set_plan(self, plan: Plan) -> None:
        """All but `fixed-mean` begin with the plan for the peak."""
        cluster = self._cluster
        found = cluster.call("GET", f"/jobs/{self.job}")
        body = {
            vertex["id"]: {
                "parallelism": {"lowerBound": 1, "upperBound": plan.get(vertex["name"], 1)}
            }
            for vertex in found["vertices"]
        }
        cluster.call("PUT", f"/jobs/{self.job}/resource-requirements", body)
        total = sum(one["parallelism"]["upperBound"] for one in body.values())

        def reached() -> bool:
            vertices = cluster.call("GET", f"/jobs/{self.job}")["vertices"]
            return bool(sum(one["parallelism"] for one in vertices) == total)

        cluster.wait(lambda: reached() and cluster.is_running(self.job), f"plan of {self.arm}")

    def steer(self, end_s: float) -> None:
        """Poll and decide each minute."""
        # One of its own: a policy is not for two threads.
        recommender = find_recommender([RECOMMENDED[self.arm]], ENDPOINT)
        pace, minute_s = self.profile.pace, self.profile.minute_s
        client = PacedClient(self._cluster.url, self._origin_s, pace)
        settings = FlinkSettings(
            refresh_s=0.4 * pace, cooldown_s=300, stale_s=900, pending_s=900,
            max_parallelism=MOST, rollback_after_s=300,
            load_floor=LOAD_FLOOR if self.arm == FLOOR else None,
        )  # fmt: skip
        engine = FlinkJob(client, self.job, self.job, settings, self._clock, self._sleep)
        steerer, due = Steerer(recommender, "act"), time.time()
        while (now := time.time()) < end_s:
            result = steerer.step(engine, self._clock())
            self.steps += 1
            self.silent += result.result == "silent"
            if result.recommended:
                wanted = {task: int(value) for task, value in result.wanted.items()}
                self.samples.timeline.steps.append((time.time(), wanted))
            due = max(due + minute_s, now)
            time.sleep(max(due - time.time(), 0.0))
        client.close()

    def observe(self, end_s: float) -> None:
        """Sample plan and lag."""
        timeline = self.samples.timeline
        while (now := time.time()) < end_s:
            counts = self.load.counts()
            try:
                found = self._cluster.call("GET", f"/jobs/{self.job}")["vertices"]
            except OSError:  # a busy JobManager; the next sample has its lag
                time.sleep(SAMPLE_S)
                continue
            timeline.times.append(now)
            timeline.due.append(counts.due)
            due_at = float(np.interp(counts.last + 1, timeline.due, timeline.times))
            timeline.lag_s.append(self.profile.pace * (now - due_at))
            timeline.plans.append({one["name"]: int(one["parallelism"]) for one in found})
            if now >= self.begin_s:
                self.samples.pending.append(max(counts.due - counts.following, 0))
                self.samples.starts.add(max(int(one["start-time"]) for one in found))
            time.sleep(SAMPLE_S)

    @property
    def key(self) -> tuple[str, int, str]:
        return self.profile.name, self.repeat, self.arm

    def row(self) -> Row:
        samples = self.samples
        timeline = samples.timeline
        measured = [place for place, at in enumerate(timeline.times) if at >= self.begin_s]
        plans = [timeline.plans[place].values() for place in measured]
        lags = [timeline.lag_s[place] for place in measured]
        mean = float(np.mean([sum(plan) for plan in plans]))
        return Row(
            profile=self.profile.name,
            repeat=self.repeat,
            arm=self.arm,
            mean_instances=mean,
            instance_hours=mean * self.profile.measured_min / 60,
            mean_slots=float(np.mean([max(plan) for plan in plans])),
            mean_lag_s=float(np.mean(lags)),
            p99_lag_s=float(np.percentile(lags, 99)),
            peak_lag_s=max(lags),
            mean_pending=float(np.mean(samples.pending)),
            peak_pending=max(samples.pending),
            rescales=len(samples.starts) - 1,
            steps=self.steps,
            silent_steps=self.silent,
            load_average=getloadavg()[0],
        )

    def _clock(self) -> float:
        return self._origin_s + self.profile.pace * (time.time() - self._origin_s)

    def _sleep(self, seconds: float) -> None:
        time.sleep(seconds / self.profile.pace)


def run_repeats(profile: Profile, repeats: Sequence[int]) -> list[Arm]:
    """Run all arms of some repeats at once, in a cluster of their own."""
    slots = MOST * len(profile.arms) * len(repeats)
    settings = {
        **{name: value for name, value in QUICK.items() if name != RESCALE_DELAY},
        "execution.checkpointing.interval": "2 s",
        "metrics.fetcher.update-interval": "300",
        # Else buffers hold half a minute of these small records, which no metric shows.
        "taskmanager.memory.segment-size": "4kb",
        "taskmanager.network.memory.buffer-debloat.enabled": "true",
        "taskmanager.memory.process.size": "2500m",
        "taskmanager.memory.network.min": "512m",
        "taskmanager.memory.network.max": "512m",
    }
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        cluster = stack.enter_context(flink_cluster(Path(name), 2, -(-slots // 2), settings))
        origin_s = time.time()
        arms = [
            Arm(cluster, profile, one, arm, origin_s) for one in repeats for arm in profile.arms
        ]
        for arm in arms:
            stack.enter_context(arm.load)
        begin_s = time.time() + profile.minute_s * WARM_UP_MIN
        end_s = begin_s + profile.minute_s * profile.measured_min
        for arm in arms:
            arm.begin_s = begin_s
        with ThreadPoolExecutor(2 * len(arms)) as pool:
            work = [pool.submit(arm.observe, end_s) for arm in arms]
            work += [pool.submit(arm.steer, end_s) for arm in arms if arm.arm in RECOMMENDED]
            for one in work:
                one.result()
        return arms


def lag_rows(arms: Sequence[Arm]) -> Iterator[LagRow]:
    """Parts of the lag of each job; the base is that of the plan for the peak in its repeat."""

    def parts(arm: Arm, base_s: float) -> LagRow:
        rescales = len(arm.samples.starts) - 1
        timeline = arm.samples.timeline
        pace = arm.profile.pace
        return lag_row(arm.key, timeline, arm.begin_s, base_s, SECONDS, pace, rescales)

    base = {arm.repeat: parts(arm, 0.0).rescales_s for arm in arms if arm.arm == FIXED_PLAN}
    for arm in arms:
        yield parts(arm, base[arm.repeat])


def measure(
    report_step: Callable[[str], None],
    repeats: int = 10,
    folder: Path | None = None,
    profiles: Sequence[Profile] = PROFILES,
) -> Iterator[Figure]:
    """Run the arms `repeats` times on each load; every job is a row of `flink.csv` in `folder`.

    `flink_lag.csv` has the parts of its lag, `flink_minutes.csv` its load, plan and lag by minute.

    Figures are means over the repeats, and half widths of 95% intervals of the paired differences.
    """
    rows: list[Row] = []
    parts: list[dict[str, Any]] = []
    minutes: list[dict[str, Any]] = []
    for profile in profiles:
        at_once = AT_ONCE // len(profile.arms)
        for first in range(0, repeats, at_once):
            numbers = range(first, min(first + at_once, repeats))
            time_min = profile.minute_s * profile.total_min / 60
            shown = f"{numbers[0] + 1} to {numbers[-1] + 1}"
            report_step(f"load {profile.name}, repeats {shown}: {time_min:.0f} minutes")
            arms = run_repeats(profile, numbers)
            rows += [arm.row() for arm in arms]
            parts += [asdict(row) for row in lag_rows(arms)]
            for arm in arms:
                minutes += minute_rows(arm.key, arm.samples.timeline, arm.begin_s, profile.minute_s)
            if folder is not None:
                tables = {LAG_TABLE: parts, MINUTES_TABLE: minutes}
                write_tables(folder, {TABLE: [asdict(row) for row in rows], **tables})
        yield from figures([row for row in rows if row.profile == profile.name], profile.arms)


PAIRS = (
    (POLICY, FIXED_PLAN), (POLICY, RULE), (FLOOR, FIXED_PLAN), (FLOOR, MEAN_PLAN), (FLOOR, RULE),
    (FLOOR, POLICY),
)  # fmt: skip
COLUMNS = (
    ("instance_hours", "h"), ("mean_slots", "slots"), ("mean_lag_s", "s"), ("p99_lag_s", "s"),
    ("peak_lag_s", "s"), ("rescales", ""),
)  # fmt: skip


def figures(rows: Sequence[Row], arms: Sequence[str]) -> Iterator[Figure]:
    """Means of each arm, and paired differences of both arms with SURE from the others."""
    begin = f"flink/{rows[0].profile}"
    by_arm = {arm: [row for row in rows if row.arm == arm] for arm in arms}
    pairs = [pair for pair in PAIRS if set(pair) <= set(arms)]
    for column, unit in COLUMNS:
        values = {arm: np.array([getattr(row, column) for row in by_arm[arm]]) for arm in arms}
        for arm in arms:
            yield Figure(f"{begin}/{arm}/{column}", float(values[arm].mean()), unit)
        for own, rival in pairs:
            differences = values[own] - values[rival]
            name = f"{begin}/{own} less {rival}/{column}"
            yield Figure(name, float(differences.mean()), unit, higher_is_better=False)
            yield Figure(f"{name}_half_width", half_width(differences), unit)


def half_width(values: Any) -> float:
    """Of the 95% interval of the mean, by Student's distribution; NaN of one value."""
    if len(values) < 2:
        return math.nan
    scale = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return float(student.ppf(0.975, len(values) - 1)) * scale
