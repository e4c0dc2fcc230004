"""Task-duration estimates known or missing: what is seen changes, what happens does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loadmaster.envs.dag_scheduling import observation as obs
from loadmaster.envs.dag_scheduling.env import DagSchedulingEnv
from loadmaster.envs.dag_scheduling.episode import run_episode
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.workloads import load_workload
from tests.envs.dag_scheduling.cluster import Cluster, constant, workload_of

# Tasks of 1, 4 and 7 s: 2 x 1 + 2 x 4 + 1 x 7 s are 17 s of work in 5 tasks.
CHAIN = [constant(2, 1000), constant(2, 4000, 0), constant(1, 7000, 1)]
SHORT = [constant(5, 600)]


def test_by_hand() -> None:
    """20 s in 10 tasks: all that is known of any task is that it takes 2 s on average."""
    cluster = Cluster(workload_of(CHAIN, SHORT), [(0, 0), (0, 1)], executors=2, estimates="missing")
    assert cluster.decision()
    stages, jobs = cluster.view.stages, cluster.view.jobs
    assert stages[:4, obs.MEAN_S].tolist() == [2, 2, 2, 2]
    assert stages[:4, obs.CRITICAL_S].tolist() == [6, 4, 2, 2]
    assert stages[:4, obs.LONGEST_AHEAD_S].tolist() == [2, 2, 2, 2]
    assert jobs[:2, obs.WORK_S].tolist() == [10, 10]
    assert jobs[:2, obs.WORK_LEFT_S].tolist() == [10, 10]
    # Work left follows the tasks as they start.
    cluster.choose(0, 0, limit=2)
    assert cluster.decision()
    assert jobs[0, obs.WORK_LEFT_S] == 6
    assert jobs[0, obs.WORK_S] == 10


def test_known_is_the_default() -> None:
    cluster = Cluster(workload_of(CHAIN, SHORT), [(0, 0), (0, 1)], executors=2)
    assert cluster.decision()
    assert cluster.view.stages[:4, obs.MEAN_S] == pytest.approx([1, 4, 7, 0.6])
    assert cluster.view.jobs[:2, obs.WORK_S].tolist() == [17, 3]


@pytest.mark.parametrize(
    "arrivals", [{"arrivals": "batch"}, {"arrivals": "poisson", "jobs": 30, "load": 0.8}]
)
def test_who_ignores_durations_schedules_as_before(arrivals: dict[str, Any]) -> None:
    known = DagSchedulingSettings(executors=30, **arrivals)
    missing = DagSchedulingSettings(executors=30, estimates="missing", **arrivals)
    workload = load_workload(known)
    for policy in ("fifo", "fair", "random"):
        one, other = (run_episode(policy, s, 3, workload) for s in (known, missing))
        assert one.completion_s.tolist() == other.completion_s.tolist()
        assert one.work_s.tolist() == other.work_s.tolist()  # of a result, it is the true one
    one, other = (run_episode("sjf-cp", s, 3, workload) for s in (known, missing))
    assert one.arrival_s.tolist() == other.arrival_s.tolist()
    assert one.completion_s.tolist() != other.completion_s.tolist()


def test_nothing_seen_betrays_a_duration() -> None:
    """Two workloads that differ in nothing but durations look alike, whatever one does."""
    faster = workload_of([constant(2, 2000), constant(2, 3000, 0), constant(2, 1000, 0)])
    slower = workload_of([constant(2, 1000), constant(2, 2000, 0), constant(2, 3000, 0)])
    views = []
    for workload in (faster, slower):
        env = DagSchedulingEnv(workload_bank=workload, jobs=1, executors=4, estimates="missing")
        views.append(env.reset(seed=0)[0])
    for name, table in views[0].items():
        assert np.array_equal(table, views[1][name]), name
