"""Tuned rules of stream scaling: what is tried, what is kept, and which entry an episode uses."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.stream_scaling.baselines import BASELINES, Baseline
from loadmaster.envs.stream_scaling.baselines.rules import REMEMBERED
from loadmaster.envs.stream_scaling.calibration import (
    Calibration,
    tuned_baseline,
    untuned_baselines,
)
from loadmaster.envs.stream_scaling.episode import build_setup
from loadmaster.envs.stream_scaling.rollout import run_baseline, run_episode
from loadmaster.envs.stream_scaling.settings import StreamScalingSettings
from loadmaster.envs.stream_scaling.tuning import (
    SPACES,
    TUNING,
    prepare,
    static_plans,
)
from loadmaster.platform.evaluation.calibration import FIRST_SEED, calibrate

SHORT = StreamScalingSettings(minutes=720)
JOB = build_setup(SHORT)
ENTRY: dict[str, Any] = {
    "baseline": "hpa", "job": "small-1", "tasks": 10, "workload": "clarknet-like",
    "semantics": "flink", "latency_weight": 0.7, "load_scale": 1.0, "parameters": {"target": 0.5},
    "plan": [], "reward": 0.0, "first_seed": 1_000_000, "seeds": 8,
}  # fmt: skip


def kept_in(folder: Path, *changes: Mapping[str, Any]) -> Path:
    path = folder / "kept.json"
    path.write_text(json.dumps([{**ENTRY, **change} for change in changes]))
    return path


def tuned(name: str, path: Path, **settings: Any) -> Baseline:
    made = StreamScalingSettings(calibration=path, **settings)
    return tuned_baseline(name, made, build_setup(made))


@pytest.mark.parametrize("name", TUNING.tunable)
def test_tuned_rule_is_no_worse_on_the_seeds_it_was_tuned_on(name: str, tmp_path: Path) -> None:
    best, scored = calibrate(name, prepare(SHORT), 2, 1)
    path = tmp_path / "kept.json"
    path.write_text(json.dumps([vars(best)]))
    settings = SHORT.model_copy(update={"calibration": path})
    seeds = range(FIRST_SEED, FIRST_SEED + 2)
    after = np.mean([run_episode(name, settings, seed, JOB).reward for seed in seeds])
    before = np.mean([run_baseline(BASELINES[name], SHORT, JOB, seed).reward for seed in seeds])
    assert after == pytest.approx(scored[0][0], abs=1e-12)
    assert after >= before
    assert len(vars(best)["plan"]) == (10 if name == "static" else 0)


@pytest.mark.parametrize("name", SPACES)
def test_candidates_are_different_and_possible(name: str) -> None:
    found = prepare(SHORT).candidates(name)
    assert 30 <= len(found) <= 120
    assert len({baseline.values for baseline in found}) == len(found)
    for baseline in found:
        values = baseline.parameters
        assert values.get("down_min", 0) <= REMEMBERED * values["interval_min"]
    assert {*SPACES[name].grid} <= {*SPACES[name].moves}
    assert {*BASELINES[name].parameters} <= {*SPACES[name].moves}
    for values in SPACES[name].moves.values():
        assert list(values) == sorted(values)


@pytest.mark.parametrize("name", SPACES)
def test_moves_change_one_parameter(name: str) -> None:
    begin = prepare(SHORT).candidates(name)[0]
    moved = [found for move in prepare(SHORT).moves(begin) if (found := move(begin)) is not None]
    assert len(moved) > len(SPACES[name].moves)
    for baseline in moved:
        assert sum(a != b for a, b in zip(baseline.values, begin.values, strict=True)) == 1


@pytest.mark.parametrize("most", [60, 200])
def test_moves_of_a_plan_keep_chains_and_limits(most: int) -> None:
    """Where no instance is left, one more of a chain is taken from another."""
    settings = StreamScalingSettings(max_instances=most)
    setup = build_setup(settings)
    chains = setup.tables.chain
    assert len(np.unique(chains)) < 10, "small-1 has a chain"
    plans = static_plans(settings, setup)
    assert len({plan.plan for plan in plans}) == len(plans) > 5
    exchanged = 0
    for begin in plans:
        for move in prepare(settings).moves(begin):
            if (moved := move(begin)) is None:
                continue
            plan, change = np.array(moved.plan), np.array(moved.plan) - begin.plan
            assert plan.min() >= 1
            assert plan.sum() <= most
            np.testing.assert_array_equal(plan, plan[chains])
            assert len(np.unique(chains[change == 1])) <= 1
            exchanged += {1, -1} <= {*change}
            if not {1, -1} <= {*change}:
                assert len(np.unique(chains[change != 0])) == 1
    assert (exchanged > 0) == (most == 60)


def test_plan_is_kept_and_used(tmp_path: Path) -> None:
    plan = [3, 4, 5, 6, 3, 3, 4, 4, 4, 4]
    path = kept_in(tmp_path, {"baseline": "static", "parameters": {}, "plan": plan})
    settings = SHORT.model_copy(update={"calibration": path})
    result = run_episode("static", settings, 0, JOB, record=True)
    assert result.parallelism is not None
    np.testing.assert_array_equal(result.parallelism, np.tile(plan, (720, 1)))
    assert tuned("static", path, job="small-2") is BASELINES["static"], "another job's plan"


def test_rules_without_an_entry_of_the_job_are_untuned(tmp_path: Path) -> None:
    path = kept_in(tmp_path, {}, {"baseline": "ds2", "job": "large-1", "tasks": 52})
    settings = SHORT.model_copy(update={"calibration": path})
    assert untuned_baselines(settings, JOB) == ("static", "threshold", "ds2", "dhalion", "flink")
    assert untuned_baselines(SHORT, JOB) == ()


def test_plan_of_another_number_of_tasks_is_refused() -> None:
    with pytest.raises(InputError, match="a plan for 3 tasks; expected 10"):
        run_baseline(replace(BASELINES["static"], plan=(1, 2, 3)), SHORT, JOB, 0)


@pytest.mark.parametrize(
    ("settings", "target"),
    [
        ({}, 0.5),
        ({"load_scale": 1.9}, 0.6),
        ({"latency_weight": 0.3, "load_scale": 2.0}, 0.4),
        ({"semantics": "paper"}, 0.3),
        ({"job": "small-2"}, 0.5),
        ({"job": "medium-2"}, 0.9),
        ({"workload": "toy"}, 0.5),
    ],
)
def test_nearest_entry_is_used(settings: dict[str, Any], target: float, tmp_path: Path) -> None:
    """The same job first; of other jobs that with the nearest number of tasks."""
    path = kept_in(
        tmp_path,
        {},
        {"load_scale": 2.0, "parameters": {"target": 0.6}},
        {"latency_weight": 0.4, "parameters": {"target": 0.4}},
        {"semantics": "paper", "parameters": {"target": 0.3}},
        {"job": "large-1", "tasks": 52, "parameters": {"target": 0.9}},
        {"baseline": "ds2", "load_scale": 1.9, "parameters": {"target": 0.7}},
    )
    found = tuned("hpa", path, **settings)
    assert found.parameters == {**BASELINES["hpa"].parameters, "target": target}
    assert tuned("random", path, **settings) is BASELINES["random"]


@pytest.mark.parametrize(
    "change",
    [
        {"baseline": "hpq"},
        {"parameters": {"targt": 0.5}},
        {"parameters": {"target": "half"}},
        {"parameters": {"target": None}},
        {"parameters": {"interval_min": 0}},
        {"parameters": [0.5]},
        {"plan": [1, 2]},
        {"plan": [0] * 10},
        {"plan": [1.5] * 10},
        {"plan": 3},
        {"load_scale": 0},
        {"latency_weight": float("nan")},
        {"tasks": 0},
        {"size": 1},
    ],
)
def test_malformed_entry_is_one_line(change: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is malformed") as found:
        tuned("hpa", kept_in(tmp_path, change))
    assert "\n" not in str(found.value)


def test_entry_describes_its_setting() -> None:
    settings = StreamScalingSettings(minutes=720, load_scale=0.5, latency_weight=0.6)
    best = prepare(settings).entry(BASELINES["flink"], 0.123456, range(5, 8))
    assert isinstance(best, Calibration)
    assert best.setting == ("small-1", "clarknet-like", "flink", 0.6, 0.5, "flink")
    assert (best.tasks, best.reward, best.first_seed, best.seeds) == (10, 0.1235, 5, 3)
