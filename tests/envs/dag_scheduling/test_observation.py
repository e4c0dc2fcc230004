"""Observations: columns on a toy job, and task durations known or missing."""

from __future__ import annotations

import numpy as np

from loadmaster.envs.dag_scheduling import observation as obs
from loadmaster.envs.dag_scheduling.env import DagSchedulingEnv
from loadmaster.envs.dag_scheduling.episode import run_episode
from loadmaster.envs.dag_scheduling.jobs import equal_tasks
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.workloads import load_workload
from tests.envs.dag_scheduling.cluster import Cluster, workload_of

# Tasks of 1, 4 and 7 s: 2 x 1 + 2 x 4 + 1 x 7 s are 17 s of work in 5 tasks.
CHAIN = [equal_tasks(2, 1000), equal_tasks(2, 4000, 0), equal_tasks(1, 7000, 1)]
SHORT = [equal_tasks(5, 600)]


def test_columns_of_the_toy_diamond_at_the_start() -> None:
    env = DagSchedulingEnv(workload="toy", jobs=1, executors=5)
    observation = env.reset(seed=0)[0]
    while env.result().template[0] != 2:
        observation = env.reset()[0]
    stages, job = observation["stages"][:4], observation["jobs"][0]
    assert observation["cluster"].tolist() == [1, 4, 4, 5, 5, 0]
    for column, expected in {
        obs.UNASSIGNED: [1, 2, 4, 1],
        obs.UNSTARTED: [1, 2, 4, 1],
        obs.MEAN_S: [1, 2, 1, 1],
        obs.CRITICAL_S: [4, 3, 2, 1],
        obs.HEIGHT: [2, 1, 1, 0],
        obs.RUNNABLE: [1, 0, 0, 0],
        obs.LONGEST_AHEAD_S: [2, 2, 1, 1],
    }.items():
        assert stages[:, column].tolist() == expected, column
    assert observation["edges"][:4].tolist() == [[0, 1], [0, 2], [1, 3], [2, 3]]
    assert job[[obs.EXECUTORS, obs.IS_SOURCE, obs.MIN_LIMIT, obs.AGE_S]].tolist() == [0, 0, 1, 0]
    assert job[[obs.WORK_S, obs.WORK_LEFT_S, obs.UNPLACED]].tolist() == [10, 10, 8]
    assert np.flatnonzero(observation["schedulable"]).tolist() == [0]


def test_missing_estimates_give_the_mean_of_all_tasks() -> None:
    # 20 s in 10 tasks: every task is observed as 2 s.
    cluster = Cluster(workload_of(CHAIN, SHORT), [(0, 0), (0, 1)], executors=2, estimates="missing")
    assert cluster.decision()
    stages, jobs = cluster.view.stages, cluster.view.jobs
    assert stages[:4, obs.MEAN_S].tolist() == [2, 2, 2, 2]
    assert stages[:4, obs.CRITICAL_S].tolist() == [6, 4, 2, 2]
    assert stages[:4, obs.LONGEST_AHEAD_S].tolist() == [2, 2, 2, 2]
    assert jobs[:2, obs.WORK_S].tolist() == [10, 10]
    assert jobs[:2, obs.WORK_LEFT_S].tolist() == [10, 10]
    cluster.choose(0, 0, limit=2)
    assert cluster.decision()
    assert jobs[0, obs.WORK_LEFT_S] == 6  # two tasks have started
    assert jobs[0, obs.WORK_S] == 10


def test_missing_estimates_change_only_policies_that_use_them() -> None:
    known = DagSchedulingSettings(executors=30, arrivals="poisson", jobs=30, load=0.8)
    missing = known.model_copy(update={"estimates": "missing"})
    workload = load_workload(known)
    for policy in ("fifo", "fair", "random", "sjf-cp"):
        one, other = (run_episode(policy, s, 3, workload) for s in (known, missing))
        same = one.completion_s.tolist() == other.completion_s.tolist()
        assert same == (policy != "sjf-cp")
        assert one.arrival_s.tolist() == other.arrival_s.tolist()
        assert one.work_s.tolist() == other.work_s.tolist()  # results have the true work


def test_missing_estimates_hide_all_durations() -> None:
    faster = workload_of([equal_tasks(2, 2000), equal_tasks(2, 3000, 0), equal_tasks(2, 1000, 0)])
    slower = workload_of([equal_tasks(2, 1000), equal_tasks(2, 2000, 0), equal_tasks(2, 3000, 0)])
    views = []
    for workload in (faster, slower):
        env = DagSchedulingEnv(workload_bank=workload, jobs=1, executors=4, estimates="missing")
        views.append(env.reset(seed=0)[0])
    for name, table in views[0].items():
        assert np.array_equal(table, views[1][name]), name
