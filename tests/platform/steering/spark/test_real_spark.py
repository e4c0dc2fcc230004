"""Steering a real Spark 4 on this machine: watch, act, faults; opt-in.

The wheel comes from PyPI (430 MB, kept in the cache folder); LOADMASTER_SPARK is another version.
Tasks sleep, so that a local master of four slots fits on fewer cores.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.platform.bench.engines.spark_cluster import (
    VERSION,
    SparkApplication,
    SparkJob,
    SparkStage,
    completion_s,
    equal_jobs,
    fetch_spark,
    missing,
)
from loadmaster.platform.steering.core import Recommendation, SilentError, StepResult
from loadmaster.platform.steering.spark.build import PLUGIN, build_jar
from tests.platform.steering.spark.parts import free_port, steering

pytestmark = [
    pytest.mark.slow,
    pytest.mark.engine("spark"),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]

SLOTS = 4
TTL_S = 2.0
ALONE_S = 8.0  # from a fault to the end of jobs that Spark runs by its own order
RECOMMENDER = """
class Narrow:
    def recommend(self, state):
        jobs = [(one["id"], one["stages"]) for one in state["jobs"]]
        given = [
            {"job": job, "stage": stage["id"], "executors": 1, "limit": 1}
            for job, stages in jobs for stage in stages
        ]
        return {"assignments": given, "idle": 3}, "one task at a time"
