"""Numbers of executors of applications on a standalone cluster, with a master of the test."""

import json
import time
import urllib.request
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.platform.steering.core import Mode, Recommendation, SilentError, StepResult
from loadmaster.platform.steering.jobs import Cadence, JobSteerer
from loadmaster.platform.steering.loop import http_server
from loadmaster.platform.steering.recommenders import find_recommender
from loadmaster.platform.steering.spark.applications import CLUSTER, Applications
from loadmaster.platform.steering.spark.engine import SPEC
from loadmaster.platform.steering.spark.executors import (
    ExecutorsEngine,
    Master,
    executor_counts,
    open_master,
)
from loadmaster.platform.steering.spark.reports import Report
from loadmaster.platform.steering.spark.settings import SparkSettings
from tests.platform.steering.spark.parts import job, post, report, stage, steering

TTL_S = 10.0


class FakeMaster:
    """The answer of a standalone master's web interface."""

    def __init__(self) -> None:
        self.document: dict[str, Any] = {
            "workers": [{"state": "ALIVE", "cores": 4}, {"state": "ALIVE", "cores": 4},
                        {"state": "DEAD", "cores": 100}],
            "activeapps": [{"id": "app-a", "cores": 8}],
        }  # fmt: skip
        self.status, self.asked = 200, 0
        self.url = ""


