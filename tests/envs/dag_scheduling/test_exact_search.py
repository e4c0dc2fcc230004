"""The exact optimum against hand computation, plain enumeration and the baselines."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from loadmaster.envs.dag_scheduling import observation as obs
from loadmaster.envs.dag_scheduling.baselines import BASELINES
from loadmaster.envs.dag_scheduling.env import DagSchedulingEnv
from loadmaster.envs.dag_scheduling.episode import run_episode
from loadmaster.envs.dag_scheduling.exact_search import optimal_result
from loadmaster.envs.dag_scheduling.jobs import equal_tasks
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.workloads import load_workload
from loadmaster.envs.errors import InputError
from tests.envs.dag_scheduling.cluster import workload_of


def test_optimum_of_one_executor_is_shortest_job_first() -> None:
    # Three jobs drawn from tasks of 1 s and 4 s, one executor, 2 s to move. In any order the k-th
    # job ends after k moves and the first k tasks, so shortest first is best.
    workload = workload_of([equal_tasks(1, 1000)], [equal_tasks(1, 4000)])
    settings = DagSchedulingSettings(jobs=3, executors=1)
    for seed in range(5):
        result = optimal_result(settings, seed, workload)
        expected = np.cumsum(2 + np.sort(np.where(result.template == 0, 1, 4)))
        assert sorted(result.completion_s) == expected.tolist()


def cheapest(env: DagSchedulingEnv, observation: dict[str, Any]) -> float:
    """Compute the least cost from here by trying every action on copies."""
    costs = []
    for row in np.flatnonzero(observation["schedulable"]):
        lowest, highest = 1, 1
        if row < env.settings.max_stages:  # else it idles
            lowest = int(observation["jobs"][observation["stage_job"][row], obs.MIN_LIMIT])
            highest = env.settings.total_executors
        for limit in range(lowest, highest + 1):
            branch = copy.deepcopy(env)
            after, reward, terminated, _, _ = branch.step(np.array([row, limit]))
            costs.append(-reward + (0 if terminated else cheapest(branch, after)))
    return min(costs)


@pytest.mark.parametrize("objective", ["jct", "makespan"])
def test_search_equals_plain_enumeration(objective: str) -> None:
    workload = workload_of([equal_tasks(1, 2000), equal_tasks(2, 3000, 0)], [equal_tasks(2, 1000)])
    values = {"jobs": 2, "executors": 2, "objective": objective}
    limits = {"max_jobs": 2, "max_stages": 4, "max_edges": 4}
    for seed in range(2):
        env = DagSchedulingEnv(workload, **values, **limits)
        expected = cheapest(env, env.reset(seed=seed)[0])
        result = optimal_result(DagSchedulingSettings.model_validate(values), seed, workload)
        cost = result.jct_s.sum() if objective == "jct" else result.makespan_s
        assert cost == pytest.approx(expected)


@pytest.mark.parametrize("objective", ["jct", "makespan"])
def test_optimum_is_a_lower_bound_of_baselines(objective: str) -> None:
    settings = DagSchedulingSettings(workload="toy", jobs=3, executors=2, objective=objective)
    workload = load_workload(settings)
    for seed in range(4):
        cost = {}
        for name in ("optimal", *BASELINES):
            result = run_episode(name, settings, seed, workload)
            cost[name] = result.mean_jct_s if objective == "jct" else result.makespan_s
        assert cost["optimal"] <= min(cost.values()) + 1e-9, seed


def test_recording_does_not_change_the_optimum() -> None:
    settings = DagSchedulingSettings(workload="toy", jobs=2, executors=2)
    plain = run_episode("optimal", settings, 1)
    recorded = run_episode("optimal", settings, 1, record=True)
    assert recorded.trace is not None
    assert len(recorded.trace.start_ms) >= recorded.tasks
    assert recorded.completion_s.tolist() == plain.completion_s.tolist()


def test_large_instances_are_refused() -> None:
    with pytest.raises(InputError, match="too large"):
        run_episode("optimal", DagSchedulingSettings(), 0)
