"""Steps of an engine of jobs: modes, cadence, limits, refusals, silence, feedback."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings
from loadmaster.platform.steering.core import (
    Mode,
    Recommendation,
    RefusedError,
    SilentError,
    StepResult,
)
from loadmaster.platform.steering.jobs import (
    START,
    Cadence,
    Command,
    JobSteerer,
    Limits,
    Observation,
)


class Queue:
    """A cluster in memory that runs one job at a time."""

    application = "toy"

    def __init__(self, *waiting: str) -> None:
        self.waiting, self.running = list(waiting), list[str]()
        self.outcomes: list[tuple[str, Mapping[str, Any]]] = []
        self.started = frozenset[str]()
        self.renewed = 0
        self.refuses, self.silent = set[str](), set[str]()
        self.published: list[StepResult] = []

    def observe(self, now_s: float) -> Observation:
        if "observe" in self.silent:
            raise SilentError("engine", "no answer")
        outcomes, self.outcomes = self.outcomes, []
        upkeep = [Command("renew", "", "renew", self._renew, routine=True)]
        state = {"waiting": tuple(self.waiting), "running": tuple(self.running)}
        empty = not self.waiting and not self.running
        digest = tuple(self.waiting), tuple(self.running)
        return Observation(None if empty else state, digest, upkeep, outcomes, self.started)

    def commands(self, observation: Observation, decision: Mapping[str, Any]) -> Sequence[Command]:
        found = [
            Command("stop", job, f"stop {job}", partial(self._move, job, False), disruptive=True)
            for job in decision.get("stop", ())
            if job in self.running
        ]
        return found + [
            Command(START, job, f"start {job}", partial(self._move, job, True))
            for job in decision.get("start", ())
            if job in self.waiting
        ]

    def publish(self, observation: Observation, result: StepResult) -> None:
        self.published.append(result)

    def _renew(self) -> None:
        self.renewed += 1

    def _move(self, job: str, starts: bool) -> None:
        if job in self.silent:
            raise SilentError("engine", "no answer")
        if job in self.refuses:
            raise RefusedError("not allowed")
        there, here = (self.waiting, self.running) if starts else (self.running, self.waiting)
        there.remove(job)
        here.append(job)


class Decider:
    """Decides as it is set."""

    name = "decider"

    def __init__(self, **decision: Any) -> None:
        self.decision: dict[str, Any] | None = decision
        self.requests = 0
        self.outcomes: list[tuple[str | None, Any]] = []

    def recommend(self, application: str, state: Mapping[str, Any]) -> Recommendation:
        self.requests += 1
        if self.decision is None:
            raise SilentError("recommender", "service down")
        return Recommendation(self.decision, "because", "decider", f"id-{self.requests}")

    def feedback(self, application: str, id: str | None, outcome: Mapping[str, Any]) -> None:
        self.outcomes.append((id, outcome))


def test_act_starts_jobs_once() -> None:
    queue, decider = Queue("a", "b"), Decider(start=["a"])
    steerer = JobSteerer(decider, "act")
    first = steerer.step(queue, 0.0)
    assert (first.result, first.commands, queue.running) == ("acted", ("start a",), ["a"])
    second = steerer.step(queue, 1.0)
    assert (second.result, second.commands) == ("unchanged", ())
    assert queue.renewed == 2
    assert first.line() == "toy acted: start a; because"


@pytest.mark.parametrize("mode", ["watch", "shadow"])
def test_nothing_is_done_without_act(mode: Mode) -> None:
    queue = Queue("a")
    result = JobSteerer(Decider(start=["a"]), mode).step(queue, 0.0)
    assert (result.result, result.commands) == ("dry-run", ("start a",))
    assert (queue.running, queue.renewed) == ([], 0)


def test_decision_is_requested_on_changes_and_after_a_time() -> None:
    queue, decider = Queue("a", "b"), Decider(start=[])
    steerer = JobSteerer(decider, "act", cadence=Cadence(pause_s=2, refresh_s=10))
    for now_s in (0.0, 1.0, 5.0):
        steerer.step(queue, now_s)
    assert decider.requests == 1
    queue.waiting.append("c")
    steerer.step(queue, 6.0)
    queue.waiting.append("d")
    steerer.step(queue, 7.0)  # within the pause
    assert decider.requests == 2
    steerer.step(queue, 8.0)
    steerer.step(queue, 18.0)
    assert decider.requests == 4


def test_no_request_where_nothing_is_to_decide() -> None:
    decider = Decider(start=["a"])
    assert JobSteerer(decider, "act").step(Queue(), 0.0).result == "unchanged"
    assert decider.requests == 0


def test_silent_service_leaves_the_last_decision_for_a_time_only() -> None:
    queue, decider = Queue("a", "b"), Decider(start=["a", "b"])
    queue.refuses = {"b"}
    steerer = JobSteerer(decider, "act", cadence=Cadence(refresh_s=10, stale_s=45))
    steerer.step(queue, 0.0)
    decider.decision = None
    queue.waiting = ["a", "b"]  # another change, so that a is started again
    queue.running = []
    early = steerer.step(queue, 20.0)
    assert (early.result, early.silent, early.commands) == ("silent", "recommender", ("start a",))
    queue.waiting, queue.running = ["a", "b"], []
    late = steerer.step(queue, 60.0)
    assert (late.silent, late.commands, queue.running) == ("recommender", (), [])


def test_silence_lasts_until_the_next_answer() -> None:
    queue, decider = Queue("a", "b"), Decider(start=["a"])
    steerer = JobSteerer(decider, "act", cadence=Cadence(refresh_s=10, stale_s=45))
    steerer.step(queue, 0.0)
    queue.waiting.append("c")
    decider.decision = None
    steerer.step(queue, 20.0)
    for now_s in (20.2, 60.0):  # not asked again yet; and the last decision is stale
        result = steerer.step(queue, now_s)
        assert (result.result, result.silent) == ("silent", "recommender")
    decider.decision = {"start": ["b"]}
    assert steerer.step(queue, 60.1).degraded
    assert steerer.step(queue, 75.0).result == "acted"
    decider.decision = None
    queue.waiting, queue.running = [], []
    assert steerer.step(queue, 76.0).result == "unchanged"  # there is nothing to decide


def test_decision_has_to_outlast_the_requests() -> None:
    with pytest.raises(InputError, match="refresh_s"):
        build_settings(Cadence, {"refresh_s": 60})


def test_refused_command_is_tried_again_later_and_others_go_on() -> None:
    queue, decider = Queue("a", "b"), Decider(start=["a", "b"])
    queue.refuses = {"a"}
    limits = Limits(back_off_s=5, back_off_max_s=8)
    steerer = JobSteerer(decider, "act", limits)
    first = steerer.step(queue, 0.0)
    assert (first.result, first.degraded, queue.running) == ("refused", True, ["b"])
    assert steerer.step(queue, 3.0).result == "unchanged"
    assert steerer.step(queue, 6.0).result == "refused"
    assert steerer.step(queue, 13.0).result == "unchanged"  # 8 s, not 10
    queue.refuses = set()
    assert steerer.step(queue, 14.5).commands == ("start a",)


def test_limit_of_commands_a_minute() -> None:
    queue = Queue("a", "b", "c")
    limits = Limits(commands_per_minute=3)
    steerer = JobSteerer(Decider(start=["a", "b", "c"]), "act", limits)
    assert steerer.step(queue, 0.0).commands == ("start a", "start b")  # one was the renewal
    assert steerer.step(queue, 30.0).commands == ()
    assert steerer.step(queue, 61.0).commands == ("start c",)


def test_limit_of_stops_of_a_job() -> None:
    queue, decider = Queue("a"), Decider(start=["a"], stop=["a"])
    steerer = JobSteerer(decider, "act", Limits(stops_per_job_per_hour=1))
    shown = [steerer.step(queue, 2.0 * k).commands for k in range(4)]
    assert shown == [("start a",), ("stop a",), ("start a",), ()]
    assert steerer.step(queue, 3700.0).commands == ("stop a",)


def test_engine_that_turns_silent_ends_the_step() -> None:
    queue = Queue("a", "b")
    queue.silent = {"a"}
    result = JobSteerer(Decider(start=["a", "b"]), "act").step(queue, 0.0)
    assert (result.result, result.silent, queue.running) == ("silent", "engine", [])
    queue.silent = {"observe"}
    assert JobSteerer(Decider(start=["a"]), "act").step(queue, 1.0).silent == "engine"


def test_outcomes_go_to_the_decision_that_started_the_job() -> None:
    queue, decider = Queue("a", "b"), Decider(start=["a"])
    steerer = JobSteerer(decider, "act")
    steerer.step(queue, 0.0)
    queue.running, queue.outcomes = [], [("a", {"completion_s": 5}), ("x", {"completion_s": 6})]
    steerer.step(queue, 5.0)
    assert decider.outcomes == [("id-1", {"completion_s": 5})]


def test_shadow_compares_starts_and_reports_outcomes_without_an_id() -> None:
    queue, decider = Queue("a", "b", "c"), Decider(start=["a", "b"])
    steerer = JobSteerer(decider, "shadow")
    assert steerer.step(queue, 0.0).agreement is None
    queue.waiting, queue.started = ["a"], frozenset({"b", "c"})
    queue.outcomes = [("b", {"completion_s": 5})]
    assert steerer.step(queue, 1.0).agreement == pytest.approx(1 / 3)
    assert decider.outcomes == [(None, {"completion_s": 5})]


def test_restarted_steerer_goes_on_from_what_is_seen() -> None:
    queue, decider = Queue("a", "b"), Decider(start=["a", "b"])
    queue.silent = {"b"}  # ends after the first command
    JobSteerer(decider, "act").step(queue, 0.0)
    queue.silent = set()
    assert JobSteerer(decider, "act").step(queue, 1.0).commands == ("start b",)
    assert queue.running == ["a", "b"]
