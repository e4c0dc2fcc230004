"""The state of AWARE's endpoint from views and readings, and the text that nodes export."""

import math

import pytest

from loadmaster.models.manifest import pretrained_folder
from loadmaster.platform.steering.ray_serve.exported_metrics import (
    NodeMetrics,
    increase,
    parse_samples,
    quantile,
    readings_of,
)
from loadmaster.platform.steering.ray_serve.history import History, View
from loadmaster.platform.steering.ray_serve.settings import EXPORT_VARIABLE, DeploymentSettings
from loadmaster.serving.client import ServiceError
from loadmaster.serving.systems.aware.schema import AwareOutcome, AwareState
from loadmaster.serving.systems.aware.system import ENDPOINT
from tests.platform.steering.ray_serve.fakes import Clock, Nodes, http_server


def readings(nodes, at_s):
    return readings_of(parse_samples(nodes.text().encode()), "shop", "Model", at_s)


def view(at_s, target=2, replicas=("a", "b"), **given):
    return View(at_s, target, frozenset(replicas), 1, 10, 2.0, **given)


def filled(intervals=8, requests=12.0, queued=None, nodes=None, **settings):
    """A history with requests at a steady rate; each of two replicas handles a half."""
    settings = DeploymentSettings(**settings)
    history = History("shop/Model", settings)
    nodes = nodes or Nodes(done={"a": 0.0, "b": 0.0})
    for number in range(intervals + 1):
        at_s = number * settings.interval_s
        history.add(view(at_s, queued=queued), readings(nodes, at_s))
        nodes.arrivals += requests
        nodes.done = {name: done + requests / 2 for name, done in nodes.done.items()}
    return history, at_s


def test_state_is_valid_and_has_what_was_measured():
    history, now_s = filled(slo_s=1.5)
    state = AwareState.model_validate(history.document(now_s + 1.0))
    assert state.application == "shop/Model"
    assert state.slo_s == 1.5
    assert state.reports.age_s == (106, 91, 76, 61, 46, 31, 16, 1)
    assert set(state.reports.requests) == {12.0}
    assert state.reports.used_cpu_m == pytest.approx([1000 * 12 * 0.2 / 15] * 8)
    assert set(state.reports.limit_cpu_m) == {4000.0}  # two replicas of two places
    assert state.steps.requests == (48.0, 48.0)
    assert state.steps.p99_s == pytest.approx([0.199, 0.199], abs=2e-3)
    assert state.steps.restarts == (0.0, 0.0)
    assert state.bounds.replicas == (1, 10)
    assert state.bounds.cpu_m == (2000.0, 2000.0) == (state.plan.cpu_m,) * 2
    assert AwareOutcome.model_validate(history.outcome()).cpu_use == pytest.approx(0.04)


def test_times_are_scaled_to_the_step_and_latencies_to_the_parts():
    history, now_s = filled(slo_s=1.5, step_s=15.0, parts=2.0)
    state = AwareState.model_validate(history.document(now_s))
    assert state.slo_s == 1.5 * 4 / 2
    assert state.reports.age_s[-2:] == (15.0, 0.0)
    assert set(state.reports.requests) == {24.0}
    assert state.steps.p99_s[-1] == pytest.approx(0.199 * 4 / 2, abs=4e-3)
    # Four times the rate: the same work a request, in a state's seconds, in two parts.
    assert state.reports.used_cpu_m[-1] == pytest.approx(1000 * 12 * 0.2 / 3.75)


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({}, 2),  # 30 s are three exports of 10 s
        ({"step_s": 30.0}, 4),
        ({"step_s": 240.0}, 1),
        ({"export_s": 15.0}, 1),
        ({"export_s": 1.0}, 1),
        ({"export_s": 7.0}, 5),  # never whole: ten exports or more
        ({"step_s": 2.0}, 8),
    ],
)
def test_a_report_covers_whole_exports(settings, count, monkeypatch):
    monkeypatch.delenv(EXPORT_VARIABLE, raising=False)
    assert DeploymentSettings(**settings).pooled == count


def test_period_of_exports_is_the_one_that_ray_is_given(monkeypatch):
    monkeypatch.setenv(EXPORT_VARIABLE, "1000")
    assert DeploymentSettings().pooled == 1
    assert DeploymentSettings(export_s=10.0).pooled == 2


