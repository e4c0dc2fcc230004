"""Faults: their short form, their description, and the measures of a job's recovery."""

from typing import Any

import numpy as np
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings
from loadmaster.envs.stream_scaling.describe import describe_episode
from loadmaster.envs.stream_scaling.episode import EpisodeResult, build_episode, build_setup
from loadmaster.envs.stream_scaling.job_files import load_job
from loadmaster.envs.stream_scaling.metrics import (
    CALM_MIN,
    RECOVERED_LAG_MIN,
    episode_metrics,
    peak_lag,
    recovery_min,
)
from loadmaster.envs.stream_scaling.rollout import run_episode
from loadmaster.envs.stream_scaling.settings import WARM_UP_MIN, Fault, StreamScalingSettings

MINUTES, LOAD = 300, 100.0
HIGH = LOAD * RECOVERED_LAG_MIN  # the highest lag of a job that has recovered
SPIKE = Fault(kind="spike", at_min=100, minutes=10)
SILENT = Fault(kind="silent-source", at_min=100, minutes=30)


def settings_of(**values: Any) -> StreamScalingSettings:
    return build_settings(StreamScalingSettings, values)


def result_of(*high: tuple[int, int, float]) -> EpisodeResult:
    """An episode whose lag is 1, and the given value from one minute to another."""
    lag, other = np.ones(MINUTES), np.ones(MINUTES)
    for begin, end, value in high:
        lag[begin:end] = value
    return EpisodeResult(
        policy="test", seed=0, latency_min=other, latency_variance=other, output=other,
        utilisation=other, instances=other, slots=other, lag=lag,
        load=np.full(MINUTES, LOAD), up=other, restarts=0, target_min=1.0, reward=0.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "high", "recovery", "peak"),
    [
        (SPIKE, [], 0, 1),
        (SPIKE, [(100, 140, 900)], 40, 900),
        (SPIKE, [(100, 140, HIGH)], 0, HIGH),
        (SPIKE, [(100, 140, 900), (150, 160, 400)], 60, 900),  # no calm between the two
        (SPIKE, [(100, 140, 900), (140 + CALM_MIN, 200, 950)], 40, 900),
        (SPIKE, [(50, 90, 900)], 0, 1),
        (SPIKE, [(100, MINUTES, 900)], MINUTES - 100, 900),
        (SPIKE, [(115, 120, 900)], 20, 900),  # a lag that comes late, within the calm
        (SILENT, [(100, 129, 900)], 0, 1),  # while the source is silent
        (SILENT, [(135, 150, 900)], 20, 900),  # since it is back, in minute 130
    ],
)
def test_recovery_and_peak_of_a_known_lag(
    fault: Fault, high: list[tuple[int, int, float]], recovery: float, peak: float
) -> None:
    result = result_of(*high)
    assert recovery_min(result, [fault]) == recovery
    assert peak_lag(result, [fault]) == peak


def test_of_several_faults_the_worst_counts() -> None:
    later = Fault(kind="lost-instance", at_min=200)
    result = result_of((100, 120, 500), (200, 205, 800))
    assert recovery_min(result, [SPIKE, later]) == 20
    assert peak_lag(result, [SPIKE, later]) == 800


def test_a_fault_until_after_the_end_has_finite_measures() -> None:
    result = result_of((250, MINUTES, 700))
    lost = Fault(kind="lost-instance", at_min=240, minutes=500)
    assert (recovery_min(result, [lost]), peak_lag(result, [lost])) == (MINUTES - 240, 700)
    silent = SILENT.model_copy(update={"minutes": 500.0})
    assert (recovery_min(result, [silent]), peak_lag(result, [silent])) == (0, 0)


def test_an_episode_with_a_spike_has_its_measures() -> None:
    calm = settings_of(minutes=600)
    spike = settings_of(minutes=600, faults={"kind": "spike", "at_min": 200, "minutes": 10})
    names = [metric.name for metric in episode_metrics(spike)]
    assert names == [*(metric.name for metric in episode_metrics(calm)), "peak_lag", "recovery"]
    found = {
        metric.name: metric.of(run_episode("static", spike, 0)) for metric in episode_metrics(spike)
    }
    undisturbed = run_episode("static", calm, 0)
    before = peak_lag(undisturbed, spike.faults)
    spiked = 10 * undisturbed.load[200:210].sum()
    assert 10 * before < found["peak_lag"] <= spiked + before
    assert spike.faults[0].minutes < found["recovery"] < 400
    assert recovery_min(undisturbed, spike.faults) == 0


@pytest.mark.parametrize(
    "values", ["spike@70", {"kind": "spike", "at_min": 70}, [{"kind": "spike", "at_min": 70}]]
)
def test_one_fault_needs_no_list(values: Any) -> None:
    assert settings_of(faults=values).faults == (Fault(kind="spike", at_min=70),)


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ("storm@70", "faults.0.kind"),
        ("spike", "faults.0.at_min"),
        ("spike@noon", "faults.0.at_min"),
        ("spike@1440", "1440"),
        ({"kind": "spike", "at_min": 5, "minuts": 3}, "minutes"),
        ({"kind": "silent-source", "at_min": 5, "task": "task-9"}, "source-1"),
        ({"kind": "spike", "at_min": 5, "task": "task-9"}, "source-1"),
    ],
)
def test_bad_faults_are_refused_in_a_line(faults: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as found:
        build_setup(settings_of(minutes=1440, faults=faults))
    assert "\n" not in str(found.value)


def test_a_spike_may_have_one_source() -> None:
    one = {"kind": "spike", "at_min": 10, "minutes": 5, "task": "source-2", "factor": 3}
    settings = settings_of(workload="toy", minutes=100, faults=one)
    load = build_episode(settings, build_setup(settings), 0).state.load[:, WARM_UP_MIN + 10]
    assert load.tolist() == [60, 180, 60, 60]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"kind": "spike"}, "load of all sources x10 in minutes 70 to 100"),
        ({"kind": "drift", "factor": 1.5}, "service time of the largest task grows to x1.5"),
        ({"kind": "lost-instance", "task": "task-9"}, "an instance of task-9 lost"),
        ({"kind": "silent-source"}, "the largest source silent"),
    ],
)
def test_titles_name_the_fault(fault: dict[str, Any], words: str) -> None:
    settings = settings_of(faults={**fault, "at_min": 70}, skew=0.2)
    title = describe_episode(settings, load_job(settings))
    assert words in title
    assert "skew 0.2" in title
