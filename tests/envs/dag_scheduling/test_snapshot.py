"""A state is its tables and nothing else: copies live on, room can be added at any time."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from loadmaster.envs.dag_scheduling import state as cols
from loadmaster.envs.dag_scheduling.baselines import BASELINES
from loadmaster.envs.dag_scheduling.episode import run_episode
from loadmaster.envs.dag_scheduling.rollout import (
    EpisodeResult,
    episode_result,
    initial_state,
    run_baseline,
)
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.state import DONE, SimState, clone_state
from loadmaster.envs.dag_scheduling.workloads import load_workload
from tests.envs.dag_scheduling.cluster import Cluster

STREAM = DagSchedulingSettings(arrivals="poisson", jobs=30, interarrival_s=5, executors=20)
WORKLOAD = load_workload(STREAM)


def assert_same(one: Any, other: Any) -> None:
    """Two results, or two traces, or two arrays, field by field."""
    if hasattr(one, "__dataclass_fields__"):
        for name in one.__dataclass_fields__:
            assert_same(getattr(one, name), getattr(other, name))
    else:
        np.testing.assert_array_equal(one, other)


def play(cluster: Cluster, rng: np.random.Generator, decisions: int) -> None:
    """Up to so many random legal decisions."""
    for _ in range(decisions):
        if not cluster.decision():
            return
        row = int(rng.choice(np.flatnonzero(cluster.view.schedulable)))
        cluster.act(row, int(rng.integers(1, 21)))


def stream(slots: int = 0, trace_rows: int = 1000) -> Cluster:
    arrivals = initial_state(STREAM, WORKLOAD, seed=3).arrivals
    values = STREAM.model_dump(exclude_unset=True)
    return Cluster(WORKLOAD, arrivals, seed=3, slots=slots, trace_rows=trace_rows, **values)


def test_a_snapshot_resumed_gives_the_same_trajectory() -> None:
    cluster = stream()
    play(cluster, np.random.default_rng(0), 150)
    kept = clone_state(cluster.state)
    again = clone_state(cluster.state)
    play(cluster, np.random.default_rng(1), 100_000)
    assert cluster.state.clock[cols.STATUS] == DONE
    for table, later in zip(kept, again, strict=True):  # neither shares a table with the original
        np.testing.assert_array_equal(table, later)
    assert kept.clock[cols.FINISHED_JOBS] < len(cluster.state.arrivals)
    resumed = stream()
    resumed.state = kept
    play(resumed, np.random.default_rng(1), 100_000)
    assert_same(resumed.result(), cluster.result())


def baseline_result(policy: str, slots: int, trace_rows: int) -> tuple[EpisodeResult, SimState]:
    start = initial_state(STREAM, WORKLOAD, seed=3, slots=slots)
    start = start._replace(
        trace=np.zeros((trace_rows, 4), np.int32), trace_ms=np.zeros((trace_rows, 2), np.int64)
    )
    end = run_baseline(start, WORKLOAD.bank, BASELINES[policy])
    return episode_result(end, WORKLOAD, STREAM, policy, 3), end


@pytest.mark.parametrize("policy", ["fifo", "fair", "random"])
def test_growing_tables_changes_nothing(policy: str) -> None:
    small, end = baseline_result(policy, slots=1, trace_rows=1)
    assert len(end.jobs) > 1  # it did grow
    assert len(end.trace) > 1
    large, end = baseline_result(policy, slots=1000, trace_rows=1_000_000)
    assert (len(end.jobs), len(end.trace)) == (1000, 1_000_000)  # it did not
    assert_same(small, large)


def test_growing_tables_changes_no_decision_by_decision_run_either() -> None:
    results = []
    for slots, trace_rows in ((1, 1), (1000, 1_000_000)):
        cluster = stream(slots, trace_rows)
        play(cluster, np.random.default_rng(2), 100_000)
        results.append(cluster.result())
    assert_same(*results)


@pytest.mark.parametrize("policy", BASELINES)
def test_recording_changes_nothing(policy: str) -> None:
    recorded = run_episode(policy, STREAM, 5, WORKLOAD, record=True)
    assert recorded.trace is not None
    assert len(recorded.trace.job) > 20_000  # the trace grew on the way
    silent = run_episode(policy, STREAM, 5, WORKLOAD)
    assert_same(dataclasses.replace(recorded, trace=None), silent)
