"""Steps of a Flink job against a fake REST interface: acting, waiting, faults, rolling back."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.platform.steering.core import Mode, Recommendation, SilentError, Steerer, StepResult
from loadmaster.platform.steering.flink.client import FlinkClient
from loadmaster.platform.steering.flink.job import FlinkJob
from loadmaster.platform.steering.flink.quantities import Slots, fit_to_slots
from loadmaster.platform.steering.flink.settings import FlinkSettings
from loadmaster.platform.steering.recommenders import find_recommender
from loadmaster.serving.systems.sure.schema import SureOutcome, SureState
from tests.platform.steering.flink.rest_server import (
    ENRICH,
    NAMES,
    PARSE,
    RESTART_S,
    SINK,
    SOURCE,
    FlinkServer,
)

ENDPOINT = "loadmaster.serving.systems.sure.system:ENDPOINT"
SOURCE_NAME, PARSE_NAME, ENRICH_NAME, SINK_NAME = NAMES


class Wanted:
    """A recommender of one plan of parse and enrich, which can be silent."""

    name = "wanted"

    def __init__(self, parse: int, enrich: int) -> None:
        self.parse, self.enrich, self.silent = parse, enrich, False
        self.states: list[Mapping[str, Any]] = []
        self.outcomes: list[tuple[str | None, Mapping[str, Any]]] = []

    def recommend(self, application: str, state: Mapping[str, Any]) -> Recommendation:
        if self.silent:
            raise SilentError("recommender", "service: connection refused")
        SureState.model_validate(state).check()
        self.states.append(state)
        plan = {SOURCE_NAME: 1, PARSE_NAME: self.parse, ENRICH_NAME: self.enrich, SINK_NAME: 1}
        decision = {"act": True, "parallelism": plan, "requirements": {}}
        return Recommendation(decision, "as the test wants", "test", f"id{len(self.states)}")

    def feedback(self, application: str, id: str | None, outcome: Mapping[str, Any]) -> None:
        SureOutcome.model_validate(outcome)
        self.outcomes.append((id, outcome))


class Steered:
    """One job of the fake, an adapter and its recommender."""

    def __init__(self, flink: FlinkServer, url: str) -> None:
        self.flink, self.url = flink, url
        self.wanted = Wanted(2, 2)
        self.clients: list[FlinkClient] = []
        self.start()

    def start(self, mode: Mode = "act", **settings: Any) -> None:
        """A new adapter, as after `kill -9`."""
        given = {"cooldown_s": 30.0, "deadline_s": 2.0, **settings}
        client = FlinkClient(self.url, None, given["deadline_s"])
        self.clients.append(client)
        self.job = FlinkJob(
            client, self.flink.job_id, "clicks", FlinkSettings(**given),
            self.flink.clock, self.flink.advance,
        )  # fmt: skip
        self.steerer = Steerer(self.wanted, mode)

    def step(self, after_s: float = 20.0) -> StepResult:
        self.flink.advance(after_s)
        return self.steerer.step(self.job, self.flink.now_s)

    def steps(self, seconds: float) -> list[StepResult]:
        end, found = self.flink.now_s + seconds, []
        while self.flink.now_s < end:
            found.append(self.step())
        return found


@pytest.fixture
def steered(flink: FlinkServer, url: str) -> Iterator[Steered]:
    steered = Steered(flink, url)
    yield steered
    for client in steered.clients:
        client.close()


def bounds(parse: int, enrich: int) -> dict[str, Any]:
    plan = {SOURCE: 1, PARSE: parse, ENRICH: enrich, SINK: 1}
    return {v: {"parallelism": {"lowerBound": 1, "upperBound": p}} for v, p in plan.items()}


def test_first_step_waits_for_rates(steered: Steered) -> None:
    assert steered.step().result == "held"
    assert steered.step().result == "unchanged"


def test_watch_requests_nothing(steered: Steered) -> None:
    steered.start("watch")
    steered.wanted.parse = 4
    steered.step()
    result = steered.step()
    assert (result.result, result.degraded) == ("dry-run", False)
    assert result.plan[PARSE_NAME] == 2
    assert result.wanted[PARSE_NAME] == 4
    assert steered.flink.puts == []
    assert not any(one.startswith("PUT") for one in steered.flink.requests)


def test_shadow_reports_outcomes_and_compares(steered: Steered) -> None:
    steered.start("shadow")
    steered.wanted.parse = 4
    results = steered.steps(80)
    assert steered.flink.puts == []
    assert results[-1].agreement == pytest.approx((1 + 0.5 + 1 + 1) / 4)
    assert steered.wanted.outcomes[-1][0] is None
    outcome = steered.wanted.outcomes[-1][1]
    assert outcome["latency_s"] == pytest.approx(0.0, abs=1.0)
    # 800 records/s: 0.008 of the source, 0.4 of parse, 0.2 of enrich, by instances.
    assert outcome["utilisation"] == pytest.approx((0.008 + 2 * 0.4 + 2 * 0.2 + 0.008) / 6, rel=0.1)


def test_act_sets_all_bounds_once(steered: Steered) -> None:
    steered.step()
    steered.wanted.parse, steered.wanted.enrich = 3, 1
    assert steered.step().result == "acted"
    assert steered.flink.puts == [bounds(3, 1)]
    results = steered.steps(120)
    assert [one.result for one in results][-1] == "unchanged"
    assert "held" in [one.result for one in results]
    assert steered.flink.parallelism == {SOURCE: 1, PARSE: 3, ENRICH: 1, SINK: 1}
    assert steered.flink.puts == [bounds(3, 1)]


def test_state_is_by_counters(steered: Steered) -> None:
    steered.step()
    steered.step()
    snapshots = steered.wanted.states[-1]["snapshots"]
    assert snapshots["busy_ms_per_s"][-1] == pytest.approx([8, 400, 200, 8], rel=0.05)
    assert snapshots["records_out_per_s"][-1][0] == pytest.approx(800, rel=0.02)


def test_restart_is_taken_from_the_history(steered: Steered) -> None:
    steered.step()
    steered.wanted.parse = 3
    steered.step()
    steered.steps(80)
    state = steered.wanted.states[-1]
    assert state["restart_minutes"] == pytest.approx(1.0 / 60)
    assert 0.5 < state["minutes_since_restart"] < 2


def test_length_of_a_restart_has_the_restoring_of_state(steered: Steered) -> None:
    steered.flink.vertex_metrics = True
    steered.step()
    steered.wanted.parse = 3
    steered.step()
    steered.steps(80)
    length = steered.wanted.states[-1]["restart_minutes"]
    assert length == pytest.approx((1.0 + RESTART_S) / 60, abs=0.6 / 60)
    steered.steps(1_200)
    assert steered.wanted.states[-1]["restart_minutes"] == length


def test_load_floor_raises_before_a_recommendation(steered: Steered) -> None:
    steered.start(load_floor=0.9, load_floor_lead_s=480.0)
    steered.steps(300)
    assert steered.flink.puts == []
    for _ in range(20):  # two instances of parse process 2,000 records/s
        steered.flink.rate += 70.0
        steered.steps(60)
        if steered.flink.puts:
            break
    assert 1_650 < steered.flink.rate < 2_100
    assert steered.flink.pending < 2 * steered.flink.rate
    raised = steered.flink.parallelism
    # 480 s later by the trend, of which 0.9 are busy
    expected = (steered.flink.rate + 8 * 70) / 0.9 / 1000
    assert raised[PARSE] == pytest.approx(expected, abs=1.0)
    assert raised[ENRICH] == 2
    steered.wanted.parse = 1
    assert [one for one in steered.steps(300) if one.result == "acted"] == []
    assert steered.flink.parallelism[PARSE] >= 2


def test_history_is_not_needed(steered: Steered) -> None:
    steered.flink.history = False
    steered.step()
    steered.wanted.parse = 3
    assert steered.step().result == "acted"
    steered.steps(80)
    state = steered.wanted.states[-1]
    assert state["restart_minutes"] is None
    assert 0.5 < state["minutes_since_restart"] < 2


def test_cooldown_holds(steered: Steered) -> None:
    steered.start(cooldown_s=200)
    steered.step()
    steered.wanted.parse = 3
    steered.step()
    steered.steps(60)
    steered.wanted.parse = 4
    result = steered.step()
    assert (result.result, result.wanted[PARSE_NAME]) == ("held", 4)
    assert len(steered.flink.puts) == 1
    steered.steps(160)
    assert steered.flink.puts[-1] == bounds(4, 2)


def test_cooldown_is_at_least_that_of_flink(steered: Steered) -> None:
    steered.flink.config = {
        "jobmanager.adaptive-scheduler.executing.cooldown-after-rescaling": "5 min"
    }
    steered.flink.started_s = steered.flink.now_s - 100
    steered.wanted.parse = 3
    steered.start(cooldown_s=0)
    steered.step()
    assert steered.step().result == "held"
    steered.steps(200)
    assert steered.flink.puts == [bounds(3, 2)]


def test_refusal_is_not_repeated_at_once(steered: Steered) -> None:
    steered.step()
    steered.wanted.parse = 3
    steered.flink.refusal = 400, "The request is incomplete"
    result = steered.step()
    assert (result.result, result.degraded) == ("refused", True)
    assert "The request is incomplete" in result.messages[-1]
    assert "RestHandlerException" not in result.messages[-1]
    assert "\n" not in result.line()
    assert steered.step().result == "refused"
    assert len(steered.flink.puts) == 1
    steered.steps(60)
    assert len(steered.flink.puts) == 2
    steered.steps(60)  # the pause is twice as long
    assert len(steered.flink.puts) == 2
    steered.flink.refusal = None
    steered.steps(120)
    assert steered.flink.parallelism[PARSE] == 3


@pytest.mark.parametrize("fault", ["scheduler", "autoscaler"])
def test_jobs_that_cannot_be_steered(steered: Steered, fault: str) -> None:
    if fault == "scheduler":
        steered.flink.scheduler = "Default"
    else:
        steered.flink.config["job.autoscaler.enabled"] = "true"
    steered.wanted.parse = 3
    steered.step()
    assert steered.step().result == "refused"
    assert steered.flink.puts == []


def test_rest_is_down(steered: Steered) -> None:
    steered.start(deadline_s=0.3)
    steered.wanted.parse = 3
    steered.step()
    steered.flink.down = True
    result = steered.step()
    assert (result.result, result.silent) == ("silent", "engine")
    steered.flink.down = False
    assert steered.step().result == "acted"


def test_rest_is_slow(steered: Steered) -> None:
    steered.start(deadline_s=0.2)
    steered.step()
    steered.flink.slow_s = 0.5
    result = steered.step()
    assert (result.result, result.silent) == ("silent", "engine")
    assert steered.flink.puts == []


def test_counters_that_stand_still_count_as_silent(steered: Steered) -> None:
    steered.steps(60)
    steered.wanted.parse = 3
    steered.flink.frozen = True
    results = steered.steps(120)
    assert results[-1].result == "silent"
    assert results[-1].silent == "metrics"
    assert steered.flink.parallelism[PARSE] == 3 or len(steered.flink.puts) <= 1
    puts = len(steered.flink.puts)
    steered.steps(60)
    assert len(steered.flink.puts) == puts


def test_times_that_stand_still_count_as_silent(steered: Steered) -> None:
    steered.steps(40)
    job = steered.flink._job()
    steered.flink._job = lambda: job  # type: ignore[method-assign]
    results = steered.steps(120)
    assert (results[0].result, results[-1].result) == ("held", "silent")
    assert results[-1].silent == "engine"
    assert steered.flink.puts == []


def test_service_down_raises_to_the_last_safe_plan(steered: Steered) -> None:
    steered.flink.rate = 300.0
    steered.flink.parallelism = dict.fromkeys(steered.flink.parallelism, 1)
    steered.flink.parallelism |= {PARSE: 3, ENRICH: 3}
    steered.flink.bounds = dict(steered.flink.parallelism)
    steered.wanted.parse = steered.wanted.enrich = 3
    assert steered.steps(60)[-1].result == "unchanged"  # safe
    steered.wanted.parse = 1
    steered.flink.rate = 1500.0  # more than one instance of parse can process
    assert steered.step().result == "acted"
    steered.wanted.silent = True
    results = steered.steps(200)
    assert {one.silent for one in results if one.result == "silent"} == {"recommender"}
    assert steered.flink.puts == [bounds(1, 3), bounds(3, 3)]


def test_adapter_killed_in_the_middle_of_a_request(steered: Steered) -> None:
    steered.start(deadline_s=0.3)
    steered.step()
    steered.flink.rescale_after_s = 60.0
    steered.wanted.parse = 3
    steered.flink.broken_put = True
    assert steered.step().result == "silent"
    sent = len(steered.flink.puts)
    assert sent >= 1
    steered.flink.broken_put = False
    steered.start()
    results = [steered.step(), steered.step()]
    assert [one.result for one in results] == ["held", "held"]
    assert "parse 2 -> 3" in results[-1].reason
    assert len(steered.flink.puts) == sent
    steered.steps(140)
    assert steered.flink.parallelism[PARSE] == 3
    assert len(steered.flink.puts) == sent


def test_rescale_that_does_not_happen(steered: Steered) -> None:
    steered.flink.rescale_after_s = 1e9
    steered.step()
    steered.wanted.parse = 3
    assert steered.step().result == "acted"
    results = steered.steps(300)
    assert results[0].result == "held"
    assert results[-1].result == "pending"
    assert len(steered.flink.puts) == 1


def test_restarting_job_is_left_alone(steered: Steered) -> None:
    steered.steps(40)
    steered.flink.state = "RESTARTING"
    steered.wanted.parse = 3
    result = steered.step()
    assert (result.result, result.degraded) == ("held", False)
    steered.flink.state = "RUNNING"
    assert steered.step().result == "acted"


def test_metrics_that_are_no_numbers(steered: Steered) -> None:
    steered.steps(40)
    steered.flink.nan = True
    steered.wanted.parse = 3
    result = steered.step()
    assert result.result == "acted"  # busy time by what idle and back-pressured time leave
    assert result.messages


def test_job_is_gone(steered: Steered) -> None:
    steered.step()
    steered.flink.job_id = "b" * 32
    result = steered.step()
    assert (result.result, result.silent) == ("silent", "engine")


def test_bounds(steered: Steered) -> None:
    steered.start(floor=2, floors={ENRICH_NAME: 3}, max_parallelism=5)
    steered.wanted.parse, steered.wanted.enrich = 9, 1
    steered.step()
    result = steered.step()
    assert result.wanted == {SOURCE_NAME: 1, PARSE_NAME: 5, ENRICH_NAME: 3, SINK_NAME: 1}
    steered.flink.slots = 4
    steered.start()
    steered.steps(80)
    assert max(steered.flink.parallelism.values()) <= 4


@pytest.mark.parametrize("jobs", [0, 1])
def test_slots_that_are_not_yet_free(steered: Steered, jobs: int) -> None:
    steered.flink.kept = 4
    steered.flink.other_jobs = [{"jid": "b" * 32, "name": "b", "state": "RUNNING"}] * jobs
    steered.wanted.parse = 99
    steered.step()
    assert steered.step().wanted[PARSE_NAME] == (4 if jobs else 8)


def test_groups_share_the_slots() -> None:
    members = {"a": [("one", 2), ("two", 1)], "b": [("three", 3)]}
    slots, tasks = Slots(2, members), {"one": "one", "two": "two", "three": "three"}
    now = {"one": 2.0, "two": 1.0, "three": 3.0}
    assert [slots.most(name) for name in tasks] == [4, 4, 5]
    assert fit_to_slots({"one": 4, "two": 4, "three": 3}, now, tasks, slots)[1] == []
    fitted, lines = fit_to_slots({"one": 4, "two": 1, "three": 5}, now, tasks, slots)
    assert (fitted, len(lines)) == ({"one": 4, "two": 1, "three": 3}, 1)
    assert fit_to_slots({"one": 6, "two": 1, "three": 2}, now, tasks, slots)[0]["one"] == 5


def test_total(steered: Steered) -> None:
    steered.start(max_instances=8)
    steered.wanted.parse, steered.wanted.enrich = 6, 2
    steered.step()
    result = steered.step()
    assert sum(result.wanted.values()) == 8
    assert steered.wanted.states[-1]["max_instances"] == 8


def test_unknown_floor(steered: Steered) -> None:
    steered.start(floors={"other": 2})
    with pytest.raises(InputError):
        steered.step()


def test_falls_wait_for_the_backlog(steered: Steered) -> None:
    steered.start(guard={"backlog_s": 30})
    steered.flink.pending = 1e6
    steered.wanted.parse = 1
    steered.steps(60)
    assert steered.flink.puts == []


def test_rescale_that_lost_throughput_is_undone_once(steered: Steered) -> None:
    steered.start(rollback_hold_s=600)
    steered.flink.rate = 1500.0
    steered.flink.slowdown = {4: 0.3}  # more instances are slower here: 1200 records/s
    steered.steps(120)
    steered.wanted.parse = 4
    assert steered.step().result == "acted"
    results = steered.steps(160)
    (undone,) = [one for one in results if one.result == "acted"]
    assert any(line.startswith("rolled back") for line in undone.messages)
    assert steered.flink.puts == [bounds(4, 2), bounds(2, 2)]
    results = steered.steps(300)
    assert results[-1].result == "held"  # the plan is wanted, and not repeated
    assert len(steered.flink.puts) == 2
    steered.steps(400)
    assert bounds(4, 2) in steered.flink.puts[2:]


def test_rescale_that_was_too_low_is_undone(steered: Steered) -> None:
    steered.flink.rate = 1500.0
    steered.steps(120)
    steered.wanted.parse = 1
    assert steered.step().result == "acted"
    steered.steps(160)
    assert steered.flink.puts == [bounds(1, 2), bounds(2, 2)]


def test_more_load_is_no_reason_to_undo(steered: Steered) -> None:
    steered.flink.rate = 800.0
    steered.steps(120)
    steered.wanted.parse = 3
    assert steered.step().result == "acted"
    steered.flink.rate = 4500.0  # more than three instances can process
    steered.steps(300)
    assert steered.flink.puts == [bounds(3, 2)]


def test_less_load_is_no_reason_to_undo(steered: Steered) -> None:
    steered.flink.rate = 1500.0
    steered.steps(120)
    steered.wanted.parse = 1
    steered.flink.rate = 500.0
    steered.steps(300)
    assert steered.flink.puts == [bounds(1, 2)]


def test_rollback_can_be_switched_off(steered: Steered) -> None:
    steered.start(rollback=False)
    steered.flink.rate = 1500.0
    steered.steps(120)
    steered.wanted.parse = 1
    steered.steps(300)
    assert steered.flink.puts == [bounds(1, 2)]


@pytest.mark.parametrize("rule", ["flink", "ds2"])
def test_rules_decide_on_the_states(steered: Steered, rule: str) -> None:
    steered.steerer = Steerer(find_recommender([rule], ENDPOINT), "act")
    steered.flink.rate = 3000.0
    steered.steps(600)
    assert steered.flink.parallelism[PARSE] >= 3
    assert steered.flink.pending < 3000 * 90