def test_exports_that_are_rarer_than_reports_leave_rates_as_they_are():
    settings = DeploymentSettings(step_s=30.0, export_s=10.0)
    history, nodes = History("shop/Model", settings), Nodes(done={"a": 0.0, "b": 0.0})
    for number in range(17):
        at_s = number * settings.interval_s
        exported_s = 10.0 * (at_s // 10.0)
        nodes.arrivals = 4.0 * exported_s
        nodes.done = {"a": 2.0 * exported_s, "b": 2.0 * exported_s}
        history.add(view(at_s), readings(nodes, at_s))
    reports = AwareState.model_validate(history.document(at_s)).reports
    # Two seconds of a state are one: 7.5 s of four requests a second, each of 0.2 s.
    assert reports.requests[4:] == pytest.approx([30.0] * 12)
    assert reports.used_cpu_m[4:] == pytest.approx([800.0] * 12)


def test_wait_for_a_replica_is_part_of_the_latency():
    without, now_s = filled()
    waiting, _ = filled(queued=1.6)
    mean_s = 1.6 * 60 / 48
    expected = without.document(now_s)["steps"]["p99_s"][-1] + math.log(100) * mean_s
    assert waiting.document(now_s)["steps"]["p99_s"][-1] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("settings", "used_m", "limit_m"),
    [
        pytest.param({"request_s": 0.05}, 12 * 0.05 / 15 * 1000, 4000, id="work is known"),
        pytest.param({"slots": 8}, 160, 16_000, id="slots are known"),
        pytest.param({"capacity": "cpu", "cpus": 0.5}, 500, 1000, id="processor"),
    ],
)
def test_capacity(settings, used_m, limit_m):
    history, now_s = filled(**settings)
    reports = history.document(now_s)["reports"]
    assert reports["used_cpu_m"][-1] == pytest.approx(used_m)
    assert reports["limit_cpu_m"][-1] == limit_m


@pytest.mark.parametrize(
    ("mib", "used"), [(None, 2 * (200.0 + 14.0 * 0.04 / 0.96)), (256.0, 100.0)]
)
def test_memory_is_that_of_a_typical_application_where_it_is_not_known(mib, used):
    history, now_s = filled(memory_mib=mib)
    reports = history.document(now_s)["reports"]
    assert reports["used_memory_mib"][-1] == pytest.approx(used)
    assert reports["limit_memory_mib"][-1] == 2 * (mib or 1024.0)


@pytest.mark.slow
@pytest.mark.parametrize("speed", [1.0, 2.0])
def test_shipped_policy_knows_a_deployment_with_requests_like_those_of_its_training(speed):
    """Else the service's rule decides in its place."""
    settings = DeploymentSettings(
        slo_s=2.8, slots=1.0, request_s=0.2, step_s=60.0 / speed, parts=speed
    )
    history, nodes = History("shop/Model", settings), Nodes(done={"a": 0.0, "b": 0.0})
    policy, memory = ENDPOINT.policy(pretrained_folder() / "aware"), None
    for number in range(4 * 15 + 1):
        at_s = number * settings.interval_s
        history.add(view(at_s, queued=0.0), readings(nodes, at_s))
        if number and number % 4 == 0:
            parsed = AwareState.model_validate(history.document(at_s))
            found = policy.decide(parsed, memory)
            memory = found.memory
            assert not found.unknown
        rate = 4.0 + 3.0 * math.sin(number / 6.0)
        nodes.arrivals += rate * settings.interval_s
        for name in nodes.done:
            nodes.done[name] += rate * settings.interval_s / 2


def test_no_state_before_the_first_step_and_without_metrics():
    assert filled(intervals=3)[0].document(0.0) is None
    silent = History("shop/Model", DeploymentSettings())
    for number in range(9):
        silent.add(view(15.0 * number), None)
    assert silent.document(120.0) is None
    assert silent.outcome() is None


def test_silent_metrics_leave_a_row_without_values():
    history, now_s = filled()
    history.add(view(now_s + 15.0), None)
    reports = AwareState.model_validate(history.document(now_s + 15.0)).reports
    assert reports.requests[-1] is None
    assert reports.used_cpu_m[-1] is None
    assert reports.pods[-1] == 2.0


