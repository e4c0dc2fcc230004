"""The monitor: counts, drifts, recommendations, persistence and cost."""

import json
import random
import time
from collections.abc import Callable, Iterator
from timeit import repeat
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.envs.errors import InputError
from loadmaster.serving.monitoring.drift import MAX_STREAMS
from loadmaster.serving.monitoring.history import INTERVALS, IntervalCounts, percentiles
from loadmaster.serving.monitoring.lifecycle import LifecycleSettings, LifecycleState
from loadmaster.serving.monitoring.monitor import Monitor, MonitorSettings
from loadmaster.serving.monitoring.reward_falls import FallSettings

NOW = 1_800_000_000.0
SERVING, ONLINE, OFFLINE = LifecycleState.SERVING, LifecycleState.ONLINE, LifecycleState.OFFLINE
QUICK = LifecycleSettings(window=20, z_threshold=2.0)
QUICKLY = MonitorSettings(lifecycle=QUICK, reward_block=1)
BOLD = QUICKLY.model_copy(update={"lifecycle": QUICK.model_copy(update={"retrain_offline": False})})
WARY = QUICKLY.model_copy(update={"on_input_drift": "retrain"})
# Neither detector finds anything.
BLIND = QUICKLY.model_copy(
    update={"delta": 1e-9, "falls": FallSettings(between_false_alarms=1e300)}
)


def decide(monitor: Monitor, time: float = NOW, cause: str | None = None, **more: Any) -> Any:
    """Record a decision of the policy, or of the rule if there is a cause."""
    values = {"latency_ms": 2.0, "features": {}, **more}
    return monitor.record_decision(
        time, source="fallback" if cause else "policy", cause=cause, **values
    )


def add(monitor: Monitor, stream: str, mean: float, count: int, std: float = 1.0) -> list[Any]:
    """Add rewards of "policy" or "rule", or states with that many "jobs"; stop at a drift of
    rewards. Returns the drifts."""
    noise, drifts = random.Random(0), list[Any]()
    for number in range(1, count + 1):
        value = noise.gauss(mean, std)
        if stream == "jobs":
            drifts += decide(monitor, NOW + number, features={"jobs": value})
        elif found := monitor.record_feedback(NOW + number, value, stream):  # type: ignore[arg-type]
            return list(found)
    return drifts


def test_decisions_are_counted_by_source_and_cause() -> None:
    monitor = Monitor()
    assert monitor.status()["latency_ms"] == {"p50": None, "p99": None}
    for latency in (1.0, 2.0, 3.0):
        decide(monitor, latency_ms=latency, agreement=1.0)
    decide(monitor, cause="timeout", latency_ms=50.0, agreement=0.0)
    decide(monitor, cause="paused", shadow_fault=True)
    status = monitor.status()
    assert status["decisions"] == {
        "total": 5, "policy": 3, "fallback": 2, "by_cause": {"timeout": 1, "paused": 1},
        "fallback_rate": 0.4,
    }  # fmt: skip
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
    assert monitor.history(NOW)["intervals"] == []
    decide(monitor, NOW, cause="timeout", agreement=1.0)
    decide(monitor, NOW + 9.9, agreement=0.0)
    monitor.record_feedback(NOW + 5, 1.0, "policy")
    monitor.record_feedback(NOW + 6, 4.0, "rule")
    decide(monitor, NOW + 30)
    status = monitor.history(NOW + 45)
    assert status["interval_s"] == 10
    assert [each["decisions"] for each in status["intervals"]] == [2, 0, 0, 1, 0]
    first, empty = status["intervals"][:2]
    two_ms = pytest.approx(2, rel=0.03)
    assert first == {
        "time": "2027-01-15T08:00:00.000+00:00", "decisions": 2, "fallbacks": 1,
        "by_cause": {"timeout": 1}, "p50_ms": two_ms, "p99_ms": two_ms, "reward_mean": 2.5,
        "drift": 0, "shadow_agreement": 0.5,
    }  # fmt: skip
    assert (empty["reward_mean"], empty["p50_ms"], empty["shadow_agreement"]) == (None, None, None)
    later = monitor.history(NOW + 3600)["intervals"]
    decide(monitor, NOW - 5000)  # the clock was set back: counted in the latest interval
    assert monitor.history(NOW)["intervals"][-1]["decisions"] == 2
    assert len(later) == INTERVALS
    assert later[-1]["time"] == "2027-01-15T09:00:00.000+00:00"


RULE, GOOD, BAD = ("rule", -12, 20), ("policy", -8, 100), ("policy", -20, 40)
CALM, SHIFTED = ("jobs", 12, 1000), ("jobs", 40, 200)
KEEP, FALL_BACK, RETRAIN = ("keep", None), ("fall back", OFFLINE), ("retrain", None)


