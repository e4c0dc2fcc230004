"""A step of steering: dry run, limits, silence, the last safe plan, feedback, memory."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from loadmaster.platform.steering.core import (
    Action,
    Measurement,
    Memory,
    Plan,
    Recommendation,
    RefusedError,
    SilentError,
    Steerer,
    StepResult,
    Target,
    restore_memory,
)
from loadmaster.serving.decisions.guard import GuardSettings

BOUNDS = {"replicas": (1.0, 10.0), "cpu_m": (100.0, 2000.0)}


class Cluster:
    """An engine in memory."""

    application = "shop/cart"

    def __init__(self, **guard: Any) -> None:
        self.plan: dict[str, float] = {"replicas": 4.0, "cpu_m": 500.0}
        self.guard = GuardSettings(**guard)
        self.memory: Any = None  # as JSON, as a cluster keeps it
        self.held, self.refusal, self.safe = "", "", True
        self.silent: set[str] = set()
        self.floors: dict[str, float] = {}
        self.acted: list[Plan] = []
        self.published: list[StepResult] = []

    def _check(self, part: str) -> None:
        if part in self.silent:
            raise SilentError("metrics" if part == "measure" else "engine", f"no {part}")

    def read(self) -> Target:
        self._check("read")
        memory = restore_memory(self.memory)
        return Target("shop/cart", dict(self.plan), BOUNDS, self.guard, self.held, memory)

    def measure(self, target: Target) -> Measurement:
        self._check("measure")
        outcome = {"p99_s": 0.1}
        return Measurement({"application": "shop/cart"}, self.safe, outcome, self.floors)

    def plan_of(self, decision: Mapping[str, Any]) -> Mapping[str, Any]:
        return decision

    def check(self, target: Target) -> str:
        self._check("check")
        return self.refusal

    def act(self, target: Target, plan: Plan) -> Action:
        self._check("act")
        self.acted.append(plan)
        self.plan = dict(plan)
        return Action("acted")

    def publish(self, target: Target, result: StepResult) -> None:
        self._check("publish")
        self.memory = json.loads(json.dumps(target.memory.record()))
        self.published.append(result)


class Fixed:
    """A recommender that returns one plan."""

    name = "fixed"

    def __init__(self, **plan: float) -> None:
        self.plan: dict[str, float] | None = plan
        self.outcomes: list[tuple[str | None, Mapping[str, Any]]] = []

    def recommend(self, application: str, state: Mapping[str, Any]) -> Recommendation:
        if self.plan is None:
            raise SilentError("recommender", "no answer")
        return Recommendation(self.plan, "because", "fixed", "id-1")

    def feedback(self, application: str, id: str | None, outcome: Mapping[str, Any]) -> None:
        self.outcomes.append((id, outcome))


def test_dry_run_is_the_default_and_acts_on_nothing() -> None:
    cluster, recommender = Cluster(), Fixed(replicas=6, cpu_m=600)
    result = Steerer(recommender, mode="watch").step(cluster, 0.0)
    assert (result.result, result.reason, result.degraded) == ("dry-run", "because", False)
    assert result.wanted == {"replicas": 6, "cpu_m": 600}
    assert cluster.acted == []
    Steerer(recommender, mode="watch").step(cluster, 60.0)
    assert recommender.outcomes == []  # nothing was carried out that could have an outcome


def test_shadow_compares_with_the_engine_and_reports_its_own_outcomes() -> None:
    cluster, recommender = Cluster(), Fixed(replicas=6, cpu_m=1000)
    steerer = Steerer(recommender, mode="shadow")
    assert steerer.step(cluster, 0.0).agreement is None
    cluster.plan["replicas"] = 6.0  # by the engine's own rule
    assert steerer.step(cluster, 60.0).agreement == 0.75  # of cpu_m: 0.5
    assert cluster.acted == []
    assert recommender.outcomes == [(None, {"p99_s": 0.1})] * 2


def test_act_acts_and_reports_the_outcome_of_the_next_step() -> None:
    cluster, recommender = Cluster(), Fixed(replicas=6, cpu_m=600)
    steerer = Steerer(recommender, mode="act")
    assert steerer.step(cluster, 0.0).result == "acted"
    assert cluster.plan == {"replicas": 6, "cpu_m": 600}
    assert recommender.outcomes == []
    steerer.step(cluster, 60.0)
    assert recommender.outcomes == [("id-1", {"p99_s": 0.1})]


def test_decision_that_was_limited_has_no_outcome() -> None:
    cluster, recommender = Cluster(), Fixed(replicas=99, cpu_m=600)
    steerer = Steerer(recommender, mode="act")
    steerer.step(cluster, 0.0)
    steerer.step(cluster, 60.0)
    assert recommender.outcomes == []


def test_bounds_are_hard() -> None:
    cluster = Cluster()
    result = Steerer(Fixed(replicas=99, cpu_m=1), mode="act").step(cluster, 0.0)
    assert cluster.plan == {"replicas": 10, "cpu_m": 100}
    assert len(result.messages) == 2


def test_floor_prevents_a_fall_and_never_exceeds_a_bound() -> None:
    cluster = Cluster()
    cluster.floors = {"cpu_m": 5000.0}
    Steerer(Fixed(replicas=4, cpu_m=200), mode="act").step(cluster, 0.0)
    assert cluster.plan["cpu_m"] == 2000


def test_paused_application_is_held() -> None:
    cluster = Cluster()
    cluster.held = "paused"
    result = Steerer(Fixed(replicas=6, cpu_m=600), mode="act").step(cluster, 0.0)
    assert (result.result, cluster.acted, result.degraded) == ("held", [], False)
    assert result.wanted["replicas"] == 6  # still recommended


def test_rival_is_refused_only_where_it_would_act() -> None:
    cluster = Cluster()
    cluster.refusal = "an HPA moves it"
    degraded = Steerer(Fixed(replicas=6, cpu_m=600), mode="act").step(cluster, 0.0)
    quiet = Steerer(Fixed(replicas=6, cpu_m=600), mode="watch").step(cluster, 0.0)
    assert (degraded.result, degraded.degraded, cluster.acted) == ("refused", True, [])
    assert (quiet.result, quiet.degraded) == ("dry-run", False)
    assert any("an HPA" in text for text in quiet.messages)


def test_action_that_raises_a_refusal_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(target: Target, plan: Plan) -> Action:
        raise RefusedError("409: not now")

    cluster = Cluster()
    monkeypatch.setattr(cluster, "act", refuse)
    result = Steerer(Fixed(replicas=6, cpu_m=600), mode="act").step(cluster, 0.0)
    assert (result.result, result.silent, result.degraded) == ("refused", None, True)
    assert "409: not now" in result.messages
    assert cluster.memory["decisionId"] is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0, -1, None, "3", True])
def test_plan_that_is_no_number_is_silence(value: Any) -> None:
    cluster = Cluster()
    result = Steerer(Fixed(replicas=value, cpu_m=600), mode="act").step(cluster, 0.0)
    assert (result.silent, cluster.acted) == ("recommender", [])


def test_stabilisation_delays_a_fall_across_restarts() -> None:
    cluster = Cluster(stabilisation_s=300)
    Steerer(Fixed(replicas=8, cpu_m=500), mode="act").step(cluster, 0.0)
    wanted = [  # a new steerer each time: the history is the cluster's
        Steerer(Fixed(replicas=2, cpu_m=500), mode="act").step(cluster, at).wanted["replicas"]
        for at in (60.0, 290.0, 310.0)
    ]
    assert wanted == [8, 8, 2]


def test_flap_budget_holds() -> None:
    cluster = Cluster(flaps=2)
    values = []
    for step in range(6):
        recommender = Fixed(replicas=8 if step % 2 else 2, cpu_m=500)
        Steerer(recommender, mode="act").step(cluster, 60.0 * step)
        values.append(cluster.plan["replicas"])
    assert values == [2, 8, 2, 2, 2, 2]


@pytest.mark.parametrize("part", ["metrics", "recommender"])
def test_silence_holds_then_raises_to_the_last_safe_plan(part: str) -> None:
    cluster, recommender = Cluster(), Fixed(replicas=6, cpu_m=900)
    steerer = Steerer(recommender, mode="act")
    steerer.step(cluster, 0.0)
    steerer.step(cluster, 60.0)  # 6 replicas with 900 are safe
    cluster.safe = False
    recommender.plan = {"replicas": 2, "cpu_m": 1500}
    steerer.step(cluster, 120.0)
    if part == "metrics":
        cluster.silent = {"measure"}
    else:
        recommender.plan = None
    plans = []
    for step in range(4):
        result = steerer.step(cluster, 180.0 + 60 * step)
        assert (result.result, result.silent, result.degraded) == ("silent", part, True)
        plans.append(dict(cluster.plan))
    low = {"replicas": 2, "cpu_m": 1500}
    safe = {"replicas": 6, "cpu_m": 1500}  # nothing falls
    assert plans == [low, low, safe, safe]


def test_silence_in_a_dry_run_and_while_paused_changes_nothing() -> None:
    for mode, held in (("watch", ""), ("shadow", ""), ("act", "paused")):
        cluster, recommender = Cluster(), Fixed(replicas=6, cpu_m=900)
        cluster.memory = Memory({"replicas": 9.0, "cpu_m": 900.0}, silent_steps=5).record()
        cluster.held, cluster.silent = held, {"measure"}
        result = Steerer(recommender, mode).step(cluster, 0.0)
        assert (result.degraded, cluster.acted) == (True, [])


def test_silent_engine_is_degraded_and_nothing_else_happens() -> None:
    cluster = Cluster()
    cluster.silent = {"read"}
    result = Steerer(Fixed(replicas=6, cpu_m=900), mode="act").step(cluster, 0.0)
    assert (result.silent, cluster.acted, cluster.published) == ("engine", [], [])


@pytest.mark.parametrize("part", ["act", "check"])
def test_engine_that_turns_silent_while_acting_is_degraded(part: str) -> None:
    cluster = Cluster()
    cluster.silent = {part}
    result = Steerer(Fixed(replicas=6, cpu_m=900), mode="act").step(cluster, 0.0)
    assert (result.result, result.silent) == ("silent", "engine")
    assert cluster.memory["decisionId"] is None


def test_result_that_is_not_published_is_degraded() -> None:
    cluster = Cluster()
    cluster.silent = {"publish"}
    result = Steerer(Fixed(replicas=6, cpu_m=900), mode="act").step(cluster, 0.0)
    assert (result.result, result.silent, result.degraded) == ("acted", "engine", True)


@pytest.mark.parametrize(
    "record", [None, 3, [], {"safePlan": 7}, {"safePlan": {"a": "x"}}, {"silentSteps": "many"}]
)
def test_damaged_memory_is_an_empty_one(record: Any) -> None:
    assert restore_memory(record) == Memory()


def test_damaged_history_of_the_guard_is_dropped() -> None:
    cluster = Cluster()
    cluster.memory = Memory(histories={"replicas": ["x"]}).record()
    result = Steerer(Fixed(replicas=6, cpu_m=900), mode="act").step(cluster, 0.0)
    assert result.result == "acted"


def test_memory_is_the_same_after_json() -> None:
    memory = Memory({"replicas": 2.0}, 1, True, "id", {"replicas": [[], [], 1]})
    assert restore_memory(json.loads(json.dumps(memory.record()))) == memory
    assert restore_memory(replace(memory).record()) == memory


def test_line_names_changes_and_reason() -> None:
    line = Steerer(Fixed(replicas=6, cpu_m=500), mode="act").step(Cluster(), 0.0).line()
    assert line == "shop/cart acted: replicas 4 -> 6; because"
