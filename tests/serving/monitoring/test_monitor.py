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
from loadmaster.serving.monitoring.drift import MAX_FEATURES
from loadmaster.serving.monitoring.history import INTERVALS, LatencyHistogram
from loadmaster.serving.monitoring.lifecycle import LifecycleState
from loadmaster.serving.monitoring.monitor import Actor, Monitor, MonitorSettings, ServiceLifecycle

NOW = 1_800_000_000.0
SERVING, ONLINE, OFFLINE = LifecycleState.SERVING, LifecycleState.ONLINE, LifecycleState.OFFLINE
QUICK = ServiceLifecycle(window=20, z_threshold=2.0)
QUICKLY = MonitorSettings(lifecycle=QUICK, reward_block=1)
BOLD = QUICKLY.model_copy(update={"lifecycle": QUICK.model_copy(update={"retrain_offline": False})})
BLIND = QUICKLY.model_copy(update={"delta": 1e-9})  # ADWIN detects nothing


def decide(
    monitor: Monitor,
    time: float = NOW,
    source: Literal["policy", "fallback"] = "policy",
    cause: str | None = None,
    latency_ms: float = 2.0,
    features: dict[str, float] | None = None,
    **more: Any,
) -> Any:
    return monitor.record_decision(
        time, source=source, cause=cause, latency_ms=latency_ms, features=features or {}, **more
    )


def add_rewards(monitor: Monitor, actor: Actor, mean: float, count: int, seed: int = 0) -> int:
    """Add rewards around a mean; return their number until a drift, 0 if there is none."""
    noise = random.Random(seed)
    for number in range(1, count + 1):
        if monitor.record_feedback(NOW + number, noise.gauss(mean, 1.0), actor):
            return number
    return 0


def add_inputs(
    monitor: Monitor, jobs: float, count: int, start: float = NOW, seed: int = 0
) -> list[Any]:
    noise = random.Random(seed)
    return [
        drift
        for n in range(count)
        for drift in decide(monitor, start + n, features={"jobs": noise.gauss(jobs, 1.0)})
    ]


