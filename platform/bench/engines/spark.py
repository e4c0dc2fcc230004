"""Spark under its own orders and under Loadmaster's scheduler class: the same jobs, side by side.

The jobs have the DAGs and durations of the workload `tpch-like`, narrower and shorter, with tasks
that sleep; they recur, and arrive at random over time. All arms of a repeat run at the same time on
the same machine, each in a driver of its own: `fifo` and `fair` on Spark's own scheduler (`fair`
with a pool for each job), the others through `loadmaster steer spark`'s parts in this process.
Durations are known from the event log of a run before (`profile`). Each run is then simulated from
its own event log and the times of its plans (`spark_replay`).
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from os import getloadavg
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.workloads import load_workload
from loadmaster.platform.bench.engines.spark_cluster import (
    SparkApplication,
    SparkJob,
    SparkStage,
    completion_s,
    fetch_spark,
)
from loadmaster.platform.bench.engines.spark_replay import predict
from loadmaster.platform.bench.engines.spark_simulation import Steering
from loadmaster.platform.bench.measurements import Figure
from loadmaster.platform.evaluation.statistics import paired_difference, summarise
from loadmaster.platform.steering.core import Recommendation, Recommender, StepResult
from loadmaster.platform.steering.jobs import Cadence, JobSteerer
from loadmaster.platform.steering.loop import steer
from loadmaster.platform.steering.recommenders import find_recommender
from loadmaster.platform.steering.spark.build import build_jar
from loadmaster.platform.steering.spark.durations import read_profile
from loadmaster.platform.steering.spark.engine import (
    EVERY_S,
    PAUSE_S,
    SPEC,
    Connection,
    connect,
)
from loadmaster.platform.steering.spark.settings import SparkSettings

SLOTS = 12
JOBS, TEMPLATES = 32, 40
LOAD = 1.1  # work that arrives per slot while jobs arrive
NARROWER, SHORTER = 60, 1.5  # than the workload's jobs
SPREAD = 0.25  # of the log of task durations within a stage
SHORTEST_MS = 150
PROFILE_SEED = 900_000
RECOMMENDERS = {"srpt-caps": "srpt-caps", "decima": "bundle:decima"}
ARMS = ("fifo", "fair", *RECOMMENDERS)


@cache
def templates() -> tuple[tuple[tuple[int, float, tuple[int, ...]], ...], ...]:
    """DAGs of the jobs that recur: each stage with its tasks, mean ms and parents."""
    bank = load_workload(DagSchedulingSettings(workload="tpch-like")).bank
    drawn = np.random.default_rng(PROFILE_SEED).permutation(len(bank.first_stage) - 1)[:TEMPLATES]
    found = []
    for template in drawn.tolist():
        first, end = bank.first_stage[template : template + 2].tolist()
        parents = [
            bank.parent[bank.parent_first[row] : bank.parent_first[row + 1]].tolist()
            for row in range(first, end)
        ]
        found.append(_ordered(bank.tasks[first:end], bank.mean_ms[first:end], parents))
    return tuple(found)


def _ordered(
    tasks: Any, mean_ms: Any, parents: Sequence[Sequence[int]]
) -> tuple[tuple[int, float, tuple[int, ...]], ...]:
    """Stages after their parents; the last one is the only one without children."""
    order: list[int] = []
    while len(order) < len(parents):
        order += [
            stage
            for stage in range(len(parents))
            if stage not in order and all(parent in order for parent in parents[stage])
        ][:1]
    place = {stage: number for number, stage in enumerate(order)}
    needed = {parent for above in parents for parent in above}
    sinks = {place[stage] for stage in order[:-1] if stage not in needed}
    rows = []
    for stage in order:
        above = {place[parent] for parent in parents[stage]}
        above |= sinks if stage == order[-1] else set()
        width = max(1, round(int(tasks[stage]) / NARROWER))
        rows.append((width, float(mean_ms[stage]) / SHORTER, tuple(sorted(above))))
    return tuple(rows)


def draw_jobs(seed: int, batch: bool = False) -> list[SparkJob]:
    """The jobs of a repeat with their arrivals; a `batch` has each template once."""
    rng = np.random.default_rng(seed)
    known = templates()
    work_s = np.mean([sum(width * ms for width, ms, _ in one) for one in known]) / 1000
    drawn = np.arange(len(known)) if batch else rng.integers(len(known), size=JOBS)
    gaps_s = rng.exponential(work_s / (SLOTS * LOAD), size=len(drawn))
    arrivals_s = np.zeros(len(drawn)) if batch else np.cumsum(gaps_s) - gaps_s[0]
    jobs = []
    for number, (template, arrival_s) in enumerate(zip(drawn, arrivals_s, strict=True)):
        stages = []
        for width, mean_ms, parents in known[template]:
            noise = np.exp(rng.normal(-(SPREAD**2) / 2, SPREAD, size=width))
            drawn_ms = np.maximum(np.rint(mean_ms * noise), SHORTEST_MS).astype(int)
            stages.append(SparkStage(drawn_ms.tolist(), parents))
        jobs.append(SparkJob(f"query {template}", int(arrival_s * 1000), stages, f"pool-{number}"))
    return jobs


class TimedRecommender:
    """A recommender with the times in ms of its states, and of the ends of their steps."""

    def __init__(self, recommender: Recommender) -> None:
        self.name, self._recommender = recommender.name, recommender
        self.times: list[tuple[int, int]] = []
        self._requested_ms: int | None = None

    def recommend(self, application: str, state: Mapping[str, Any]) -> Recommendation:
        self._requested_ms = _now_ms()
        return self._recommender.recommend(application, state)

    def feedback(self, application: str, id: str | None, outcome: Mapping[str, Any]) -> None:
        self._recommender.feedback(application, id, outcome)

    def end_step(self, result: StepResult) -> None:
        """The reply with the plan leaves now."""
        if self._requested_ms is not None:
            self.times.append((self._requested_ms, _now_ms()))
            self._requested_ms = None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@contextmanager
def steering(recommender: TimedRecommender, settings: SparkSettings) -> Iterator[Connection]:
    """Steer all applications that report, in a thread, while the block runs."""
    stopped = threading.Event()
    with connect(settings, (), "act") as connection:
        steerer = JobSteerer(recommender, "act", cadence=Cadence(pause_s=PAUSE_S))
        thread = threading.Thread(
            target=steer,
            args=(connection, steerer, recommender.end_step, EVERY_S, False, stopped),
        )
        thread.start()
        try:
            yield connection
        finally:
            stopped.set()
            thread.join()


@dataclass
class ArmRun:
    """A row for each job, and the times of decisions and plans."""

    jobs: pd.DataFrame
    times: list[tuple[int, int]] = field(default_factory=list)


def run_arms(
    arms: Sequence[str], jobs: Sequence[SparkJob], folder: Path, profile: Path | None
) -> dict[str, ArmRun]:
    """Run the same jobs in all arms at the same time."""
    spark = fetch_spark()
    jar = build_jar(spark)
    timed = {
        arm: TimedRecommender(find_recommender([RECOMMENDERS[arm]], SPEC.endpoint))
        for arm in arms
        if arm in RECOMMENDERS
    }
    with ExitStack() as stack:
        running: dict[str, SparkApplication] = {}
        for arm in arms:
            log = folder / arm / "events"
            log.mkdir(parents=True)
            conf = {
                "spark.eventLog.enabled": "true",
                "spark.eventLog.dir": log.as_uri(),
                "spark.app.name": arm,
            }
            master, needed = f"local[{SLOTS}]", None
            if arm == "fair":
                conf["spark.scheduler.mode"] = "FAIR"
            elif arm != "fifo":
                settings = SparkSettings(port=0, profile=profile)
                connection = stack.enter_context(steering(timed[arm], settings))
                conf["spark.loadmaster.url"] = connection.url
                master, needed = f"local-loadmaster[{SLOTS}]", jar
            application = SparkApplication(spark, jobs, master, folder / arm, conf, needed)
            running[arm] = stack.enter_context(application)
        for application in running.values():
            application.await_ready()
        for application in running.values():
            application.begin()
        found = {arm: application.result() for arm, application in running.items()}
    runs = {arm: ArmRun(frame) for arm, frame in found.items()}
    for arm, recommender in timed.items():
        runs[arm].times = recommender.times
    return runs


def measure(report_step: Callable[[str], None], repeats: int, folder: Path) -> Iterator[Figure]:
    """Run all repeats; the CSV files are written after each one, and not repeated."""
    folder.mkdir(parents=True, exist_ok=True)
    file, predictions_file = folder / "jobs.csv", folder / "predictions.csv"
    rows, predictions = _known(file), _known(predictions_file)
    done = {seed for known in rows for seed in known["seed"]}
    todo = [seed for seed in range(repeats) if seed not in done]
    with tempfile.TemporaryDirectory() as work:
        profile = Path(work) / "profile" / "fifo" / "events"
        if todo:
            report_step("spark: a run for the profile")
            run_arms(("fifo",), draw_jobs(PROFILE_SEED, batch=True), Path(work) / "profile", None)
        for seed in todo:
            report_step(f"spark: repeat {seed + 1} of {repeats}")
            jobs, place = draw_jobs(seed), Path(work) / str(seed)
            runs, load = run_arms(ARMS, jobs, place, profile), getloadavg()[0]
            for arm, run in runs.items():
                frame = run.jobs
                frame.insert(0, "arm", arm)
                frame.insert(0, "seed", seed)
                frame["completion_s"] = completion_s(frame)
                frame["work_s"] = [job.work_ms / 1000 for job in jobs]
                frame["machine_load"] = load
                rows.append(frame)
                steered = None if arm not in RECOMMENDERS else _as_steered(arm, run.times, profile)
                log = place / arm / "events"
                predicted = predict(log, arm, len(jobs), SLOTS, frame, steered)
                predictions.append(pd.DataFrame(predicted).assign(seed=seed, arm=arm))
            pd.concat(rows).to_csv(file, index=False)
            pd.concat(predictions).to_csv(predictions_file, index=False)
    yield from figures(pd.concat(rows), pd.concat(predictions))


def _known(file: Path) -> list[pd.DataFrame]:
    return [pd.read_csv(file)] if file.exists() else []


def _as_steered(arm: str, times: Sequence[tuple[int, int]], profile: Path) -> Steering:
    recommender = find_recommender([RECOMMENDERS[arm]], SPEC.endpoint)
    return Steering(partial(_decide, recommender, arm), read_profile(profile), times=times)


def _decide(recommender: Recommender, arm: str, state: Mapping[str, Any]) -> Mapping[str, Any]:
    return recommender.recommend(arm, state).decision


def figures(jobs: pd.DataFrame, predictions: pd.DataFrame) -> Iterator[Figure]:
    """Means over repeats, differences paired by repeat, and errors of the predictions."""
    means = jobs.groupby(["arm", "seed"])["completion_s"].mean().unstack("seed")
    for arm in ARMS:
        one = summarise(means.loc[arm].to_numpy())
        name = f"spark/{arm}/completion_s"
        yield Figure(name, one.mean, "s", higher_is_better=False)
        for end in ("low", "high"):
            yield Figure(f"{name}/{end}", getattr(one.interval, end), "s", higher_is_better=False)
    for arm in ARMS[2:]:
        for peer in ARMS[:2]:
            both = paired_difference(means.loc[arm].to_numpy(), means.loc[peer].to_numpy())
            name = f"spark/{arm}-against-{peer}"
            yield Figure(f"{name}/percent", both.percent, "%", higher_is_better=False)
            for end in ("low", "high"):
                value = getattr(both.percent_interval, end)
                yield Figure(f"{name}/{end}", value, "%", higher_is_better=False)
    yield Figure("spark/tasks-run-again", float(jobs["repeated"].sum()), "tasks")
    for names, found in predictions.groupby(["arm", "rule"]):
        steered, rule = map(str, names)
        error = 100 * (found["predicted_s"].sum() / found["measured_s"].sum() - 1)
        yield Figure(f"spark/simulated-{rule}-for-{steered}/error", float(error), "%")
