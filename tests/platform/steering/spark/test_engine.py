"""Applications that report over HTTP, steered in each mode, with faults."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings
from loadmaster.platform.steering.core import Mode, Recommendation, SilentError, StepResult
from loadmaster.platform.steering.jobs import Cadence, JobSteerer, Limits
from loadmaster.platform.steering.loop import steer
from loadmaster.platform.steering.recommenders import find_recommender
from loadmaster.platform.steering.spark.applications import Applications
from loadmaster.platform.steering.spark.engine import SPEC, Connection, connect
from loadmaster.platform.steering.spark.settings import SparkSettings
from tests.platform.steering.spark.parts import job, post, report, stage, two_jobs

TTL_S = 10.0


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Decider:
    """Gives all slots to the job that came last."""

    name = "toy"

    def __init__(self) -> None:
        self.is_silent, self.asked = False, 0
        self.feedbacks: list[tuple[str | None, str]] = []

    def recommend(self, application: str, state: Mapping[str, Any]) -> Recommendation:
        if self.is_silent:
            raise SilentError("recommender", "no answer")
        self.asked += 1
        last = state["jobs"][-1]
        free = state["executors"][0]["free"]
        given = {"job": last["id"], "stage": last["stages"][0]["id"], "executors": free, "limit": 2}
        return Recommendation({"assignments": [given]}, "the last first", "toy", f"d{self.asked}")

    def feedback(self, application: str, id: str | None, outcome: Mapping[str, Any]) -> None:
        self.feedbacks.append((id, outcome["job"]))


class Bench:
    """The parts of `connect`, with a clock of the test and without a socket."""

    def __init__(self, mode: Mode = "act", **settings: Any) -> None:
        self.clock, self.decider, self.mode = Clock(), Decider(), mode
        self.settings = SparkSettings(ttl_s=TTL_S, limit_factor=1.0, **settings)
        self.restart()

    def restart(self) -> None:
        """Lose everything that the adapter knows."""
        self.known = Applications(self.settings, self.mode, self.clock)
        self.connection = Connection(self.known, self.settings, (), "http://here")
        self.steerer = JobSteerer(self.decider, self.mode, cadence=Cadence(pause_s=0))

    def report(self, document: dict[str, Any]) -> dict[str, Any]:
        from loadmaster.platform.steering.spark.reports import Report

        return self.known.receive(Report.model_validate(document))

    def step(self) -> list[StepResult]:
        return [self.steerer.step(one, self.clock.now_s) for one in self.connection()]


def test_act_hands_out_a_plan_with_its_time_to_live() -> None:
    steered = Bench()
    assert steered.report(two_jobs()) == {}  # nothing decided yet: the driver keeps what it has
    (result,) = steered.step()
    assert result.result == "acted"
    steered.clock.now_s += 2
    plan = steered.report(two_jobs(sequence=2))["plan"]
    assert (plan["stages"], plan["limits"], plan["ttl_ms"]) == ([1], {"job-1": 2}, 8000)
    assert plan["reason"] == "toy: the last first"


@pytest.mark.parametrize("mode", ["watch", "shadow"])
def test_other_modes_clear_the_plan(mode: Mode) -> None:
    steered = Bench(mode)
    steered.report(two_jobs())
    (result,) = steered.step()
    assert result.result == "dry-run"
    assert len(result.commands) == 2  # the start of a job, and the plan
    assert steered.report(two_jobs(sequence=2)) == {"plan": None, "executors": None}


def test_a_plan_is_renewed_before_it_ends_and_not_counted_as_a_change() -> None:
    steered = Bench()
    steered.report(two_jobs())
    steered.step()
    id = steered.report(two_jobs(sequence=2))["plan"]["id"]
    for number in range(3, 20):
        steered.clock.now_s += 2
        (result,) = steered.step()
        assert result.result == "unchanged"
        plan = steered.report(two_jobs(sequence=number))["plan"]
        assert plan["id"] == id
        assert plan["ttl_ms"] > 4000


def test_a_silent_service_ends_the_plan() -> None:
    steered = Bench()
    steered.report(two_jobs())
    steered.step()
    steered.decider.is_silent = True
    given = []
    for number in range(2, 15):
        steered.clock.now_s += 1
        steered.step()
        given.append("plan" in steered.report(two_jobs(sequence=number)))
    assert given == [True] * 9 + [False] * 4
    steered.decider.is_silent = False
    steered.step()
    assert "plan" in steered.report(two_jobs(sequence=20))


def test_a_service_that_never_answers_leaves_spark_alone() -> None:
    steered = Bench()
    steered.decider.is_silent = True
    steered.report(two_jobs())
    (result,) = steered.step()
    assert (result.result, result.silent) == ("silent", "recommender")
    assert steered.report(two_jobs(sequence=2)) == {}


def test_a_new_adapter_derives_the_same_plan() -> None:
    steered = Bench()
    steered.report(two_jobs())
    steered.step()
    id = steered.report(two_jobs(sequence=2))["plan"]["id"]
    steered.restart()
    assert steered.report(two_jobs(sequence=3, plan=id)) == {}
    steered.step()
    assert steered.report(two_jobs(sequence=4))["plan"]["id"] == id


def test_two_applications_have_plans_of_their_own() -> None:
    steered = Bench()
    steered.report(two_jobs())
    other = report(job(5, stage(9)), application="local-2")
    steered.report(other)
    names = [result.application for result in steered.step()]
    assert names == ["shop", "shop@local-2"]
    assert steered.report(two_jobs(sequence=2))["plan"]["stages"] == [1]
    assert steered.report({**other, "sequence": 2})["plan"]["stages"] == [9]


def test_applications_are_bounded_and_forgotten() -> None:
    steered = Bench(applications_max=1, forget_s=30)
    steered.report(two_jobs())
    assert steered.report(report(application="local-2")) == {}
    assert len(steered.step()) == 1
    steered.clock.now_s += 31
    steered.step()
    assert steered.step() == []
    steered.report(report(application="local-2"))
    assert len(steered.step()) == 1


def test_an_older_report_does_not_replace_a_newer_one() -> None:
    steered = Bench()
    steered.report(two_jobs(sequence=5))
    steered.report(report(sequence=4))
    assert steered.step()[0].result == "acted"


def test_a_driver_that_only_reports_gets_a_note() -> None:
    steered = Bench("watch")
    steered.report(two_jobs(acts=False))
    assert any("only reports" in message for message in steered.step()[0].messages)


def test_a_driver_that_only_reports_refuses_plans() -> None:
    steered = Bench()
    steered.report(two_jobs(acts=False))
    assert steered.step()[0].result == "refused"
    ended = {"id": "job-1", "succeeded": True, "completion_ms": 1500.0, "work_ms": 600.0}
    assert steered.report(report(sequence=2, acts=False, ended=[ended])) == {}
    steered.step()
    assert not steered.decider.feedbacks  # no decision was carried out


def test_outcomes_are_sent_once_for_jobs_that_a_decision_started() -> None:
    steered = Bench()
    steered.report(two_jobs())
    steered.step()
    ended = {"id": "job-1", "succeeded": True, "completion_ms": 1500.0, "work_ms": 600.0}
    failed = {**ended, "id": "job-0", "succeeded": False}
    for number in range(2, 5):
        steered.report(report(sequence=number, ended=[ended, failed]))
        steered.step()
    assert steered.decider.feedbacks == [("d1", "job-1")]


def test_an_application_that_is_over_is_stepped_once_more() -> None:
    steered = Bench()
    steered.report(two_jobs())
    steered.step()
    steered.report(report(sequence=2, over=True))
    assert steered.step()[0].result == "unchanged"
    assert steered.step() == []


def test_decisions_are_requested_when_tasks_end_not_when_they_start() -> None:
    steered = Bench()
    document = report(job(0, stage(0, 8)))
    steered.report(document)
    steered.step()
    document["jobs"][0]["stages"][0]["started"] = 3
    steered.report({**document, "sequence": 2})
    steered.step()
    assert steered.decider.asked == 1
    document["jobs"][0]["stages"][0]["finished"] = 1
    steered.report({**document, "sequence": 3})
    steered.step()
    assert steered.decider.asked == 2


def test_plans_are_no_commands_to_the_engine() -> None:
    steered = Bench()

    class Rotating(Decider):
        """Another order in each decision."""

        def recommend(self, application: str, state: Mapping[str, Any]) -> Recommendation:
            self.asked += 1
            first = self.asked % len(state["jobs"])
            given = [
                {"job": one["id"], "stage": one["stages"][0]["id"], "executors": 1, "limit": 1}
                for one in (*state["jobs"][first:], *state["jobs"][:first])
            ]
            return Recommendation({"assignments": given}, "in turn", "toy", f"d{self.asked}")

    limits = Limits(commands_per_minute=1)
    steered.steerer = JobSteerer(Rotating(), "act", limits, Cadence(pause_s=0))
    jobs, started = [job(number, stage(number)) for number in range(40)], 0
    for number in range(200):
        jobs[0]["stages"][0]["finished"] = number % 4
        steered.report(report(*jobs, sequence=number))
        (result,) = steered.step()
        assert not any("limit" in message for message in result.messages)
        started += sum("may start" in command for command in result.commands)
        steered.clock.now_s += 0.5
    assert started == 40


def test_a_rule_of_the_endpoint_puts_the_short_job_first() -> None:
    steered = Bench()
    steered.steerer = JobSteerer(find_recommender(["srpt-caps"], SPEC.endpoint), "act")
    steered.report(two_jobs())
    (result,) = steered.step()
    assert result.result == "acted", result.line()
    plan = steered.report(two_jobs(sequence=2))["plan"]
    assert plan["stages"][0] == 1


@contextmanager
def listening(mode: Mode = "act", **settings: Any) -> Iterator[Connection]:
    with connect(SparkSettings(port=0, **settings), (), mode) as connection:
        yield connection


@contextmanager
def stepped(connection: Connection, decider: Decider, every_s: float) -> Iterator[list[StepResult]]:
    """The loop of steering, in a thread."""
    stopped, seen = threading.Event(), list[StepResult]()
    steerer = JobSteerer(decider, "act", cadence=Cadence(pause_s=0))
    thread = threading.Thread(
        target=steer, args=(connection, steerer, seen.append, every_s, False, stopped)
    )
    thread.start()
    try:
        while not connection.known.awaits_news:
            time.sleep(0.01)
        yield seen
    finally:
        stopped.set()
        thread.join()


def test_the_reply_to_a_report_has_the_plan_decided_from_it() -> None:
    decider = Decider()
    with listening(first_report_s=0) as connection, stepped(connection, decider, 60) as seen:
        for number in range(1, 6):
            document = report(job(number, stage(10 * number)), sequence=number)
            _, reply = post(connection.url, document)
            assert reply["plan"]["stages"] == [10 * number]
        other = report(job(9, stage(90)), application="local-2", name="other")
        assert post(connection.url, other)[1]["plan"]["stages"] == [90]
        assert [one.application for one in seen if one.result == "acted"][-1] == "other"
        # Without an answer to a request the reply is that of before, and in time for the driver.
        decider.is_silent = True
        began_s = time.monotonic()
        document = report(job(6, stage(60)), sequence=6)
        assert post(connection.url, document)[1]["plan"]["stages"] == [50]
        assert time.monotonic() - began_s < 1


def test_a_reply_does_not_wait_for_a_recommender_that_hangs() -> None:
    free = threading.Event()

    class Hanging(Decider):
        def recommend(self, application: str, state: Mapping[str, Any]) -> Recommendation:
            free.wait(10)
            return super().recommend(application, state)

    with listening(first_report_s=0) as connection, stepped(connection, Hanging(), 60):
        began_s = time.monotonic()
        assert post(connection.url, two_jobs()) == (200, {})
        assert time.monotonic() - began_s < 1  # the time that a driver waits
        free.set()
        assert post(connection.url, two_jobs(sequence=2))[1]["plan"]["stages"] == [1]


def test_http_refuses_what_is_malformed_in_one_line() -> None:
    with listening() as connection:
        for body in (b"{", b"{}", {**two_jobs(), "version": 9}, {**two_jobs(), "slots": "four"}):
            status, document = post(connection.url, body)
            assert status == 400
            assert "\n" not in document["error"]
        assert post(connection.url, two_jobs(), kind="text/plain")[0] == 415
        assert post(connection.url, two_jobs(), path="/elsewhere")[0] == 404
        assert post(connection.url, two_jobs()) == (200, {})
        assert [one.application for one in connection()] == ["shop"]


def test_a_token_is_required_where_one_is_set(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")
    with listening(token_file=file) as connection:
        assert post(connection.url, two_jobs())[0] == 401
        assert post(connection.url, two_jobs(), token="other")[0] == 401
        assert post(connection.url, two_jobs(), token="secret")[0] == 200


def test_names_choose_applications() -> None:
    settings = SparkSettings(port=0)
    with connect(settings, ("local-2",), "watch") as connection:
        post(connection.url, two_jobs())
        post(connection.url, two_jobs(application="local-2", name="other"))
        assert [one.application for one in connection()] == ["other"]


def test_no_report_at_the_start_is_a_silent_engine() -> None:
    with listening(first_report_s=0) as connection:
        with pytest.raises(SilentError) as fault:
            connection()
        assert connection.url in str(fault.value)
        assert connection() == []


def test_an_application_that_is_named_and_missing_is_a_silent_engine() -> None:
    with connect(SparkSettings(port=0, first_report_s=0), ("shop2",), "watch") as connection:
        post(connection.url, two_jobs())
        with pytest.raises(SilentError) as fault:
            connection()
        assert str(fault.value) == "shop2 has not reported; expected one of: shop"


def test_bad_settings(tmp_path: Path) -> None:
    for values in ({"ttl": 3}, {"ttl_s": 0}, {"limit_factor": 0.5}, {"port": -1}):
        with pytest.raises(InputError):
            build_settings(SparkSettings, values)
    with pytest.raises(InputError), connect(SparkSettings(host="0.0.0.0"), (), "watch"):
        pass
    missing = SparkSettings(port=0, token_file=tmp_path / "none")
    with pytest.raises(InputError), connect(missing, (), "watch"):
        pass