@pytest.fixture
def master() -> Iterator[FakeMaster]:
    fake = FakeMaster()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/json/"
            fake.asked += 1
            body = json.dumps(fake.document).encode()
            self.send_response(fake.status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http_server(Handler, "127.0.0.1", 0) as port:
        fake.url = f"http://127.0.0.1:{port}"
        yield fake


class Shares:
    """Gives applications the cores that the test sets."""

    name = "shares"

    def __init__(self) -> None:
        self.cores: dict[str, int] = {}
        self.states: list[Mapping[str, Any]] = []
        self.is_silent = False

    def recommend(self, application: str, state: Mapping[str, Any]) -> Recommendation:
        assert application == CLUSTER
        if self.is_silent:
            raise SilentError("recommender", "no answer")
        self.states.append(state)
        given = [
            {"job": one["id"], "stage": one["stages"][0]["id"], "executors": cores, "limit": cores}
            for one in state["jobs"]
            if (cores := self.cores.get(one["id"], 0))
        ]
        return Recommendation({"assignments": given}, "as the test wants", "shares")

    def feedback(self, application: str, id: str | None, outcome: Mapping[str, Any]) -> None:
        raise AssertionError("the sharing of executors has no outcomes")


class Cluster:
    """Two applications and the engine that shares executors, with a clock of the test."""

    def __init__(self, master: FakeMaster, mode: Mode = "act", **settings: Any) -> None:
        self.now_s, self.number, self.shares = 1000.0, 0, Shares()
        self.settings = SparkSettings(ttl_s=TTL_S, master=master.url, **settings)
        self.known = Applications(self.settings, mode, lambda: self.now_s)
        self.engine = ExecutorsEngine(
            self.known.listed, Master(master.url, TTL_S), self.settings, lambda: self.now_s
        )
        self.steerer = JobSteerer(self.shares, mode, cadence=Cadence(pause_s=0))

    def report(self, id: str, tasks: int = 40, **fields: Any) -> dict[str, Any] | None:
        """A report of an application with a job of so many tasks; the number that it gets."""
        self.number += 1
        jobs = [job(0, stage(0, tasks, mean_ms=1000.0), age_ms=1000.0)] if tasks else []
        fields = {"executor_cores": 1, "executors": 0, "name": id, "application": id, **fields}
        document = report(*jobs, sequence=self.number, **fields)
        order: dict[str, Any] | None = self.known.receive(Report.model_validate(document)).get(
            "executors"
        )
        return order

    def step(self) -> StepResult:
        return self.steerer.step(self.engine, self.now_s)

    def count(self, id: str, **fields: Any) -> int | None:
        order = self.report(id, **fields)
        return None if order is None else int(order["count"])


def test_cores_become_executors_of_each_applications_size() -> None:
    decision = {
        "assignments": [
            {"job": "b", "stage": "0", "executors": 3, "limit": 3},
            {"job": "a", "stage": "0", "executors": 4, "limit": 4},
            {"job": "b", "stage": "1", "executors": 1, "limit": 4},
        ]
    }
    assert executor_counts(decision, {"a": 1, "b": 1}, 8) == {"a": 4, "b": 4}
    assert executor_counts(decision, {"a": 4, "b": 2}, 8) == {"a": 1, "b": 2}
    assert executor_counts(decision, {"a": 1, "b": 1, "idle": 1}, 8) == {"a": 3, "b": 4, "idle": 1}
    # Five of eight cores are left for executors of three: one more would exceed them.
    assert executor_counts(decision, {"a": 3, "b": 3}, 8) == {"a": 1, "b": 1}
    assert executor_counts(decision, {"a": 3, "b": 3}, 9) == {"a": 1, "b": 2}
    assert executor_counts({}, {"a": 4, "b": 4, "c": 1}, 7) == {"a": 1, "b": 0, "c": 1}
    assert executor_counts({}, {}, 8) == {}


def test_act_gives_each_application_its_number_with_a_time_to_live(master: FakeMaster) -> None:
    cluster = Cluster(master)
    cluster.report("app-a", executors=8)
    cluster.report("app-b")
    cluster.shares.cores = {"app-a": 2, "app-b": 6}
    result = cluster.step()
    assert result.result == "acted"
    assert result.commands == ("app-a gets 2 executors, has 8", "app-b gets 6 executors, has 0")
    assert cluster.shares.states[0]["executors"] == [{"count": 8, "free": 8}]
    cluster.now_s += 2
    order = cluster.report("app-a")
    assert order is not None
    assert order == {"count": 2, "ttl_ms": 8000, "reason": "shares: as the test wants"}
    assert cluster.count("app-b") == 6


@pytest.mark.parametrize("mode", ["watch", "shadow"])
def test_other_modes_change_nothing(master: FakeMaster, mode: Mode) -> None:
    cluster = Cluster(master, mode)
    cluster.report("app-a", executors=8)
    cluster.shares.cores = {"app-a": 8}
    assert cluster.step().result == "unchanged"  # it has them
    cluster.report("app-b")
    cluster.shares.cores = {"app-a": 4, "app-b": 4}
    cluster.now_s += 5
    assert cluster.step().result == "dry-run"
    assert cluster.count("app-a") is None


def test_numbers_change_rarely_unless_an_application_comes(master: FakeMaster) -> None:
    cluster = Cluster(master, executors_pause_s=30)
    cluster.report("app-a")
    cluster.shares.cores = {"app-a": 8}
    cluster.step()
    assert cluster.count("app-a") == 8
    cluster.shares.cores = {"app-a": 5}
    for _ in range(14):  # 28 s
        cluster.now_s += 2
        assert cluster.step().result == "unchanged"
        assert cluster.count("app-a") == 8
    cluster.now_s += 2
    assert cluster.step().result == "acted"
    assert cluster.count("app-a") == 5
    cluster.report("app-b")  # comes: no wait
    cluster.shares.cores = {"app-a": 2, "app-b": 6}
    cluster.now_s += 2
    assert cluster.step().result == "acted"
    assert (cluster.count("app-a"), cluster.count("app-b")) == (2, 6)


def test_an_application_between_jobs_keeps_its_executors_for_a_while(master: FakeMaster) -> None:
    cluster = Cluster(master, executors_pause_s=30)
    cluster.report("app-a")
    cluster.shares.cores = {"app-a": 8}
    cluster.step()
    for _ in range(9):
        cluster.now_s += 3
        cluster.report("app-a", tasks=0)
        cluster.step()
        assert cluster.count("app-a", tasks=0) == 8  # renewed without a decision
    cluster.now_s += 4
    cluster.step()
    assert cluster.count("app-a", tasks=0) == 1


def test_a_silent_service_leaves_the_numbers_to_spark(master: FakeMaster) -> None:
    cluster = Cluster(master)
    cluster.report("app-a")
    cluster.shares.cores = {"app-a": 3}
    cluster.step()
    cluster.shares.is_silent = True
    for _ in range(9):
        cluster.now_s += 1
        cluster.step()
        assert cluster.count("app-a") == 3
    cluster.now_s += 1
    assert cluster.step().silent == "recommender"
    assert cluster.count("app-a") is None


def test_a_silent_master_leaves_the_numbers_to_spark(master: FakeMaster) -> None:
    cluster = Cluster(master)
    cluster.report("app-a")
    cluster.shares.cores = {"app-a": 3}
    assert cluster.step().result == "acted"
    master.status = 503
    counts = list[int | None]()
    for _ in range(30):
        cluster.now_s += 1
        result = cluster.step()
        counts.append(cluster.count("app-a"))
    assert result.silent == "engine"
    assert "Spark's master at" in result.reason
    assert counts[0] == 3
    assert counts[-1] is None
    assert master.asked <= 16  # once in two seconds


def test_applications_that_cannot_be_steered_keep_their_cores(master: FakeMaster) -> None:
    cluster = Cluster(master)
    cluster.report("app-a", executor_cores=0)  # holds 5 cores
    cluster.report("app-b")
    master.document["activeapps"] = [
        {"id": "app-a", "cores": 3}, {"id": "app-b", "cores": 1}, {"id": "app-c", "cores": 2},
    ]  # fmt: skip
    cluster.shares.cores = {"app-b": 3}
    result = cluster.step()
    assert cluster.shares.states[0]["executors"] == [{"count": 3, "free": 3}]
    assert [one["id"] for one in cluster.shares.states[0]["jobs"]] == ["app-b"]
    assert any("app-a" in text and "spark.decommission" in text for text in result.messages)
    assert cluster.count("app-a", executor_cores=0) is None
    assert cluster.count("app-b") == 3


def test_a_new_adapter_gives_the_same_numbers(master: FakeMaster) -> None:
    cluster, other = Cluster(master), Cluster(master)
    for one in (cluster, other):
        one.report("app-a", executors=8)
        one.report("app-b")
        one.shares.cores = {"app-a": 2, "app-b": 6}
        one.step()
    for id in ("app-a", "app-b"):
        assert cluster.count(id) == other.count(id)


def test_a_rule_of_the_endpoint_shares_the_cores(master: FakeMaster) -> None:
    cluster = Cluster(master)
    cluster.report("app-a", tasks=400)
    cluster.report("app-b", tasks=4)
    cluster.steerer = JobSteerer(find_recommender(["fair"], SPEC.endpoint), "act")
    result = cluster.step()
    assert result.result == "acted", result.line()
    assert (cluster.count("app-a", tasks=400), cluster.count("app-b", tasks=4)) == (4, 4)


def test_an_answer_of_something_else_is_a_silent_engine(master: FakeMaster) -> None:
    cluster = Cluster(master)
    cluster.report("app-a")
    master.document = {"status": "ok"}
    result = cluster.step()
    assert (result.result, result.silent) == ("silent", "engine")
    assert "no answer of a standalone master" in result.reason


class Both(Shares):
    """Shares executors, and orders the jobs of each application as they came."""

    def recommend(self, application: str, state: Mapping[str, Any]) -> Recommendation:
        if application == CLUSTER:
            return super().recommend(application, state)
        return find_recommender(["fifo"], SPEC.endpoint).recommend(application, state)


def test_a_driver_gets_its_plan_and_its_number_over_http(master: FakeMaster) -> None:
    shares, seen = Both(), list[StepResult]()
    shares.cores = {"app-a": 3}
    fields = {"application": "app-a", "executor_cores": 1, "executors": 8, "slots": 8}
    with steering(shares, "act", seen, master=master.url) as url:
        for number in range(200):
            document = report(job(0, stage(0, 40)), sequence=number, **fields)
            _, reply = post(url, document)
            if "executors" in reply:
                break
            time.sleep(0.05)
        with urllib.request.urlopen(f"{url}/v1/plans", timeout=10) as shown:
            (plans,) = json.load(shown)["applications"]
    assert reply["executors"]["count"] == plans["executors"]["count"] == 3
    assert reply["plan"]["stages"] == plans["plan"]["stages"] == [0]
    assert {"shop", CLUSTER} <= {one.application for one in seen}


def test_bad_address_of_a_master() -> None:
    with pytest.raises(InputError, match="master"):  # noqa: SIM117
        with open_master(SparkSettings(master="spark://host:7077")):
            pass
    with open_master(SparkSettings()) as none:
        assert none is None