@pytest.mark.parametrize(
    ("settings", "streams", "state", "expected", "words"),
    [
        (QUICKLY, [RULE, GOOD], SERVING, KEEP, "holds"),
        (QUICKLY, [RULE, GOOD], ONLINE, ("keep", SERVING), "reaches"),
        (QUICKLY, [RULE, GOOD, BAD], SERVING, FALL_BACK, "rewards of the policy fell from -8"),
        (QUICKLY, [("rule", -30, 20), GOOD, BAD], SERVING, RETRAIN, "not below"),
        (QUICKLY, [GOOD, BAD], SERVING, FALL_BACK, "rules are not known"),
        (BOLD, [GOOD, BAD], SERVING, RETRAIN, "rules are not known"),
        (BLIND, [RULE, GOOD, BAD], SERVING, FALL_BACK, "mean"),  # found by the window alone
        (BLIND, [("rule", -20, 20), ("policy", -16, 100), ("policy", -4, 10)], SERVING,
         ("keep", ONLINE), "deviation"),  # a rise
        (QUICKLY, [GOOD, BAD, ("policy", -4, 99)], SERVING, KEEP, ""),  # a rise cancels the fall
        (QUICKLY, [("policy", 1000, 99), ("policy", 997, 99)], SERVING, KEEP, ""),  # a small fall
        (QUICKLY, [CALM, RULE, GOOD, SHIFTED], SERVING, KEEP, "holds"),
        (QUICKLY, [CALM, RULE, GOOD, SHIFTED, BAD], SERVING, FALL_BACK, "'jobs' drifted from 12"),
        (WARY, [CALM, SHIFTED], SERVING, RETRAIN, "'jobs' drifted from 12"),
        (WARY, [CALM, SHIFTED], OFFLINE, KEEP, ""),
        (QUICKLY, [CALM, SHIFTED], SERVING, KEEP, ""),  # inputs alone are noted only
        (WARY, [("jobs", 12, 3000), ("jobs", 13, 1500)], SERVING, KEEP, ""),  # a small drift
    ],
)  # fmt: skip
def test_recommendation_by_rewards_and_drifts(
    settings: MonitorSettings,
    streams: list[tuple[str, float, int]],
    state: LifecycleState,
    expected: tuple[str, LifecycleState | None],
    words: str,
) -> None:
    monitor = Monitor(settings)
    drifts = [add(monitor, *stream) for stream in streams]
    assert drifts[-1] or expected[0] == "keep" or settings is BLIND
    found = monitor.recommendation(state)
    assert found[:2] == expected
    assert words in found.why
    monitor.policy_changed()
    assert monitor.recommendation(SERVING).action == "keep"


def test_newer_rewards_supersede_an_input_drift() -> None:
    monitor = Monitor(QUICKLY)
    for stream in (CALM, RULE, GOOD, SHIFTED, ("policy", -8, 21), BAD):
        add(monitor, *stream)
    found = monitor.recommendation(SERVING)
    assert (found.action, "jobs" in found.why) == ("fall back", False)


def test_drifts_are_shown_and_survive_a_change_of_the_policy() -> None:
    monitor = Monitor(QUICKLY)
    for stream in (CALM, RULE, GOOD, SHIFTED, BAD):
        add(monitor, *stream)
    monitor.policy_changed()
    status = monitor.status()
    rewards, inputs = status["drift"]["rewards"], status["drift"]["inputs"]["jobs"]
    assert (rewards["count"], inputs["count"]) == (1, 1)
    assert rewards["last"].startswith("2027-01-15T08:00:")
    assert inputs["last"] is not None
    assert [each["what"] for each in status["drift"]["events"]] == ["inputs", "rewards"]
    assert inputs["mean"] == pytest.approx(40, abs=1)
    assert monitor.input_means() == {"jobs": inputs["mean"]}
    assert [status["rewards"][actor]["count"] for actor in ("policy", "rule")] == [0, 20]


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
        values = {"latency_ms": noise.expovariate(0.3), "agreement": (n % 3) / 2}
        decide(monitor, at, None if n % 7 else "timeout", features=features, **values)
        monitor.record_feedback(at, noise.gauss(-5 - shift, 1), "policy" if n % 4 else "rule")
    return monitor.record()