def test_status_of_a_new_monitor_is_empty() -> None:
    status = Monitor().status()
    nothing = {"total": 0, "policy": 0, "fallback": 0, "by_cause": {}, "fallback_rate": None}
    assert status == {
        "decisions": nothing,
        "latency_ms": {"p50": None, "p99": None},
        "rewards": {
            "policy": {"mean": None, "std": None, "count": 0},
            "rule": {"mean": None, "std": None, "count": 0},
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
    decide(monitor, source="fallback", cause="timeout", latency_ms=50.0, agrees=False)
    decide(monitor, source="fallback", cause="paused", shadow_fault=True)
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
    latencies = LatencyHistogram()
    for value in values:
        latencies.add(value)
    ranked = sorted(values)
    p50, p99 = LatencyHistogram.percentiles([latencies])
    assert p50 == pytest.approx(ranked[(len(ranked) + 1) // 2 - 1], rel=0.021)
    assert p99 == pytest.approx(ranked[-(-99 * len(ranked) // 100) - 1], rel=0.021)


def test_history_has_all_intervals_of_the_last_hour() -> None:
    monitor = Monitor()
    decide(monitor, NOW, source="fallback", cause="timeout", agrees=True)
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
    assert len(later) == INTERVALS
    assert later[-1]["time"] == "2027-01-15T09:00:00.000+00:00"


def test_clock_set_back_counts_in_the_latest_interval() -> None:
    monitor = Monitor()
    decide(monitor, NOW)
    decide(monitor, NOW - 5000)
    assert [each["decisions"] for each in monitor.history(NOW - 5000)["intervals"]] == [2]


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
    assert monitor.status()["rewards"]["policy"]["count"] == 0
    assert monitor.status()["rewards"]["rule"]["count"] == 20


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


def test_small_fall_is_counted_only() -> None:
    monitor = Monitor(QUICKLY)
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
    settings = MonitorSettings(lifecycle=QUICK, on_input_drift="retrain")
    monitor = Monitor(settings)
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
    found = monitor.recommendation(SERVING)
    assert found[:2] == (action, None)
    if setting == "retrain":
        assert "input 'jobs' drifted from 12" in found.why
        assert monitor.recommendation(OFFLINE).action == "keep"
        monitor.acted_on()
        assert monitor.recommendation(SERVING).action == "keep"


def test_small_input_drift_recommends_nothing() -> None:
    monitor = Monitor(MonitorSettings(on_input_drift="retrain"))
    add_inputs(monitor, 12.0, 5000)
    assert add_inputs(monitor, 13.0, 2000)
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


def test_numbers_of_features_and_causes_are_bounded() -> None:
    monitor = Monitor()
    for n in range(1000):
        decide(monitor, source="fallback", cause=f"cause {n}", features={f"f{n}": 1.0})
    status = monitor.status()
    assert len(status["drift"]["inputs"]) == MAX_FEATURES
    assert len(status["decisions"]["by_cause"]) <= 33
    assert sum(status["decisions"]["by_cause"].values()) == 1000


def busy_monitor(settings: MonitorSettings | None = None) -> Monitor:
    monitor = Monitor(settings)
    noise = random.Random(5)
    for n in range(3000):
        source: Literal["policy", "fallback"] = "fallback" if n % 7 == 0 else "policy"
        shift = 20.0 if n > 2000 else 0.0
        decide(
            monitor,
            NOW + n / 3,
            source=source,
            cause="timeout" if source == "fallback" else None,
            latency_ms=noise.expovariate(0.3),
            features={"jobs": noise.gauss(9 + shift, 2), "load": noise.random()},
            agrees=n % 3 == 0,
        )
        monitor.record_feedback(
            NOW + n / 3, noise.gauss(-5 - shift, 1), "policy" if n % 4 else "rule"
        )
    return monitor


def test_restored_monitor_continues_identically() -> None:
    monitor = busy_monitor()
    again = Monitor.from_record(json.loads(json.dumps(monitor.record(), allow_nan=False)))
    for each in (monitor, again):
        assert add_rewards(each, "policy", -60.0, 60)
        add_inputs(each, 90.0, 500)
    assert again.record() == monitor.record()
    assert again.status() == monitor.status()
    assert again.history(NOW + 1100) == monitor.history(NOW + 1100)
    assert again.recommendation(SERVING) == monitor.recommendation(SERVING)
    assert again.status()["drift"]["inputs"]["jobs"]["count"] >= 2


def test_restored_monitor_takes_new_settings() -> None:
    record = busy_monitor().record()
    again = Monitor.from_record(record, MonitorSettings(lifecycle=QUICK, input_block=2))
    assert again.status()["rewards"]["policy"]["count"] == 20


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"history": [{"number": 1}]},
        {"history": None},
        {"rewards": {"policy": [float("nan")], "rule": []}},
        {"decisions": {"policy": 1}},
        {"inputs": {"jobs": {}}},
        {"drifts": [[1, 2]]},
        {"by_cause": []},
        {"evidence": {}},
        dict.fromkeys(Monitor().record()),
    ],
)
def test_damaged_record_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="damaged"):
        Monitor.from_record({**Monitor().record(), **change})


def test_record_size_is_bounded() -> None:
    monitor = busy_monitor()
    size = len(json.dumps(monitor.record()))
    for n in range(20_000):
        decide(monitor, NOW + 1000 + n, latency_ms=n % 50, features={"jobs": float(n % 11)})
        monitor.record_feedback(NOW + 1000 + n, float(n % 5), "policy")
    assert len(json.dumps(monitor.record())) < max(4 * size, 250_000)


def test_recording_takes_little_time() -> None:
    features = dict.fromkeys(("jobs", "queue", "load", "work", "tasks", "free"), 1.0)
    monitor, seconds = busy_monitor(), []
    for _ in range(5):  # the minimum, as the machine may be busy
        start = time.perf_counter()
        for n in range(2000):
            decide(monitor, NOW + 1000 + n * 0.01, features=features)
            monitor.record_feedback(NOW + 1000 + n * 0.01, -5.0 + n % 3, "policy")
        seconds.append(time.perf_counter() - start)
    assert min(seconds) / 2000 < 100e-6  # the two together


@pytest.mark.parametrize("better", [0.0, 10.0])
def test_policy_equal_to_the_rules_keeps_acting(better: float) -> None:
    noise, monitor = random.Random(2), Monitor()
    for _ in range(monitor.settings.lifecycle.window):
        monitor.record_feedback(NOW, noise.gauss(-100, 20), "rule")
    for n in range(4000):
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
        for _ in range(1000):
            monitor.record_feedback(NOW, next(rules), "rule")
            monitor.record_feedback(NOW, next(policy), "policy")
            if monitor.recommendation(SERVING).action == "fall back":
                replaced += 1
                break
    assert replaced <= 3


@pytest.mark.parametrize(("deviation", "most"), [(20.0, 80), (50.0, 150)])
def test_degraded_policy_is_replaced_before_a_window_is_full(deviation: float, most: int) -> None:
    for seed in range(5):
        noise, monitor = random.Random(seed), Monitor()
        window = monitor.settings.lifecycle.window
        assert most < window
        for _ in range(window):
            monitor.record_feedback(NOW, noise.gauss(-100, deviation), "rule")
        for _ in range(300):
            monitor.record_feedback(NOW, noise.gauss(-80, deviation), "policy")
        for _ in range(most):
            monitor.record_feedback(NOW, noise.gauss(-150, deviation), "policy")
            if monitor.recommendation(SERVING).action == "fall back":
                break
        assert monitor.recommendation(SERVING).action == "fall back", (
            f"acts after {most} bad rewards"
        )


def test_record_and_history_of_an_hour_take_little_time() -> None:
    """Both run in the gateway's event loop."""
    monitor, noise = Monitor(), random.Random(0)
    for number in range(20_000):
        decide(monitor, NOW + number / 5, latency_ms=noise.lognormvariate(1.0, 1.0))

    def took_s(work: Any) -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    assert min(took_s(monitor.record) for _ in range(5)) < 0.005
    assert min(took_s(lambda: monitor.history(NOW + 4000)) for _ in range(5)) < 0.005


def test_record_is_not_changed_by_later_counts() -> None:
    """Another thread writes it."""
    monitor = Monitor()
    for number in range(100):
        decide(monitor, NOW + number)
    record = monitor.record()
    kept = json.dumps(record)
    for number in range(100, 200):
        decide(monitor, NOW + number, source="fallback", cause="timeout", features={"jobs": 1.0})
        monitor.record_feedback(NOW + number, 1.0, "policy")
    assert json.dumps(record) == kept
