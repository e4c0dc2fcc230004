"""The monitor: counts, drifts, recommendations, persistence and cost."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.envs.errors import InputError
from loadmaster.serving.monitoring.drift import MAX_STREAMS
from loadmaster.serving.monitoring.history import INTERVALS, IntervalCounts, percentiles
from loadmaster.serving.monitoring.lifecycle import LifecycleSettings, LifecycleState
from loadmaster.serving.monitoring.monitor import Actor, Monitor, MonitorSettings

NOW = 1_800_000_000.0
SERVING, ONLINE, OFFLINE = LifecycleState.SERVING, LifecycleState.ONLINE, LifecycleState.OFFLINE
QUICK = LifecycleSettings(window=20, z_threshold=2.0)
QUICKLY = MonitorSettings(lifecycle=QUICK, reward_block=1)
BOLD = QUICKLY.model_copy(update={"lifecycle": QUICK.model_copy(update={"retrain_offline": False})})
BLIND = QUICKLY.model_copy(update={"delta": 1e-9})  # ADWIN detects nothing


def decide(
    monitor: Monitor,
    time: float = NOW,
    cause: str | None = None,
    latency_ms: float = 2.0,
    features: dict[str, float] | None = None,
    **more: Any,
) -> Any:
    """Record a decision of the policy, or of the rule if there is a cause."""
    source: Literal["policy", "fallback"] = "fallback" if cause else "policy"
    return monitor.record_decision(
        time, source=source, cause=cause, latency_ms=latency_ms, features=features or {}, **more
    )


def add_rewards(
    monitor: Monitor, actor: Actor, mean: float, count: int, seed: int = 0, std: float = 1.0
) -> int:
    """Add rewards around a mean; return their number until a drift, 0 if there is none."""
    noise = random.Random(seed)
    for number in range(1, count + 1):
        if monitor.record_feedback(NOW + number, noise.gauss(mean, std), actor):
            return number
    return 0


def add_inputs(monitor: Monitor, jobs: float, count: int, start: float = NOW) -> list[Any]:
    noise = random.Random(0)
    return [
        drift
        for n in range(count)
        for drift in decide(monitor, start + n, features={"jobs": noise.gauss(jobs, 1.0)})
    ]


def test_status_of_a_new_monitor_is_empty() -> None:
    nothing = {"total": 0, "policy": 0, "fallback": 0, "by_cause": {}, "fallback_rate": None}
    unknown = {"mean": None, "std": None, "count": 0}
    assert Monitor().status() == {
        "decisions": nothing,
        "latency_ms": {"p50": None, "p99": None},
        "rewards": {
            "policy": unknown,
            "rule": unknown,
            "thresholds": {"online": None, "serving": None, "deviation": None},
        },
        "drift": {"rewards": {"count": 0, "last": None}, "inputs": {}, "events": []},
        "shadow": {"decisions": 0, "agreement": None, "faults": 0},
    }
    assert Monitor().history(NOW) == {"interval_s": 10, "intervals": []}


def test_decisions_are_counted_by_source_and_cause() -> None:
    monitor = Monitor()
    for latency in (1.0, 2.0, 3.0):
        decide(monitor, latency_ms=latency, agrees=True)
    decide(monitor, cause="timeout", latency_ms=50.0, agrees=False)
    decide(monitor, cause="paused", shadow_fault=True)
    status = monitor.status()
    assert status["decisions"] == {
        "total": 5,
        "policy": 3,
        "fallback": 2,
        "by_cause": {"timeout": 1, "paused": 1},
        "fallback_rate": 0.4,
    }
    assert status["shadow"] == {"decisions": 4, "agreement": 0.75, "faults": 1}
    assert status["latency_ms"]["p50"] == pytest.approx(2.0, rel=0.03)
    assert status["latency_ms"]["p99"] == pytest.approx(50.0, rel=0.03)
    monitor.shadow_changed()
    assert monitor.status()["shadow"] == {"decisions": 0, "agreement": None, "faults": 0}


@given(st.lists(st.floats(0.01, 1e4), min_size=1, max_size=200))
@settings(max_examples=50)
def test_percentiles_are_accurate_within_two_percent(values: list[float]) -> None:
    interval = IntervalCounts(0)
    for value in values:
        interval.add_latency(value)
    ranked = sorted(values)
    p50, p99 = percentiles([interval])
    assert p50 == pytest.approx(ranked[(len(ranked) + 1) // 2 - 1], rel=0.021)
    assert p99 == pytest.approx(ranked[-(-99 * len(ranked) // 100) - 1], rel=0.021)


def test_history_has_all_intervals_of_the_last_hour() -> None:
    monitor = Monitor()
    decide(monitor, NOW, cause="timeout", agrees=True)
    decide(monitor, NOW + 9.9, agrees=False)
    monitor.record_feedback(NOW + 5, 1.0, "policy")
    monitor.record_feedback(NOW + 6, 4.0, "rule")
    decide(monitor, NOW + 30)
    status = monitor.history(NOW + 45)
    assert status["interval_s"] == 10
    assert [each["decisions"] for each in status["intervals"]] == [2, 0, 0, 1, 0]
    first, empty = status["intervals"][:2]
    assert first == {
        "time": "2027-01-15T08:00:00.000+00:00",
        "decisions": 2,
        "fallbacks": 1,
        "by_cause": {"timeout": 1},
        "p50_ms": pytest.approx(2, rel=0.03),
        "p99_ms": pytest.approx(2, rel=0.03),
        "reward_mean": 2.5,
        "drift": 0,
        "shadow_agreement": 0.5,
    }
    assert (empty["reward_mean"], empty["p50_ms"], empty["shadow_agreement"]) == (None, None, None)
    later = monitor.history(NOW + 3600)["intervals"]
    decide(monitor, NOW - 5000)  # the clock was set back: counted in the latest interval
    assert monitor.history(NOW)["intervals"][-1]["decisions"] == 2
    assert len(later) == INTERVALS
    assert later[-1]["time"] == "2027-01-15T09:00:00.000+00:00"


def test_fall_below_the_rules_recommends_fallback() -> None:
    monitor = Monitor(QUICKLY)
    add_rewards(monitor, "rule", -12.0, 20)
    assert not add_rewards(monitor, "policy", -8.0, 100)
    assert monitor.recommendation(SERVING).action == "keep"
    assert monitor.recommendation(ONLINE)[:2] == ("keep", SERVING)
    soon = add_rewards(monitor, "policy", -20.0, 40, seed=1)
    assert 0 < soon < 20  # before a window of bad rewards was full
    found = monitor.recommendation(SERVING)
    assert found[:2] == ("fall back", OFFLINE)
    assert "rewards of the policy fell from -8" in found.why
    status = monitor.status()["drift"]
    assert status["rewards"]["count"] == 1
    assert status["rewards"]["last"].startswith("2027-01-15T08:00:")
    assert status["events"][0]["what"] == "rewards"
    monitor.policy_changed()
    assert monitor.recommendation(OFFLINE).action == "keep"
    assert monitor.status()["drift"]["rewards"]["count"] == 1
    rewards = monitor.status()["rewards"]
    assert (rewards["policy"]["count"], rewards["rule"]["count"]) == (0, 20)


@pytest.mark.parametrize(
    ("settings", "rules", "before", "after", "expected"),
    [
        (QUICKLY, -30.0, -8.0, -16.0, ("retrain", None)),  # still above the rules
        (QUICKLY, None, -8.0, -16.0, ("fall back", OFFLINE)),  # rewards of the rules unknown
        (BOLD, None, -8.0, -16.0, ("retrain", None)),
        (QUICKLY, -20.0, -16.0, -4.0, ("keep", ONLINE)),  # a rise: large deviation
        (BLIND, -12.0, -8.0, -16.0, ("fall back", OFFLINE)),  # found by the window alone
    ],
)
def test_change_of_rewards_recommends(
    settings: MonitorSettings,
    rules: float | None,
    before: float,
    after: float,
    expected: tuple[str, LifecycleState | None],
) -> None:
    monitor = Monitor(settings)
    if rules is not None:
        add_rewards(monitor, "rule", rules, 20)
    add_rewards(monitor, "policy", before, 100)
    add_rewards(monitor, "policy", after, 20)
    assert monitor.recommendation(SERVING)[:2] == expected
    monitor.policy_changed()
    assert monitor.recommendation(SERVING).action == "keep"


def test_rise_cancels_a_fall() -> None:
    monitor = Monitor(QUICKLY)
    add_rewards(monitor, "policy", -8.0, 100)
    assert add_rewards(monitor, "policy", -16.0, 40)
    while not add_rewards(monitor, "policy", -4.0, 10):
        pass
    assert monitor.recommendation(SERVING).action == "keep"
    assert monitor.status()["drift"]["rewards"]["count"] == 2


def test_small_drifts_are_counted_only() -> None:
    monitor = Monitor(QUICKLY.model_copy(update={"on_input_drift": "retrain"}))
    add_inputs(monitor, 12.0, 5000)
    assert add_inputs(monitor, 13.0, 2000)
    assert monitor.recommendation(SERVING).action == "keep"
    for number in range(400):
        mean = 1000.0 if number < 300 else 999.0
        monitor.record_feedback(NOW, mean + 0.1 * (number % 3), "policy")
    assert monitor.status()["drift"]["rewards"]["count"] == 1
    assert monitor.recommendation(SERVING).action == "keep"


def test_input_drift_is_named_with_a_fall() -> None:
    monitor = Monitor(QUICKLY)
    add_inputs(monitor, 12.0, 1000)
    add_rewards(monitor, "rule", -12.0, 20)
    add_rewards(monitor, "policy", -8.0, 100)
    (drift,) = add_inputs(monitor, 40.0, 200, start=NOW + 2000)
    assert (drift.what, drift.name) == ("inputs", "jobs")
    assert monitor.recommendation(SERVING).action == "keep"
    assert add_rewards(monitor, "policy", -20.0, 40)
    assert "input 'jobs' drifted from 12" in monitor.recommendation(SERVING).why
    status = monitor.status()["drift"]["inputs"]["jobs"]
    assert status["count"] == 1
    assert status["last"] is not None
    assert status["mean"] == pytest.approx(40, abs=1)
    assert monitor.input_means() == {"jobs": status["mean"]}


def test_newer_rewards_supersede_an_input_drift() -> None:
    monitor = Monitor(MonitorSettings(lifecycle=QUICK, on_input_drift="retrain"))
    add_rewards(monitor, "rule", -12.0, 20)
    add_rewards(monitor, "policy", -8.0, 100)
    add_inputs(monitor, 12.0, 1000)
    assert add_inputs(monitor, 40.0, 200)
    assert monitor.recommendation(SERVING).action == "keep"
    add_rewards(monitor, "policy", -8.0, 21)
    monitor.policy_changed()
    assert monitor.recommendation(SERVING).action == "keep"


@pytest.mark.parametrize(("setting", "action"), [("retrain", "retrain"), ("note", "keep")])
def test_on_input_drift_applies_without_rewards(
    setting: Literal["retrain", "note"], action: str
) -> None:
    monitor = Monitor(MonitorSettings(lifecycle=QUICK, on_input_drift=setting))
    add_inputs(monitor, 12.0, 1000)
    assert add_inputs(monitor, 40.0, 200)
    assert monitor.recommendation(SERVING)[:2] == (action, None)
    assert monitor.recommendation(OFFLINE).action == "keep"
    monitor.acted_on()
    assert monitor.recommendation(SERVING).action == "keep"


def test_autocorrelated_input_is_no_drift() -> None:
    noise, queue, drifts = random.Random(3), 0.0, 0
    monitor = Monitor(MonitorSettings(input_block=50))
    for n in range(20_000):
        queue = 0.9 * queue + noise.gauss(0, 1)
        drifts += len(decide(monitor, NOW + n, features={"queue": queue}))
    assert drifts == 0


def test_non_finite_values_are_ignored_or_refused() -> None:
    monitor = Monitor()
    for value in (float("nan"), float("inf"), 1e300, 5.0):
        decide(monitor, features={"jobs": value})
    assert monitor.input_means() == {"jobs": 5.0}
    with pytest.raises(InputError, match="finite"):
        monitor.record_feedback(NOW, float("nan"), "policy")
    assert monitor.status()["rewards"]["policy"]["count"] == 0


def test_number_of_features_is_bounded() -> None:
    monitor = Monitor()
    for n in range(100):
        decide(monitor, features={f"f{n}": 1.0})
    assert len(monitor.status()["drift"]["inputs"]) == MAX_STREAMS


@pytest.fixture(scope="module")
def busy() -> dict[str, Any]:
    """Record of a monitor after a thousand seconds."""
    monitor, noise = Monitor(), random.Random(5)
    for n in range(3000):
        shift, at = 20.0 if n > 2000 else 0.0, NOW + n / 3
        features = {"jobs": noise.gauss(9 + shift, 2), "load": noise.random()}
        cause, latency_ms = None if n % 7 else "timeout", noise.expovariate(0.3)
        decide(monitor, at, cause, latency_ms, features, agrees=n % 3 == 0)
        monitor.record_feedback(at, noise.gauss(-5 - shift, 1), "policy" if n % 4 else "rule")
    return monitor.record()


def test_restored_monitor_continues_identically(busy: dict[str, Any]) -> None:
    monitor = Monitor.from_record(busy)
    again = Monitor.from_record(json.loads(json.dumps(busy, allow_nan=False)))
    assert monitor.record() == again.record() == busy
    for each in (monitor, again):
        assert add_rewards(each, "policy", -60.0, 60)
        add_inputs(each, 90.0, 500)
    assert again.record() == monitor.record()
    assert again.status() == monitor.status()
    assert again.history(NOW + 1100) == monitor.history(NOW + 1100)
    assert again.recommendation(SERVING) == monitor.recommendation(SERVING)
    assert again.status()["drift"]["inputs"]["jobs"]["count"] >= 2
    other = Monitor.from_record(busy, MonitorSettings(lifecycle=QUICK, input_block=2))
    assert other.status()["rewards"]["policy"]["count"] == 20


ADWIN = {"delta": 0.1, "every": 4, "buckets": 5, "seen": 1, "cut": None}
STREAM = {"drifts": 0, "last": None, "left": 1, "total": 0.0, "count": 0}


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"history": [{"decisions": 1}]},
        {"history": None},
        {"rewards": {"policy": [float("nan")], "rule": []}},
        {"decisions": {"policy": "many"}},
        {"inputs": {"jobs": {}}},
        *(
            {"inputs": {"jobs": {**STREAM, "adwin": {**ADWIN, "levels": levels}}}}
            for levels in ([[[1.0, 0.0, 1.0]]], [[[float("nan"), 0.0, 1.0, 1.0]]], [], 7)
        ),
        {"inputs": {"jobs": {**STREAM, "adwin": {**ADWIN, "levels": [[]], "cut": [1.0]}}}},
        {"drifts": [[1, 2]]},
        {"by_cause": []},
        {"evidence": {"fall": 1}},
        dict.fromkeys(Monitor().record()),
    ],
)
def test_damaged_record_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        Monitor.from_record({**Monitor().record(), **change})


def test_record_size_is_bounded(busy: dict[str, Any]) -> None:
    monitor = Monitor.from_record(busy)
    for n in range(8000):
        decide(monitor, NOW + 1000 + n, latency_ms=n % 50, features={"jobs": float(n % 11)})
        monitor.record_feedback(NOW + 1000 + n, float(n % 5), "policy")
    assert len(json.dumps(monitor.record())) < max(4 * len(json.dumps(busy)), 250_000)


def took_s(work: Any) -> float:
    """The least CPU time of five runs."""
    seconds = []
    for _ in range(5):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return min(seconds)


def test_recording_takes_little_time(busy: dict[str, Any]) -> None:
    features = dict.fromkeys(("jobs", "queue", "load", "work", "tasks", "free"), 1.0)
    monitor = Monitor.from_record(busy)

    def record() -> None:
        for n in range(1000):
            decide(monitor, NOW + 1000 + n * 0.01, features=features)
            monitor.record_feedback(NOW + 1000 + n * 0.01, -5.0 + n % 3, "policy")

    assert took_s(record) / 1000 < 100e-6  # the two together


def test_record_and_history_of_an_hour_take_little_time() -> None:
    """Both run in the gateway's event loop."""
    monitor, noise = Monitor(), random.Random(0)
    for number in range(20_000):
        decide(monitor, NOW + number / 5, latency_ms=noise.lognormvariate(1.0, 1.0))
    assert took_s(monitor.record) < 0.005
    assert took_s(lambda: monitor.history(NOW + 4000)) < 0.005


