"""Arrivals, horizons and durations, which no policy can change."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.envs.dag_scheduling.baselines import BASELINES
from loadmaster.envs.dag_scheduling.episode import run_episode
from loadmaster.envs.dag_scheduling.jobs import Stage
from loadmaster.envs.dag_scheduling.rollout import draw_horizon_ms, draw_jobs
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.workloads import load_workload
from tests.envs.dag_scheduling.cluster import workload_of

TOY = load_workload(DagSchedulingSettings(workload="toy"))  # works of 4, 6 and 10 s


def gaps_s(**values: float) -> np.ndarray:
    settings = DagSchedulingSettings(arrivals="poisson", jobs=20_000, **values)
    jobs = draw_jobs(settings, TOY, np.random.default_rng(0))
    assert jobs[0, 0] == 0
    return np.diff(jobs[:, 0]) / 1000


def test_batch_arrives_at_time_zero() -> None:
    jobs = draw_jobs(DagSchedulingSettings(jobs=30_000), TOY, np.random.default_rng(0))
    assert not jobs[:, 0].any()
    counts = np.bincount(jobs[:, 1], minlength=3)  # templates are uniform: 2 degrees of freedom
    assert ((counts - 10_000) ** 2 / 10_000).sum() < 13.8  # exceeded once in a thousand


def test_poisson_gaps_are_exponential() -> None:
    gaps = gaps_s(interarrival_s=25.0)
    # Mean and standard deviation of an exponential are equal; errors of 25 / sqrt(20,000) = 0.18.
    assert gaps.mean() == pytest.approx(25, abs=0.7)
    assert gaps.std() == pytest.approx(25, abs=1)
    assert (gaps > 25).mean() == pytest.approx(np.exp(-1), abs=0.014)


def test_load_sets_the_mean_gap() -> None:
    # Mean work 20/3 s on 10 executors: at load 0.5 a job every (20/3) / (0.5 * 10) = 4/3 s.
    assert gaps_s(load=0.5, executors=10).mean() == pytest.approx(4 / 3, rel=0.03)


def test_stream_may_start_with_several_jobs() -> None:
    settings = DagSchedulingSettings(arrivals="poisson", jobs=5, initial_jobs=3)
    jobs = draw_jobs(settings, TOY, np.random.default_rng(0))
    assert len(jobs) == 8
    assert (jobs[:, 0] == 0).tolist() == [True] * 3 + [False] * 5


def test_horizon_is_geometric() -> None:
    rng, settings = np.random.default_rng(0), DagSchedulingSettings(horizon_s=50)
    drawn = np.array([draw_horizon_ms(settings, rng) for _ in range(20_000)])
    assert (drawn % 1000 == 0).all()
    assert drawn.min() == 1000
    assert drawn.mean() / 1000 == pytest.approx(50, rel=0.03)
    # Memoryless: beyond 50 s, the rest has the same mean.
    assert (drawn[drawn > 50_000] - 50_000).mean() == pytest.approx(drawn.mean(), rel=0.05)


def test_all_policies_get_the_same_jobs() -> None:
    settings = DagSchedulingSettings(arrivals="poisson", jobs=10, executors=10)
    results = [run_episode(policy, settings, 4) for policy in BASELINES]
    for result in results:
        np.testing.assert_array_equal(result.arrival_s, results[0].arrival_s)
        np.testing.assert_array_equal(result.template, results[0].template)
    assert len({result.mean_jct_s for result in results}) > 1


def test_all_policies_get_the_same_task_durations() -> None:
    drawn = {1: list(range(1000))}
    workload = workload_of([Stage(9, (), first=drawn, rest=drawn, fresh=drawn)] * 3)
    settings = DagSchedulingSettings(jobs=6, executors=1, moving_delay_s=0)
    durations = []
    for policy in ("fifo", "fair", "random"):
        trace = run_episode(policy, settings, 2, workload, record=True).trace
        assert trace is not None
        rows = np.lexsort((trace.start_ms, trace.stage, trace.job))
        durations.append((trace.end_ms - trace.start_ms)[rows].tolist())
    assert durations[0] == durations[1] == durations[2]
    assert len(set(durations[0])) > 100