"""


class Orders:
    """Recommends, by application, an order of its jobs and limits of those that came first."""

    name = "orders"

    def __init__(self) -> None:
        self.silent: set[str] = set()  # applications without an answer
        self.decided: set[str] = set()

    def recommend(self, application: str, state: Mapping[str, Any]) -> Recommendation:
        if application in self.silent:
            raise SilentError("recommender", "no service")
        jobs = list(state["jobs"])
        first = jobs[0]["id"]
        if application == "newer":
            if application in self.decided or len(jobs) < 2:
                raise SilentError("recommender", "decides once, on two jobs")
            jobs = [{**one, "stages": one["stages"][:1]} for one in jobs]
        self.decided.add(application)
        if application in ("watch", "plugin", "order", "newer"):
            jobs.reverse()
        given = [
            {
                "job": one["id"],
                "stage": stage["id"],
                "executors": 1,
                "limit": 1 if application == "limit" and one["id"] == first else SLOTS,
            }
            for one in jobs
            for stage in one["stages"]
        ]
        idle = 0
        if application in ("kept", "silent"):
            given, idle = [{**one, "limit": 1} for one in given], SLOTS - 1
        return Recommendation({"assignments": given, "idle": idle}, "as the test wants", "orders")

    def feedback(self, application: str, id: str | None, outcome: Mapping[str, Any]) -> None:
        pass


@pytest.fixture(scope="module")
def spark() -> Path:
    try:
        return fetch_spark(os.environ.get("LOADMASTER_SPARK", VERSION))
    except InputError as fault:
        pytest.skip(str(fault))


@pytest.fixture(scope="module")
def jar(spark: Path) -> Path:
    return build_jar(spark)


class Applications:
    """Applications that run at the same time."""

    def __init__(self, stack: ExitStack, spark: Path, jar: Path, folder: Path) -> None:
        self._stack, self._spark, self._jar, self._folder = stack, spark, jar, folder
        self._all: dict[str, SparkApplication] = {}

    def add(
        self,
        name: str,
        jobs: Sequence[SparkJob],
        url: str,
        master: str = f"local-loadmaster[{SLOTS}]",
        **conf: str,
    ) -> None:
        given = {"spark.app.name": name, "spark.loadmaster.url": url, **conf}
        application = SparkApplication(
            self._spark, jobs, master, self._folder / name, given, self._jar
        )
        self._all[name] = self._stack.enter_context(application)

    def begin(self) -> None:
        for one in self._all.values():
            one.await_ready()
        for one in self._all.values():
            one.begin()

    def results(self) -> dict[str, pd.DataFrame]:
        return {name: one.result() for name, one in self._all.items()}


def order(frame: pd.DataFrame) -> str:
    """Names of the jobs as they have ended; each of their tasks ran once."""
    assert frame["repeated"].sum() == 0
    return "".join(frame.sort_values("ended_ms")["name"])


def test_watch_changes_nothing_and_act_sets_order_and_limits(
    spark: Path, jar: Path, tmp_path: Path
) -> None:
    jobs = equal_jobs(2, 16, 1000, gap_ms=200)
    wide = SparkJob("a", 0, [SparkStage([500] * 32)])
    chain = SparkJob("b", 200, [SparkStage([500] * 4, range(place)[-1:]) for place in range(4)])
    with ExitStack() as stack:
        orders, seen = Orders(), list[StepResult]()
        watched = stack.enter_context(steering(orders, "watch", seen))
        acted = stack.enter_context(steering(orders, "act", seen))
        running = Applications(stack, spark, jar, tmp_path)
        running.add("watch", jobs, watched)
        running.add("plugin", jobs, acted, f"local[{SLOTS}]", **{"spark.plugins": PLUGIN})
        running.add("order", jobs, acted)
        running.add("limit", jobs, acted)
        running.add("newer", [wide, chain], acted)
        running.begin()
        found = running.results()
    ended = {name: order(frame) for name, frame in found.items()}
    # In `limit` job a is first in the order, and may run one task at a time.
    # In `newer` the plan has the first stages alone: the later ones of job b go before the rest of
    # job a.
    expected = {"watch": "ab", "plugin": "ab", "order": "ba", "limit": "ba", "newer": "ba"}
    assert ended == expected
    assert found.pop("newer")["tasks"].tolist() == [32, 16]
    assert all(frame["tasks"].tolist() == [16, 16] for frame in found.values())
    results = {one.application: set[str]() for one in seen}
    for one in seen:
        results[one.application].add(one.result)
    assert "acted" in results["order"] & results["limit"]
    assert "dry-run" in results["watch"]
    assert "acted" not in results["watch"] | results["plugin"]
    assert "refused" in results["plugin"]


def test_a_decision_ends_where_the_service_or_the_adapter_dies(
    spark: Path, jar: Path, tmp_path: Path
) -> None:
    """Decisions allow one task at a time, so that 80 tasks of 0.2 s take 16 s, and 4 s without."""
    jobs = equal_jobs(1, 80, 200)
    (tmp_path / "narrow_plan.py").write_text(RECOMMENDER)
    port = free_port()
    command = [
        sys.executable, "-c", "from loadmaster.platform.cli.main import main; main()",
        "steer", "spark", "--mode", "act", "--recommender", "narrow_plan:Narrow",
        "--set", f"port={port}", "--set", f"ttl_s={TTL_S:g}", "--set", "limit_factor=1",
        "--set", "idle=true", "--set", "first_report_s=0",
    ]  # fmt: skip
    with ExitStack() as stack:
        orders = Orders()
        url = stack.enter_context(steering(orders, "act", [], ttl_s=TTL_S, idle=True))
        log = stack.enter_context((tmp_path / "adapter.log").open("w"))
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        adapter = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        stack.callback(adapter.wait)
        stack.callback(adapter.kill)
        running = Applications(stack, spark, jar, tmp_path)
        running.add("kept", jobs, url)
        running.add("silent", jobs, url)
        running.add("killed", jobs, f"http://127.0.0.1:{port}")
        running.begin()
        time.sleep(2.0)
        orders.silent.add("silent")
        adapter.send_signal(signal.SIGKILL)
        found = running.results()
    shown = (tmp_path / "adapter.log").read_text()
    assert "killed acted: plan job-" in shown, shown
    took_s = {name: completion_s(frame)[0] for name, frame in found.items()}
    assert all(order(frame) == "a" for frame in found.values())
    assert all(frame["tasks"].tolist() == [80] for frame in found.values())
    assert took_s["kept"] > 15, took_s
    for name in ("silent", "killed"):
        # The decision held for its time, and no longer.
        assert 5 < took_s[name] < 2.0 + TTL_S + ALONE_S, took_s