def test_restored_monitor_continues_identically(busy: dict[str, Any]) -> None:
    monitor = Monitor(record=busy)
    again = Monitor(record=json.loads(json.dumps(busy, allow_nan=False)))
    assert monitor.record() == again.record() == busy
    for each in (monitor, again):
        assert add(each, "policy", -60.0, 60)
        assert add(each, "jobs", 90.0, 500)
    assert again.record() == monitor.record()
    assert again.status() == monitor.status()
    assert again.history(NOW + 1100) == monitor.history(NOW + 1100)
    assert again.recommendation(SERVING) == monitor.recommendation(SERVING)
    assert again.status()["drift"]["inputs"]["jobs"]["count"] >= 2
    other = Monitor(MonitorSettings(lifecycle=QUICK, input_block=2), busy)
    assert other.status()["rewards"]["policy"]["count"] == 20


STREAM = {"drifts": 0, "last": None, "left": 1, "total": 0.0, "count": 0}
ADWIN = {"delta": 0.1, "every": 4, "buckets": 5, "seen": 1, "cut": None}
DAMAGED = [{"levels": levels} for levels in ([[[1.0, 0.0, 1.0]]], [[[float("nan")] * 4]], [], 7)]


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"history": [{"decisions": 1}]},
        {"rewards": {"policy": [float("nan")], "rule": []}},
        {"decisions": {"policy": "many"}},
        *({"inputs": {"jobs": {**STREAM, "adwin": {**ADWIN, **one}}}} for one in DAMAGED),
        {"inputs": {"jobs": {**STREAM, "adwin": {**ADWIN, "levels": [[]], "cut": [1.0]}}}},
        {"drifts": [[1, 2]]},
        {"evidence": {"fall": 1}},
        {"falls": {"coefficients": [1.0]}},
        {"estimate": [1.0, 2.0]},
        {"converged": {"level": float("nan"), "count": 3}},
        dict.fromkeys(Monitor().record()),
    ],
)
def test_damaged_record_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        Monitor(record={**Monitor().record(), **change})


def test_record_of_before_there_were_trials_is_continued(busy: dict[str, Any]) -> None:
    older = {name: busy[name] for name in busy if name not in ("falls", "estimate", "converged")}
    monitor = Monitor(record=older)
    assert (monitor.estimate, monitor.converged) == (None, None)
    assert monitor.status()["rewards"]["policy"]["count"] == 200
    add(monitor, "policy", -25.0, 1)
    monitor.update_converged()
    assert monitor.converged == pytest.approx(-25, abs=2)


def test_record_size_is_bounded(busy: dict[str, Any]) -> None:
    monitor = Monitor(record=busy)
    for n in range(8000):
        decide(monitor, NOW + 1000 + n, latency_ms=n % 50, features={"jobs": float(n % 11)})
        monitor.record_feedback(NOW + 1000 + n, float(n % 5), "policy")
    assert len(json.dumps(monitor.record())) < max(4 * len(json.dumps(busy)), 250_000)


def took_s(work: Callable[[], object]) -> float:
    """The least CPU time of forty runs: other processes on the cores lengthen some of them."""
    return min(repeat(work, time.process_time, repeat=40, number=1))


def test_record_and_history_of_an_hour_take_little_time() -> None:
    """Both run in the gateway's event loop, and must not go over all decisions."""
    monitor, noise = Monitor(), random.Random(0)
    latencies_ms = [noise.lognormvariate(1.0, 1.0) for _ in range(20_000)]
    for number, latency_ms in enumerate(latencies_ms):
        decide(monitor, NOW + number / 5, latency_ms=latency_ms)
    all_s = took_s(lambda: json.dumps(latencies_ms))
    assert took_s(monitor.record) < all_s / 4
    assert took_s(lambda: monitor.history(NOW + 4000)) < all_s / 4


def test_record_is_not_changed_by_later_counts() -> None:
    """Another thread writes it."""
    monitor = Monitor()
    decide(monitor)
    record = monitor.record()
    kept = json.dumps(record)
    for number in range(100, 200):
        decide(monitor, NOW + number, cause="timeout", features={"jobs": 1.0})
        monitor.record_feedback(NOW + number, 1.0, "policy")
    assert json.dumps(record) == kept


@pytest.mark.parametrize("better", [0.0, 10.0])
def test_policy_equal_to_the_rules_keeps_acting(better: float) -> None:
    noise, monitor = random.Random(2), Monitor()
    add(monitor, "rule", -100, monitor.settings.lifecycle.window, std=20)
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
        window, replaced = monitor.settings.lifecycle.window, False
        assert most < window
        for actor, mean, times in (("rule", -100, window), ("policy", -80, 300)):
            for _ in range(times):
                monitor.record_feedback(NOW, noise.gauss(mean, deviation), actor)  # type: ignore[arg-type]
        for _ in range(most):
            monitor.record_feedback(NOW, noise.gauss(-150, deviation), "policy")
            replaced |= monitor.recommendation(SERVING).action == "fall back"
        assert replaced
