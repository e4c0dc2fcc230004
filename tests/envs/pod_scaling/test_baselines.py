"""Rules on hand-made reports, and the clairvoyant bound above all of them."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.pod_scaling.actions import apply_action
from loadmaster.envs.pod_scaling.baselines import BASELINES, HPA, PARAMETERS, Baseline
from loadmaster.envs.pod_scaling.baselines.memory import BUCKETS, RuleState, new_rule_state
from loadmaster.envs.pod_scaling.baselines.vertical import (
    CPU_UNIT,
    bucket_of,
    bucket_start,
    percentile,
)
from loadmaster.envs.pod_scaling.clairvoyant import run_clairvoyant
from loadmaster.envs.pod_scaling.episode import build_episode, episode_result
from loadmaster.envs.pod_scaling.episode_runner import warm_up
from loadmaster.envs.pod_scaling.rollout import run, run_baseline, run_episode
from loadmaster.envs.pod_scaling.settings import STEP_INTERVALS
from loadmaster.envs.pod_scaling.simulator import advance
from loadmaster.envs.pod_scaling.state import (
    HORIZON,
    MEMORY,
    NOW,
    R_SEEN,
    REPLICAS,
    SimState,
)
from tests.envs.pod_scaling.episodes import PLAIN, set_load, setting, start

STEADY = {"missing_metrics": 0.0, "start_sigma": 0.0, "node_cpu_m": 1e6, "node_memory_mib": 1e7}


def rule(name: str, **changed: float) -> Baseline:
    return replace(BASELINES[name], parameters={**BASELINES[name].parameters, **changed})


def run_intervals(
    baseline: Baseline, setup: Any, state: SimState, intervals: int, memory: RuleState | None = None
) -> RuleState:
    """Run a rule for so many intervals."""
    memory = memory or new_rule_state(state)
    end = state.clock[HORIZON]
    state.clock[HORIZON] = state.clock[NOW] + intervals
    run(baseline.rule, baseline.values, setup.constants, state, memory)
    state.clock[HORIZON] = end
    return memory


def steady(seed: int = 0, **values: Any) -> Any:
    """An episode after its warm-up: 10 requests a second, 1 core of work."""
    setup, state = start(PLAIN, seed=seed, **{**STEADY, "steps": 60, **values})
    warm_up(setup.constants, state)
    return setup, state


@pytest.mark.parametrize(
    ("replicas", "target", "expected"),
    [(4, 0.5, 2), (2, 0.25, 4), (2, 0.5, 2), (2, 0.52, 2), (2, 0.46, 2), (2, 0.44, 3)],
)
def test_hpa_scales_to_its_target_within_a_tolerance(
    replicas: int, target: float, expected: int
) -> None:
    setup, state = steady(initial_replicas=replicas, initial_cpu_m=1000)
    run_intervals(rule("hpa", target=target), setup, state, 30)
    assert state.plan[REPLICAS] == expected


def test_hpa_removes_pods_only_after_five_minutes() -> None:
    setup, state = steady(initial_replicas=8, initial_cpu_m=1000, load_scale=4.0)
    memory = run_intervals(rule("hpa", target=0.5), setup, state, 20)
    assert state.plan[REPLICAS] == 8
    set_load(state, state.arrivals // 4)
    run_intervals(rule("hpa", target=0.5), setup, state, 19, memory)
    assert state.plan[REPLICAS] == 8, "of the last five minutes the highest counts"
    run_intervals(rule("hpa", target=0.5), setup, state, 6, memory)
    assert state.plan[REPLICAS] == 2
    fresh, other = steady(initial_replicas=8, initial_cpu_m=1000)
    run_intervals(rule("hpa", target=0.5), fresh, other, 1)
    assert other.plan[REPLICAS] == 2, "the first recommendation has no other before it"


def test_hpa_adds_at_most_four_pods_or_as_many_again() -> None:
    setup, state = steady(initial_replicas=1, initial_cpu_m=2000)
    set_load(state, 15 * 200)
    seen = []
    memory = None
    for _ in range(12):
        memory = run_intervals(rule("hpa", target=0.1), setup, state, 1, memory)
        seen.append(int(state.plan[REPLICAS]))
    assert 5 in seen
    assert max(seen) == 20
    assert all(after <= max(before + 4, 2 * before) for before, after in pairwise(seen))


def test_hpa_holds_without_metrics_and_counts_missing_pods() -> None:
    setup, state = steady(initial_replicas=4, initial_cpu_m=1000)
    state.reports[:, R_SEEN] = 0.0
    state.missing[:] = 1.0
    run_intervals(rule("hpa", target=0.5), setup, state, 8)
    assert state.plan[REPLICAS] == 4
    # Half of the pods missing: 0.25 of those seen, all of the request of the others.
    setup, state = steady(initial_replicas=4, initial_cpu_m=1000)
    state.missing[:] = 0.5
    state.reports[:, R_SEEN] = 0.5
    run_intervals(rule("hpa", target=0.9), setup, state, 8)
    assert state.plan[REPLICAS] == 3


def test_buckets_grow_by_five_percent() -> None:
    assert bucket_start(0, CPU_UNIT) == 0
    assert bucket_start(1, CPU_UNIT) == pytest.approx(0.01)
    assert bucket_start(2, CPU_UNIT) == pytest.approx(0.0205)
    for value in (0.0, 0.005, 0.015, 0.3, 1.7):
        place = bucket_of(value, CPU_UNIT)
        assert bucket_start(place, CPU_UNIT) <= value < bucket_start(place + 1, CPU_UNIT)
    weights = np.zeros(BUCKETS)
    weights[[3, 10]] = 9.0, 1.0
    assert percentile(weights, 0.9, CPU_UNIT) == bucket_start(4, CPU_UNIT), "the end of the bucket"
    assert percentile(weights, 0.95, CPU_UNIT) == bucket_start(11, CPU_UNIT)


def test_vpa_follows_use_and_raises_memory_after_an_oom() -> None:
    setup, state = steady(initial_replicas=2, initial_cpu_m=2000, initial_memory_mib=2000)
    run_intervals(rule("vpa", half_life_min=10), setup, state, 200)
    cores, mib = float(state.plan[0]), float(state.plan[MEMORY])
    assert 0.55 < cores < 0.65, "0.5 cores a pod, with a margin of 15%"
    assert 238 < mib < 300, "the floor of 250 MB"
    hungry = replace(PLAIN, memory_mib=500)
    setup, state = start(hungry, initial_replicas=2, initial_memory_mib=400, steps=60, **STEADY)
    warm_up(setup.constants, state)
    run_intervals(rule("vpa"), setup, state, 160)
    assert state.plan[MEMORY] > 550


def test_vpa_needs_two_replicas() -> None:
    setup, state = steady(initial_replicas=1, initial_cpu_m=2000, initial_memory_mib=2000)
    run_intervals(rule("vpa", half_life_min=10), setup, state, 100)
    assert state.plan.tolist() == [2.0, 2000.0, 1.0]


def test_window_peak_sizes_by_the_highest_use() -> None:
    setup, state = steady(initial_replicas=2, initial_cpu_m=2000)
    run_intervals(rule("window-peak", margin=1.0, window_min=5), setup, state, 60)
    assert state.plan[0] == pytest.approx(1.0, rel=0.06)


def test_hpa_on_usage_ignores_the_size_of_pods() -> None:
    """Alternating with a vertical rule, HPA on utilisation ends with more and smaller pods."""
    found = {}
    for name in ("mpa", "mpa-usage"):
        setup, state = steady(initial_replicas=4, initial_cpu_m=1000, min_cpu_m=128)
        run_intervals(rule(name, target=0.5, half_life_min=10), setup, state, 200)
        found[name] = float(state.plan[REPLICAS])
    assert found["mpa-usage"] == 2
    assert found["mpa"] > 2


@pytest.mark.parametrize("workload", ["diurnal-like", "bursty-like"])
@pytest.mark.parametrize("resize", ["in-place", "evict"])
def test_no_policy_exceeds_the_bound(workload: str, resize: str) -> None:
    settings, setup = setting(None, application="test", workload=workload, resize=resize, steps=60)
    rng = np.random.default_rng(0)
    for seed in range(4):
        bound = run_clairvoyant(settings, setup, seed)
        assert (bound.policy, bound.seed) == ("clairvoyant", seed)
        policies = [*BASELINES.values(), rule("static", memory_factor=0.6), rule("hpa", target=0.9)]
        for baseline in policies:
            found = run_baseline(baseline, settings, setup, seed)
            assert found.application == bound.application
            assert found.reward < bound.reward
        application, state = build_episode(settings, setup, seed)
        warm_up(setup.constants, state)
        action = rng.uniform(-1, 1, 3).astype(np.float32)
        while state.clock[NOW] < state.clock[HORIZON]:  # a walk over good plans
            apply_action(setup.constants, state, action)
            advance(setup.constants, state, STEP_INTERVALS)
            action = (action + rng.normal(0, 0.1, 3)).clip(-1, 1).astype(np.float32)
        assert episode_result(state, application, "walk", seed).reward < bound.reward


def test_bound_is_reached_by_its_own_plan_in_a_steady_load() -> None:
    """A constant load without throttling: the bound's plan, held, comes within 3%."""
    settings, setup = setting(PLAIN, throttling=False, steps=20)
    bound = run_clairvoyant(settings, setup, 0)
    replicas = round(float(np.median(bound.replicas)))
    own = settings.model_copy(
        update={
            "initial_replicas": replicas,
            "initial_cpu_m": 1010 * float(np.median(bound.cores)) / replicas,
            "initial_memory_mib": 1.05 * float(bound.mib.max()) / replicas,
        }
    )
    held = run_baseline(BASELINES["static"], own, setup, 0)
    assert bound.reward * 0.93 < held.reward < bound.reward


def test_unknown_policy_is_refused() -> None:
    settings, setup = setting()
    with pytest.raises(InputError, match="did you mean 'hpa'"):
        run_episode("hpaa", settings, 0, setup)
    assert len(BASELINES["hpa"].values) == len(PARAMETERS)
    assert BASELINES["hpa"].rule == HPA
