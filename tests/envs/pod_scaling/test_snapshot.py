"""Snapshots: the service observes and decides on the state of an episode as the episode does."""

from typing import Any

import numpy as np
import pytest

from loadmaster.envs.pod_scaling.applications import Application
from loadmaster.envs.pod_scaling.baselines import BASELINES
from loadmaster.envs.pod_scaling.baselines.memory import RuleState, new_rule_state
from loadmaster.envs.pod_scaling.episode_runner import EpisodeRunner, warm_up
from loadmaster.envs.pod_scaling.observation import blank_observation, observe
from loadmaster.envs.pod_scaling.rollout import run
from loadmaster.envs.pod_scaling.settings import STEP_INTERVALS, WARM_UP_STEPS
from loadmaster.envs.pod_scaling.snapshot import (
    PodSnapshot,
    plan_of_rule,
    snapshot_of,
    state_from_snapshot,
)
from loadmaster.envs.pod_scaling.state import (
    CPU,
    END_PODS,
    HORIZON,
    NOW,
    PODS,
    R_PODS,
    R_READY,
    R_SEEN,
    R_USED_CORES,
    REPLICAS,
    SimState,
)
from tests.envs.pod_scaling.episodes import setting, start

FIRST = WARM_UP_STEPS * STEP_INTERVALS
# Pods that need more memory than they get, so that some restart.
TIGHT = Application("tight", cpu_s=0.1, io_s=0.05, memory_mib=200, request_mib=12, slo_s=0.8)
EXACT = {"missing_metrics": 0.0, "max_nodes": 100, "nodes": 100}


def observed(snapshot: PodSnapshot) -> Any:
    view = blank_observation()
    observe(*state_from_snapshot(snapshot), view)
    return view.state


def test_observations_of_an_episode_are_those_of_its_snapshots() -> None:
    settings, setup = setting(TIGHT, workload="bursty-like", steps=60, missing_metrics=0.2)
    rng = np.random.default_rng(1)
    seen_ages, restarts = set(), 0.0
    for seed in range(3):
        runner = EpisodeRunner(settings, setup, seed)
        while not runner.over:
            state = runner.episode.state
            for reports, steps in ((240, 60), (12, 2)):
                found = observed(snapshot_of(setup.constants, state, reports, steps))
                np.testing.assert_array_equal(found, runner.view.state)
            seen_ages.add(float(runner.view.state[12]))
            restarts += runner.view.state[11]
            runner.decide(rng.uniform(-0.5, 0.5, 3).astype(np.float32))
    assert {0.25, 0.5, 0.75, 1.0, 1.25} <= seen_ages
    assert restarts > 0


def step_rule(name: str, setup: Any, state: SimState, memory: RuleState) -> None:
    """Run a rule for a control step."""
    end = state.clock[HORIZON]
    state.clock[HORIZON] = state.clock[NOW] + STEP_INTERVALS
    run(BASELINES[name].rule, BASELINES[name].values, setup.constants, state, memory)
    state.clock[HORIZON] = end


def plan_in_episode(name: str, setup: Any, state: SimState, memory: RuleState) -> Any:
    """The plan that the rule of an episode sets at its next interval."""
    copied = SimState(*(table.copy() for table in state))
    remembered = RuleState(*(table.copy() for table in memory))
    copied.clock[HORIZON] = copied.clock[NOW] + 1
    run(BASELINES[name].rule, BASELINES[name].values, setup.constants, copied, remembered)
    return copied.plan


@pytest.mark.parametrize("name", ["hpa", "vpa", "mpa", "mpa-usage", "hpa-cpu-vpa-memory"])
def test_rules_decide_on_snapshots_as_in_the_episode(name: str) -> None:
    """With reports that all arrive after two intervals, and the whole episode in the window."""
    for seed in range(2):
        setup, state = start(TIGHT, seed=seed, workload="bursty-like", steps=55, **EXACT)
        state.delays[:] = 2
        warm_up(setup.constants, state)
        memory, changed = new_rule_state(state), 0
        for step in range(54):
            since_first = int(state.clock[NOW]) - FIRST
            snapshot = snapshot_of(setup.constants, state, since_first + STEP_INTERVALS)
            expected = plan_in_episode(name, setup, state, memory)
            vertical = (WARM_UP_STEPS + step) % 2 == 0
            found = plan_of_rule(snapshot, BASELINES[name], vertical)
            if len(snapshot.reports) < 20:  # minutes that HPA compares are not known
                expected[REPLICAS] = max(expected[REPLICAS], snapshot.plan[REPLICAS])
            np.testing.assert_allclose(found, expected, rtol=1e-12, err_msg=f"step {step}")
            changed += bool((expected != snapshot.plan).any())
            step_rule(name, setup, state, memory)
        assert changed > 0


