"""Steering a real Flink 2.3 on this machine: watch, act up and down, faults; opt-in.

The jars come from PyPI (329 MB, kept in the cache folder).
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.platform.bench.engines.flink_cluster import (
    QUICK,
    FlinkCluster,
    Load,
    flink_cluster,
    missing,
)
from loadmaster.platform.steering.core import Recommendation, SilentError, Steerer, StepResult
from loadmaster.platform.steering.flink.client import ApiError, FlinkClient
from loadmaster.platform.steering.flink.engine import connect
from loadmaster.platform.steering.flink.job import FlinkJob
from loadmaster.platform.steering.flink.settings import FlinkSettings

pytestmark = [
    pytest.mark.slow,
    pytest.mark.engine("flink"),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]

NAME = "clicks"
NAMES = ("Source: source", "parse", "enrich", "sink: Writer")
RECOMMENDER = """
class Wanted:
    def recommend(self, state):
        return {"parallelism": {task["name"]: 1 for task in state["tasks"]}}, "one of each"
"""


class Wanted:
    """A recommender of one plan, which can be silent."""

    name = "wanted"

    def __init__(self, parse: int, enrich: int) -> None:
        self.parse, self.enrich, self.silent = parse, enrich, False

    def recommend(self, application: str, state: Mapping[str, Any]) -> Recommendation:
        if self.silent:
            raise SilentError("recommender", "no service")
        plan = dict(zip(NAMES, (1, self.parse, self.enrich, 1), strict=True))
        return Recommendation({"parallelism": plan}, "as the test wants", "test")

    def feedback(self, application: str, id: str | None, outcome: Mapping[str, Any]) -> None:
        pass


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlinkCluster]:
    try:
        with flink_cluster(tmp_path_factory.mktemp("flink"), 1, 6, QUICK) as cluster:
            yield cluster
    except InputError as fault:
        if "cannot be fetched" in str(fault):
            pytest.skip(str(fault))
        raise


@pytest.fixture(scope="module")
def load(cluster: FlinkCluster) -> Iterator[Load]:
    with Load(cluster.folder / "load", lambda _: 800.0) as load:
        cluster.start_load_job(load, NAME, 1000, 500, 2)
        yield load


def settings(cluster: FlinkCluster, **given: Any) -> FlinkSettings:
    quick = {"cooldown_s": 0.0, "refresh_s": 0.7, "first_poll_s": 2.0, "rollback": False}
    return FlinkSettings(rest=cluster.url, **{**quick, **given})


@pytest.fixture
def job(cluster: FlinkCluster, load: Load) -> Iterator[FlinkJob]:
    """An adapter without history."""
    with connect(settings(cluster), (NAME,), "act") as jobs:
        (job,) = jobs()
        yield job


def step_until(
    steerer: Steerer, job: FlinkJob, done: Callable[[StepResult], bool], seconds: float = 90.0
) -> StepResult:
    end = time.monotonic() + seconds
    while True:
        result = steerer.step(job, time.time())
        if done(result):
            return result
        assert time.monotonic() < end, result
        time.sleep(1.0)


def parallelism(cluster: FlinkCluster, job: str) -> tuple[int, ...]:
    vertices = cluster.call("GET", f"/jobs/{job}")["vertices"]
    found = {one["name"]: one["parallelism"] for one in vertices}
    return tuple(found[name] for name in NAMES)


def puts(cluster: FlinkCluster) -> int:
    """Rescales of the job that were requested."""
    (job,) = (one["jid"] for one in cluster.call("GET", "/jobs/overview")["jobs"])
    history = cluster.call("GET", f"/jobs/{job}/rescales/history")
    return sum(one["triggerCause"] == "UPDATE_REQUIREMENT" for one in history)


def test_watch(cluster: FlinkCluster, job: FlinkJob) -> None:
    before = parallelism(cluster, job.job)
    wanted = Wanted(before[1] + 1, before[2])
    result = step_until(Steerer(wanted, "watch"), job, lambda one: one.result == "dry-run")
    assert result.wanted["parse"] == before[1] + 1
    assert parallelism(cluster, job.job) == before


def test_act_up_and_down(cluster: FlinkCluster, load: Load, job: FlinkJob) -> None:
    wanted = Wanted(4, 3)
    steerer = Steerer(wanted, "act")
    step_until(steerer, job, lambda one: one.result == "acted")
    result = step_until(steerer, job, lambda one: one.result == "unchanged")
    assert parallelism(cluster, job.job) == (1, 4, 3, 1)
    assert result.plan == dict(zip(NAMES, (1, 4, 3, 1), strict=True))
    wanted.parse, wanted.enrich = 1, 1
    step_until(steerer, job, lambda one: one.result == "acted")
    step_until(steerer, job, lambda one: one.result == "unchanged")
    assert parallelism(cluster, job.job) == (1, 1, 1, 1)
    counts = load.counts()
    assert counts.at_sink > 0
    assert counts.last < counts.due


def test_busy_time_is_that_of_the_load(job: FlinkJob) -> None:
    """800 records a second keep 0.8 of parse busy and 0.4 of enrich."""
    step_until(Steerer(Wanted(1, 1), "watch"), job, lambda one: one.result == "dry-run")
    time.sleep(10.0)
    target = job.read()
    snapshots = job.measure(target).state["snapshots"]
    count = target.plan["parse"]
    assert snapshots["busy_ms_per_s"][-1][1] * count / 1000 == pytest.approx(0.8, abs=0.25)
    assert snapshots["records_out_per_s"][-1][0] == pytest.approx(800, rel=0.35)


def test_refused_plan(cluster: FlinkCluster, job: FlinkJob) -> None:
    before = parallelism(cluster, job.job)
    with closing(FlinkClient(cluster.url)) as client:
        with pytest.raises(ApiError) as refused:
            client.set_requirements(
                job.job,
                dict.fromkeys(client.requirements(job.job), 1)
                | {next(iter(client.requirements(job.job))): 1000},
            )
        assert refused.value.status == 400
        assert "maximum parallelism" in str(refused.value)
    assert parallelism(cluster, job.job) == before


def test_more_than_the_slots(cluster: FlinkCluster, job: FlinkJob) -> None:
    steerer = Steerer(Wanted(40, 1), "act")
    result = step_until(steerer, job, lambda one: one.result == "acted")
    assert result.wanted["parse"] == 6
    step_until(steerer, job, lambda one: one.result == "unchanged")
    assert parallelism(cluster, job.job)[1] == 6


def test_service_is_dead(cluster: FlinkCluster, load: Load, job: FlinkJob) -> None:
    wanted = Wanted(3, 1)
    steerer = Steerer(wanted, "act")
    step_until(steerer, job, lambda one: one.result == "acted")
    step_until(steerer, job, lambda one: one.result == "unchanged")
    wanted.silent = True
    step_until(steerer, job, lambda one: one.silent == "recommender")
    before = load.counts().at_sink
    for _ in range(4):
        assert steerer.step(job, time.time()).silent == "recommender"
        time.sleep(1.0)
    assert parallelism(cluster, job.job)[1] >= 3  # held, or raised to the last safe plan
    assert load.counts().at_sink > before


def test_adapter_is_killed(
    cluster: FlinkCluster, load: Load, job: FlinkJob, tmp_path: Path
) -> None:
    """kill -9 just after its request: the job runs on, and a new adapter repeats nothing."""
    (tmp_path / "wanted_plan.py").write_text(RECOMMENDER)
    command = [
        sys.executable, "-c", "from loadmaster.platform.cli.main import main; main()",
        "steer", "flink", NAME, "--mode", "act", "--recommender",
        "wanted_plan:Wanted", "--every", "1", "--json",
        "--set", f"rest={cluster.url}", "--set", "cooldown_s=0",
        "--set", "refresh_s=0.7", "--set", "first_poll_s=2",
    ]  # fmt: skip
    before = puts(cluster)
    with (tmp_path / "out").open("w+") as out:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        adapter = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment)
        end = time.monotonic() + 120
        while puts(cluster) == before:
            text = (tmp_path / "out").read_text()
            assert adapter.poll() is None, text
            assert time.monotonic() < end, text
            time.sleep(0.05)
        adapter.send_signal(signal.SIGKILL)
        adapter.wait()
    lines = (tmp_path / "out").read_text().splitlines()
    assert all(json.loads(line)["result"] in ("acted", "held", "unchanged") for line in lines)
    count = load.counts().at_sink
    with connect(settings(cluster), (NAME,), "act") as jobs:
        (again,) = jobs()
        step_until(Steerer(Wanted(1, 1), "act"), again, lambda one: one.result == "unchanged")
    assert parallelism(cluster, job.job) == (1, 1, 1, 1)
    assert puts(cluster) == before + 1
    assert load.counts().at_sink > count


def test_unknown_job(cluster: FlinkCluster, load: Load) -> None:
    with connect(settings(cluster), ("nope",), "watch") as jobs:
        with pytest.raises(InputError) as fault:
            jobs()
        assert NAME in str(fault.value)


def test_rest_interface_is_gone(job: FlinkJob) -> None:
    client = FlinkClient("http://127.0.0.1:9", deadline_s=0.5)
    lost = FlinkJob(client, job.job, NAME, FlinkSettings())
    result = Steerer(Wanted(1, 1), "act").step(lost, time.time())
    assert (result.result, result.silent) == ("silent", "engine")