def test_no_state_once_metrics_are_silent_for_a_step_and_no_load_of_zero_after():
    history, now_s = filled(intervals=8)
    nodes = Nodes(arrivals=1e3, done={"a": 1e3})
    for number in range(1, 5):
        history.add(view(now_s + 15.0 * number), None)
        document = history.document(now_s + 15.0 * number)
        assert (document is None) == (number == 4)
        if document is not None:
            AwareState.model_validate(document)
            assert document["steps"]["requests"][-1] == pytest.approx(48.0)
    for number in range(5, 10):
        history.add(view(now_s + 15.0 * number), readings(nodes, now_s + 15.0 * number))
        nodes.arrivals += 24.0
    steps = history.document(now_s + 135.0)["steps"]  # 2 full, 1 silent with 1 of the others, 1
    assert min(steps["requests"]) == pytest.approx(48.0)
    assert steps["requests"][-1] == pytest.approx(96.0)


def test_replicas_that_end_without_a_lower_target_are_restarts():
    history = History("shop/Model", DeploymentSettings())
    nodes = Nodes(done={"a": 0.0})
    views = [
        view(0.0, 3, "abc"), view(15.0, 2, "ab"), view(30.0, 2, "ac"),
        view(45.0, 2, "ac"), view(60.0, 4, "acde"),
    ]  # fmt: skip
    for one in views:
        nodes.arrivals += 1
        history.add(one, readings(nodes, one.at_s))
    assert history.document(60.0)["steps"]["restarts"] == [1.0]


def test_increase_takes_new_and_restarted_counters_whole():
    assert increase({"a": 5.0, "gone": 9.0}, {"a": 7.0, "new": 3.0}) == 5.0
    assert increase({"a": 5.0}, {"a": 2.0}) == 2.0


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({}, None),
        ({1.0: 0.0, math.inf: 0.0}, None),
        ({1.0: 50.0, 2.0: 100.0, math.inf: 100.0}, 1.98),
        ({1.0: 50.0, math.inf: 100.0}, 1.0),  # beyond the last bucket
    ],
)
def test_quantile(counts, expected):
    assert quantile(counts, 0.99) == (None if expected is None else pytest.approx(expected))


def test_samples_of_other_deployments_and_damaged_lines_are_left_out():
    nodes = Nodes(arrivals=7.0, done={"a": 3.0})
    text = nodes.text() + "ray_serve_num_router_requests_total{ nonsense\n"
    found = readings_of(parse_samples(text.encode()), "shop", "Model", 1.0)
    assert sum(found.arrivals.values()) == 7.0
    assert sum(found.done.values()) == 3.0
    assert found.cpu_m == 500.0
    assert found.memory_mib == pytest.approx(100.0)
    assert not readings_of(parse_samples(text.encode()), "shop", "Other", 1.0).arrivals


def test_node_that_answers_late_or_returns_counts_from_then_on():
    clock = Clock()
    metrics = NodeMetrics(clock=clock)
    history = History("shop/Model", DeploymentSettings(export_s=15.0))
    nodes = [Nodes(arrivals=1e6, done={"a": 1e6}), Nodes(arrivals=2e6, done={"b": 2e6})]
    down = [False, True]

    def respond(place):
        return lambda *_: (503 if down[place] else 200, nodes[place].text().encode())

    def interval(addresses):
        for one in nodes:
            one.arrivals += 5.0
            one.done = {name: done + 5.0 for name, done in one.done.items()}
        history.add(view(clock.now_s), metrics.read(addresses, "shop", "Model"))
        clock.now_s += 15.0

    with http_server(respond(0)) as (first, _), http_server(respond(1)) as (second, _):
        both = [one.removeprefix("http://") for one in (first, second)]
        interval(both)
        down[1] = False
        for addresses in (both, both, both[:1], both, both):
            interval(addresses)
    reports = history.document(clock.now_s)["reports"]
    assert reports["requests"] == [5.0, 10.0, 5.0, 5.0, 10.0]
    assert reports["used_cpu_m"] == pytest.approx([200 * one / 15 for one in reports["requests"]])


def test_silent_node_keeps_its_counters():
    clock, nodes = Clock(), Nodes(arrivals=7.0)
    metrics = NodeMetrics(clock=clock)
    with http_server(lambda *_: (200, nodes.text().encode())) as (first, _):
        with http_server(lambda *_: (200, b"")) as (second, _):
            addresses = [one.removeprefix("http://") for one in (first, second)]
            assert sum(metrics.read(addresses, "shop", "Model").arrivals.values()) == 7.0
        clock.now_s += 5.0
        nodes.arrivals = 9.0
        assert sum(metrics.read(addresses, "shop", "Model").arrivals.values()) == 9.0
    clock.now_s += 5.0
    with pytest.raises(ServiceError):
        metrics.read(addresses, "shop", "Model")