def test_record_is_not_changed_by_later_counts() -> None:
    """Another thread writes it."""
    monitor = Monitor()
    for number in range(100):
        decide(monitor, NOW + number)
    record = monitor.record()
    kept = json.dumps(record)
    for number in range(100, 200):
        decide(monitor, NOW + number, cause="timeout", features={"jobs": 1.0})
        monitor.record_feedback(NOW + number, 1.0, "policy")
    assert json.dumps(record) == kept


@pytest.mark.parametrize("better", [0.0, 10.0])
def test_policy_equal_to_the_rules_keeps_acting(better: float) -> None:
    noise, monitor = random.Random(2), Monitor()
    add_rewards(monitor, "rule", -100, monitor.settings.lifecycle.window, std=20)
    for n in range(1500):
        monitor.record_feedback(NOW + n, noise.gauss(-100 + better, 20), "policy")
        assert monitor.recommendation(SERVING).action == "keep"


def correlated(noise: random.Random, mean: float) -> Iterator[float]:
    """Rewards of jobs that share a cluster: slow together while it is full."""
    load = 0.0
    while True:
        load = 0.85 * load + noise.gauss(0, 11)  # a deviation of 20, slowly changing
        yield mean + load + noise.gauss(0, 20)


@pytest.mark.slow
def test_correlated_rewards_cause_few_false_fallbacks() -> None:
    """Without the correction, seven of twenty equal policies would be replaced."""
    replaced = 0
    for seed in range(20):
        noise, monitor = random.Random(seed), Monitor()
        policy, rules = correlated(noise, -100), correlated(noise, -100)
        for number in range(1000):
            monitor.record_feedback(NOW, next(rules), "rule")
            monitor.record_feedback(NOW, next(policy), "policy")
            if number % 4 == 0 and monitor.recommendation(SERVING).action == "fall back":
                replaced += 1
                break
    assert replaced <= 3


@pytest.mark.parametrize(("deviation", "most"), [(20.0, 80), (50.0, 150)])
def test_degraded_policy_is_replaced_before_a_window_is_full(deviation: float, most: int) -> None:
    for seed in range(3):
        noise, monitor = random.Random(seed), Monitor()
        window = monitor.settings.lifecycle.window
        assert most < window
        for actor, mean, count in (("rule", -100, window), ("policy", -80, 300)):
            for _ in range(count):
                monitor.record_feedback(NOW, noise.gauss(mean, deviation), actor)  # type: ignore[arg-type]
        for _ in range(most):
            monitor.record_feedback(NOW, noise.gauss(-150, deviation), "policy")
            if monitor.recommendation(SERVING).action == "fall back":
                break
        assert monitor.recommendation(SERVING).action == "fall back"
