"""Falls of episode rewards: how soon they are noticed, and how often there is a false alarm."""

import json
import math
import random
from statistics import mean, median

import pytest
from pydantic import TypeAdapter

from loadmaster.serving.monitoring import reward_falls
from loadmaster.serving.monitoring.drift import Drift
from loadmaster.serving.monitoring.lifecycle import LifecycleSettings
from loadmaster.serving.monitoring.monitor import MonitorSettings
from loadmaster.serving.monitoring.reward_falls import FallDetector, FallSettings, alarm_threshold
from tests.serving.monitoring.reward_simulation import (
    EPISODE_S,
    LEVEL,
    Rewards,
    delays,
    false_alarms,
    monitor_alarm,
)

SETTINGS = FallSettings()
EPISODES = MonitorSettings(lifecycle=LifecycleSettings(window=10))


def run(
    detector: FallDetector, rewards: Rewards, count: int, less: float = 0.0, scale: float = 1.0
) -> list[Drift]:
    """Changes found in so many episodes, each lower by a share `less`."""
    drawn = rewards.draw(random.Random(5), LEVEL)
    found = (
        detector.add(time, scale * (reward - less * LEVEL), 1, SETTINGS)
        for (time, reward), _ in zip(drawn, range(count), strict=False)
    )
    return [one for one in found if one is not None]


@pytest.mark.parametrize(
    "rewards",
    [Rewards(0.02), Rewards(0.04), Rewards(0.03, is_square=True), Rewards(0.04, correlation=0.3)],
)
def test_a_monitor_notices_falls_soon_and_has_few_false_alarms(rewards: Rewards) -> None:
    """The goal: 10% within 5 episodes in the median, at most 1 false alarm in 1,000."""
    make = monitor_alarm(EPISODES)
    assert median(delays(make, rewards, steady=40, runs=30)) <= 5
    assert false_alarms(make, rewards, runs=6) <= 1


@pytest.mark.parametrize(("reference", "between"), [(0.5, 300.0), (1.0, 300.0)])
def test_threshold_gives_the_mean_time_between_false_alarms(
    reference: float, between: float
) -> None:
    threshold, noise, times = alarm_threshold(reference, between), random.Random(0), list[int]()
    for _ in range(300):
        total, count = 0.0, 0
        while total <= threshold:
            total, count = max(0.0, total - noise.gauss(0, 1) - reference), count + 1
        times.append(count)
    assert 0.8 < mean(times) / between < 1.25


@pytest.mark.parametrize("scale", [1.0, -1.0, 1e-6, 1e9])
def test_units_and_sign_of_the_level_do_not_matter(scale: float) -> None:
    detector = FallDetector()
    less = math.copysign(0.15, scale)
    assert run(detector, Rewards(), 60, scale=scale) == []
    found = run(detector, Rewards(), 10, less, scale)
    assert found[0].fell
    assert found[0].before == pytest.approx(scale * LEVEL, rel=0.03)
    assert found[0].after == pytest.approx(scale * LEVEL * (1 - less), rel=0.06)


def test_a_rise_is_found_after_a_fall() -> None:
    detector = FallDetector()
    run(detector, Rewards(), 60)
    assert [one.fell for one in run(detector, Rewards(), 20, 0.2)] == [True]
    assert [one.fell for one in run(detector, Rewards(), 20)] == [False]


def test_one_outlier_raises_no_alarm() -> None:
    detector = FallDetector()
    run(detector, Rewards(), 60)
    assert detector.add(0.0, 0.0, 1, SETTINGS) is None
    assert run(detector, Rewards(), 5) == []


def test_the_first_episodes_raise_no_alarm() -> None:
    detector = FallDetector()
    values = [100.0] * 5 + [10.0] * (reward_falls.FIRST_EPISODES - 5)
    assert [detector.add(0.0, value, 1, SETTINGS) for value in values] == [None] * len(values)


@pytest.mark.parametrize("values", [[0.0], [5.0], [1.0, -1.0], [1e99, -1e99]])
def test_degenerate_streams_stay_finite(values: list[float]) -> None:
    """The same hour for ever: the cycle is not observable, and its variance stays bounded."""
    detector = FallDetector()
    for number in range(3000):
        detector.add(7.0, values[number % len(values)], 1, SETTINGS)
    json.dumps(TypeAdapter(FallDetector).dump_python(detector), allow_nan=False)
    assert max(abs(one) for row in detector.covariance for one in row) <= 1 + 1e-9


def test_blocks_are_means_of_rewards() -> None:
    single, blocks = FallDetector(), FallDetector()
    for number in range(40):
        value = 100.0 + number % 7
        single.add(number * EPISODE_S, value, 1, SETTINGS)
        for part in (value - 3, value, value + 3):
            blocks.add(number * EPISODE_S, part, 3, SETTINGS)
    assert blocks.coefficients == pytest.approx(single.coefficients)


def test_restored_detector_continues_identically() -> None:
    detector, kind = FallDetector(), TypeAdapter(FallDetector)
    run(detector, Rewards(), 50)
    again = kind.validate_json(kind.dump_json(detector))
    assert again == detector
    assert run(again, Rewards(), 20, 0.1) == run(detector, Rewards(), 20, 0.1) != []
    with pytest.raises(ValueError, match="too_long"):
        kind.validate_python({"coefficients": [1.0] * 9})