def test_window_peak_decides_by_the_reports_alone() -> None:
    setup, state = start(TIGHT, workload="bursty-like", steps=20, **EXACT)
    warm_up(setup.constants, state)
    memory = new_rule_state(state)
    for _ in range(19):
        expected = plan_in_episode("window-peak", setup, state, memory)
        found = plan_of_rule(snapshot_of(setup.constants, state), BASELINES["window-peak"])
        np.testing.assert_array_equal(found, expected)
        step_rule("window-peak", setup, state, memory)


def snapshot(**changed: Any) -> PodSnapshot:
    """Three pods of a core that use 0.9 of it each, for ten minutes."""
    setup, state = start(load_scale=2.7, steps=40, initial_replicas=3, initial_cpu_m=1000, **EXACT)
    state.clock[HORIZON] = 10 * STEP_INTERVALS
    warm_up(setup.constants, state)
    run(BASELINES["static"].rule, BASELINES["static"].values, setup.constants, state,
        new_rule_state(state))  # fmt: skip
    found = snapshot_of(setup.constants, state)
    return PodSnapshot(**{**vars(found), **changed})


def test_a_rule_knows_the_maximum_of_its_recommendations() -> None:
    """HPA: 4 pods for 2.7 cores at 0.7; no fewer for five minutes after a load of more."""
    assert plan_of_rule(snapshot(), BASELINES["hpa"])[REPLICAS] == 4
    reports = snapshot().reports.copy()
    reports[-8:, R_USED_CORES] = 0.9
    recent = snapshot(reports=reports)
    assert plan_of_rule(recent, BASELINES["hpa"])[REPLICAS] == 3, "4 were needed minutes ago"
    reports[:, R_USED_CORES] = 0.9
    assert plan_of_rule(snapshot(reports=reports), BASELINES["hpa"])[REPLICAS] == 2


def test_no_pods_are_removed_by_a_short_history() -> None:
    reports = snapshot().reports.copy()
    reports[:, R_USED_CORES] = 0.9
    for minutes, expected in ((4, 3), (5, 2)):
        short = snapshot(reports=reports[-4 * minutes :])
        assert plan_of_rule(short, BASELINES["hpa"])[REPLICAS] == expected


def test_numbers_of_pods_are_known_without_metrics() -> None:
    reports = snapshot().reports.copy()
    reports[-2:, R_SEEN] = 0.0
    reports[-1, [R_PODS, R_READY]] = 5, 3
    _, state = state_from_snapshot(snapshot(reports=reports))
    assert (state.clock[PODS], state.totals[END_PODS]) == (5, 3)
    reports[-1, [R_PODS, R_READY]] = np.nan
    _, state = state_from_snapshot(snapshot(reports=reports))
    assert (state.clock[PODS], state.totals[END_PODS]) == (3, 3), "those of the row before"


def test_mpa_is_horizontal_where_vertical_changes_nothing() -> None:
    found = snapshot()
    both = plan_of_rule(found, BASELINES["mpa"])
    vertical = plan_of_rule(found, BASELINES["mpa"], vertical_turn=True)
    horizontal = plan_of_rule(found, BASELINES["mpa"], vertical_turn=False)
    assert vertical[REPLICAS] == found.plan[REPLICAS]
    assert horizontal[CPU] == found.plan[CPU]
    expected = horizontal if (vertical == found.plan).all() else vertical
    np.testing.assert_array_equal(both, expected)


def test_one_step_and_one_report_are_enough() -> None:
    found = snapshot()
    short = snapshot(
        reports=found.reports[-1:], requests=found.requests[-1:], p99_s=found.p99_s[-1:],
        restarts=found.restarts[-1:], ooms=found.ooms[-1:],
    )  # fmt: skip
    state = observed(short)
    assert np.isfinite(state).all()
    assert state[10] == 0, "the load did not change"
    for name, baseline in BASELINES.items():
        if name != "random":
            plan = plan_of_rule(short, baseline)
            assert (short.low <= plan).all()
            assert (plan <= short.high).all()
