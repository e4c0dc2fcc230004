"""The exhaustive optimum: right by hand, right by plain enumeration, and never beaten."""

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
from loadmaster.envs.dag_scheduling.jobs import Job, Stage, Workload, build_workload
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.workloads import load_workload
from loadmaster.envs.errors import InputError


def one_task_jobs(*seconds: int) -> Workload:
    stages = (Stage(tasks=1, parents=(), first={1: (s * 1000,)}) for s in seconds)
    return build_workload("one-task", [Job(f"{n}", (stage,)) for n, stage in enumerate(stages)])


def test_one_executor_runs_the_shortest_job_first() -> None:
    # Three jobs drawn from tasks of 1 s and 4 s, one executor, 2 s to move, no warm-up. In any
    # order the k-th job ends after k moves and the first k tasks, so shortest first is best.
    workload = one_task_jobs(1, 4)
    settings = DagSchedulingSettings(jobs=3, executors=1, warmup_s=0)
    for seed in range(5):
        result = optimal_result(settings, seed, workload)
        lengths = sorted({0: 1, 1: 4}[int(t)] for t in result.template)
        expected = np.cumsum([2 + length for length in lengths])
        assert sorted(result.completion_s) == expected.tolist()


def cheapest(env: DagSchedulingEnv, observation: dict[str, Any]) -> float:
    """The least cost from here by trying everything on copies: slow, and obviously right."""
    costs = []
    idle = len(observation["schedulable"]) - 1
    for row in np.flatnonzero(observation["schedulable"]):
        lowest = 1
        if row != idle:
            lowest = int(observation["jobs"][observation["stage_job"][row], obs.MIN_LIMIT])
        highest = 1 if row == idle else env.settings.total_executors
        for limit in range(lowest, highest + 1):
            branch = copy.deepcopy(env)
            after, reward, terminated, _, _ = branch.step(np.array([row, limit]))
            costs.append(-reward + (0 if terminated else cheapest(branch, after)))
    return min(costs)


@pytest.mark.parametrize("objective", ["jct", "makespan"])
def test_search_agrees_with_trying_everything(objective: str) -> None:
    stages = {
        "fork": (
            Stage(tasks=1, parents=(), first={1: (2000,)}),
            Stage(tasks=2, parents=(0,), first={1: (3000,)}),
        ),
        "flat": (Stage(tasks=2, parents=(), first={1: (1000,)}),),
    }
    workload = build_workload("tiny", [Job(name, parts) for name, parts in stages.items()])
    values = {"jobs": 2, "executors": 2, "objective": objective}
    limits = {"max_jobs": 2, "max_stages": 4, "max_edges": 4}
    for seed in range(3):
        env = DagSchedulingEnv(workload, **values, **limits)
        expected = cheapest(env, env.reset(seed=seed)[0])
        result = optimal_result(DagSchedulingSettings.model_validate(values), seed, workload)
        cost = result.jct_s.sum() if objective == "jct" else result.makespan_s
        assert cost == pytest.approx(expected)


@pytest.mark.parametrize("objective", ["jct", "makespan"])
def test_no_baseline_beats_the_optimum(objective: str) -> None:
    settings = DagSchedulingSettings(workload="toy", jobs=3, executors=2, objective=objective)
    workload = load_workload(settings)
    for seed in range(4):
        best = run_episode("optimal", settings, seed, workload)
        for name in BASELINES:
            rival = run_episode(name, settings, seed, workload)
            if objective == "jct":
                assert best.mean_jct_s <= rival.mean_jct_s + 1e-9, (name, seed)
            else:
                assert best.makespan_s <= rival.makespan_s + 1e-9, (name, seed)


def test_recorded_plan_is_the_one_that_was_found() -> None:
    settings = DagSchedulingSettings(workload="toy", jobs=2, executors=2)
    plain = run_episode("optimal", settings, 1)
    recorded = run_episode("optimal", settings, 1, record=True)
    assert recorded.trace is not None
    assert len(recorded.trace.start_ms) >= recorded.tasks
    assert recorded.completion_s.tolist() == plain.completion_s.tolist()


def test_large_instances_are_refused_with_a_remedy() -> None:
    with pytest.raises(InputError, match=r"too large for policy 'optimal'.*--workload toy"):
        run_episode("optimal", DagSchedulingSettings(), 0)
