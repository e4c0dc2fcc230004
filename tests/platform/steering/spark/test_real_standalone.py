"""Executors of two applications on a real standalone cluster are shared, then left to Spark."""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.platform.bench.engines.spark_cluster import (
    VERSION,
    SparkApplication,
    completion_s,
    equal_jobs,
    fetch_spark,
    missing,
)
from loadmaster.platform.steering.core import Recommendation, StepResult
from loadmaster.platform.steering.spark.applications import CLUSTER
from loadmaster.platform.steering.spark.build import build_jar
from tests.platform.steering.spark.parts import steering
from tests.platform.steering.spark.standalone import standalone_cluster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.engine("spark"),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]

CORES = 4
TTL_S = 3.0
WAIT_S = 60.0
CONF = {
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.decommission.enabled": "true",
}


class Equal:
    """Gives jobs an equal number of executors each."""

    name = "equal"

    def recommend(self, application: str, state: Mapping[str, Any]) -> Recommendation:
        jobs, free = state["jobs"], state["executors"][0]["free"]
        share = max(free // len(jobs), 1)
        given = [
            {"job": one["id"], "stage": one["stages"][0]["id"], "executors": share, "limit": free}
            for one in jobs
        ]
        return Recommendation({"assignments": given, "idle": 0}, "equal shares", "equal")

    def feedback(self, application: str, id: str | None, outcome: Mapping[str, Any]) -> None:
        pass


def await_cores(cores: Callable[[], dict[str, int]], expected: dict[str, int]) -> None:
    end_s = time.monotonic() + WAIT_S
    while (found := cores()) != expected:
        assert time.monotonic() < end_s, f"{found}; expected {expected}"
        time.sleep(0.2)


def test_executors_move_between_applications_and_are_left_to_spark_at_the_end(
    tmp_path: Path,
) -> None:
    try:
        spark = fetch_spark(os.environ.get("LOADMASTER_SPARK", VERSION))
    except InputError as fault:
        pytest.skip(str(fault))
    jar, seen = build_jar(spark), list[StepResult]()
    with ExitStack() as stack:
        cluster = stack.enter_context(standalone_cluster(spark, tmp_path, CORES))
        adapter = stack.enter_context(ExitStack())
        settings = {"master": cluster.web, "ttl_s": TTL_S, "executors_pause_s": 1}
        url = adapter.enter_context(steering(Equal(), "act", seen, **settings))
        master = f"spark-loadmaster://{cluster.master}"
        running = dict[str, SparkApplication]()
        for name, tasks in (("long", 160), ("short", 60)):
            conf = {**CONF, "spark.app.name": name, "spark.loadmaster.url": url}
            application = SparkApplication(
                spark, equal_jobs(1, tasks, 500), master, tmp_path / name, conf, jar
            )
            running[name] = stack.enter_context(application)
            application.await_ready()
        # Spark alone would leave all cores to the first one. Without a job each keeps one.
        await_cores(cluster.cores, {"long": 1, "short": 1})
        running["long"].begin()
        await_cores(cluster.cores, {"long": CORES - 1, "short": 1})
        running["short"].begin()
        await_cores(cluster.cores, {"long": CORES // 2, "short": CORES // 2})
        adapter.close()
        # Its decisions end: what the short one leaves goes to the long one.
        short = running["short"].result()
        await_cores(cluster.cores, {"long": CORES})
        long = running["long"].result()
    assert completion_s(short)[0] < completion_s(long)[0]
    assert not any("Lost task" in one.log for one in running.values())  # executors end after them
    assert "acted" in {one.result for one in seen if one.application == CLUSTER}
