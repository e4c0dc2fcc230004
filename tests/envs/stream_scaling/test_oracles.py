"""The clairvoyant oracle beside rules, and both beside the optimum of jobs with one task."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings
from loadmaster.envs.stream_scaling.baselines import BASELINES
from loadmaster.envs.stream_scaling.clairvoyant import run_clairvoyant
from loadmaster.envs.stream_scaling.episode import EpisodeResult, Setup, build_setup
from loadmaster.envs.stream_scaling.exact_search import run_optimal
from loadmaster.envs.stream_scaling.jobs import Task, build_job
from loadmaster.envs.stream_scaling.rollout import run_baseline
from loadmaster.envs.stream_scaling.schedule import Schedule, record_schedule, schedule_result
from loadmaster.envs.stream_scaling.settings import WARM_UP_MIN, StreamScalingSettings

RULES = tuple(BASELINES.values())
ONE_TASK = build_job("one", [Task("a", 1.0)])
FAULTS = [
    {"kind": "spike", "at_min": 60, "factor": 3.0},
    {"kind": "drift", "at_min": 90, "factor": 2.0},
    {"kind": "lost-instance", "at_min": 150},
]


def setting(**values: Any) -> tuple[StreamScalingSettings, Setup]:
    one = values.pop("one_task", False)
    settings = build_settings(StreamScalingSettings, values)
    return settings, build_setup(settings, ONE_TASK if one else None)


@pytest.mark.parametrize("semantics", ["flink", "paper"])
@pytest.mark.parametrize("faults", [[], FAULTS])
def test_schedule_of_a_rule_repeats_it(semantics: str, faults: list[dict[str, Any]]) -> None:
    settings, setup = setting(minutes=300, semantics=semantics, faults=faults)
    planned = replace(BASELINES["static"], plan=(3,) * len(setup.tables.cap))
    for rule in (*RULES, planned):
        own = run_baseline(rule, settings, setup, 3, record=True)
        schedule, reward = record_schedule(rule, settings, setup, 3)
        again = schedule_result(settings, setup, 3, schedule, rule.name, record=True)
        assert reward == own.reward == again.reward
        assert own.restarts == again.restarts
        for name in ("latency_min", "utilisation", "instances", "lag", "parallelism"):
            assert np.array_equal(getattr(own, name), getattr(again, name))


@pytest.mark.slow
@pytest.mark.parametrize("semantics", ["flink", "paper"])
@pytest.mark.parametrize("faults", [[], FAULTS])
@pytest.mark.parametrize("job", ["small-1", "medium-1"])
def test_clairvoyant_is_never_below_a_rule(
    job: str, semantics: str, faults: list[dict[str, Any]]
) -> None:
    settings, setup = setting(job=job, minutes=200, semantics=semantics, faults=faults)
    for seed in (0, 1):
        found = run_clairvoyant(settings, setup, seed, RULES)
        assert found.reward >= max(run_baseline(r, settings, setup, seed).reward for r in RULES)


@pytest.mark.slow
def test_clairvoyant_finds_more_than_one_rule_shows() -> None:
    settings, setup = setting(minutes=1440)
    rules = [BASELINES["static"]]
    found = run_clairvoyant(settings, setup, 0, rules, record=True)
    again = run_clairvoyant(settings, setup, 0, rules)
    assert (found.policy, found.seed, found.reward) == ("clairvoyant", 0, again.reward)
    assert found.reward > run_baseline(rules[0], settings, setup, 0).reward + 0.02
    assert found.parallelism is not None
    assert np.array_equal(found.parallelism.sum(axis=1), found.instances)
    with pytest.raises(InputError, match="no rivals"):
        run_clairvoyant(settings, setup, 0, [])


def brute_force(settings: StreamScalingSettings, setup: Setup, seed: int) -> float:
    """The highest reward over all decisions: 0 goes on, else the new parallelism."""
    decisions = -(-settings.minutes // settings.decide_every_min)
    best = -np.inf
    for options in product(range(settings.max_parallelism + 1), repeat=decisions):
        switches = np.flatnonzero(options)
        minutes = WARM_UP_MIN + settings.decide_every_min * switches
        schedule = Schedule(minutes, np.array(options)[switches][:, None])
        best = max(best, schedule_result(settings, setup, seed, schedule, "all").reward)
    return best


@pytest.mark.slow
@pytest.mark.parametrize("semantics", ["flink", "paper"])
@pytest.mark.parametrize("lost", [False, True])
def test_optimum_equals_that_of_all_schedules(semantics: str, lost: bool) -> None:
    faults = [{"kind": "lost-instance", "at_min": 20, "minutes": 15}] if lost else []
    settings, setup = setting(
        one_task=True, semantics=semantics, minutes=58, decide_every_min=12, load_scale=0.5,
        max_parallelism=3, initial=3, faults=faults,
    )  # fmt: skip
    for seed in (0, 1):
        best = run_optimal(settings, setup, seed).reward
        assert best == pytest.approx(brute_force(settings, setup, seed), abs=1e-12)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_nothing_is_above_the_optimum(seed: int) -> None:
    """With a decision every minute all rules are in the class of schedules that is searched."""
    settings, setup = setting(
        one_task=True, minutes=40, decide_every_min=1, load_scale=0.6, max_parallelism=6, initial=6
    )
    best = run_optimal(settings, setup, seed)
    oracle = run_clairvoyant(settings, setup, seed, RULES)
    others: list[EpisodeResult] = [run_baseline(rule, settings, setup, seed) for rule in RULES]
    assert best.policy == "optimal"
    assert best.reward >= oracle.reward - 1e-12 >= max(r.reward for r in others) - 1e-12
    assert oracle.reward >= best.reward - 0.01  # the search over blocks is close to it


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"minutes": 60}, "10 tasks"),
        ({"one_task": True, "minutes": 6000}, "1,200 decisions"),
    ],
)
def test_large_instances_have_no_optimum(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=f"too large for policy 'optimal': .*{reason}"):
        run_optimal(*setting(**values), 0)
