"""The state is its tables: copies are independent, tables can grow, memory is bounded."""

from __future__ import annotations

import dataclasses
import tracemalloc
from typing import Any

import numpy as np
import pytest

from loadmaster.envs.dag_scheduling import state as cols
from loadmaster.envs.dag_scheduling.baselines import BASELINES
from loadmaster.envs.dag_scheduling.episode import run_episode
from loadmaster.envs.dag_scheduling.rollout import (
    initial_state,
    run_baseline,
)
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.state import DONE, HORIZON, clone_state
from loadmaster.envs.dag_scheduling.workloads import load_workload
from tests.envs.dag_scheduling.cluster import NO_HORIZON, Cluster

STREAM = DagSchedulingSettings(arrivals="poisson", jobs=30, interarrival_s=5, executors=20)
WORKLOAD = load_workload(STREAM)


def assert_same(one: Any, other: Any) -> None:
    """Compare two results, traces or arrays field by field."""
    if hasattr(one, "__dataclass_fields__"):
        for name in one.__dataclass_fields__:
            assert_same(getattr(one, name), getattr(other, name))
    else:
        np.testing.assert_array_equal(one, other)


def play(cluster: Cluster, rng: np.random.Generator, decisions: int) -> None:
    """Take up to so many random legal decisions."""
    for _ in range(decisions):
        if not cluster.decision():
            return
        row = int(rng.choice(np.flatnonzero(cluster.view.schedulable)))
        cluster.act(row, int(rng.integers(1, 21)))


def stream(slots: int = 0, trace_rows: int = 1000) -> Cluster:
    arrivals = initial_state(STREAM, WORKLOAD, seed=3).arrivals
    values = STREAM.model_dump(exclude_unset=True)
    return Cluster(WORKLOAD, arrivals, seed=3, slots=slots, trace_rows=trace_rows, **values)


def test_cloned_state_resumes_with_the_same_trajectory() -> None:
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


@pytest.mark.parametrize("policy", ["fifo", "fair", "random"])
def test_growing_tables_does_not_change_a_run(policy: str) -> None:
    small, large = stream(slots=1, trace_rows=1), stream(slots=1000, trace_rows=1_000_000)
    assert_same(small.finish(policy), large.finish(policy))
    assert min(len(small.state.jobs), len(small.state.trace)) > 1
    assert (len(large.state.jobs), len(large.state.trace)) == (1000, 1_000_000)  # nothing grew


@pytest.mark.parametrize("policy", BASELINES)
def test_recording_does_not_change_the_episode(policy: str) -> None:
    recorded = run_episode(policy, STREAM, 5, WORKLOAD, record=True)
    assert recorded.trace is not None
    assert len(recorded.trace.job) > 20_000
    silent = run_episode(policy, STREAM, 5, WORKLOAD)
    assert_same(dataclasses.replace(recorded, trace=None), silent)


def test_recording_takes_memory_in_proportion_to_rows() -> None:
    settings = STREAM.model_copy(update={"jobs": 500, "interarrival_s": 25.0})
    tracemalloc.start()
    try:
        trace = run_episode("fair", settings, 0, WORKLOAD, record=True).trace
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert trace is not None
    assert len(trace.job) > 400_000
    assert peak / len(trace.job) < 45  # bytes: 32 a row, an eighth for moves, and the result's flag


@pytest.mark.slow
def test_memory_follows_the_jobs_in_the_system() -> None:
    settings = DagSchedulingSettings(arrivals="poisson", jobs=10_000, interarrival_s=25)
    tracemalloc.start()  # numpy reports its arrays, and compiled code allocates nothing else
    try:
        state = initial_state(settings, WORKLOAD, seed=0)
        state.setup[cols.HORIZON_MS] = state.arrivals[1000, 0]
        state = run_baseline(state, WORKLOAD.bank, BASELINES["fair"])
        assert state.clock[cols.STATUS] == HORIZON
        assert 950 < state.clock[cols.FINISHED_JOBS] <= 1000
        sizes = [table.nbytes for table in state]
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()

        state.setup[cols.HORIZON_MS] = NO_HORIZON
        state = run_baseline(state, WORKLOAD.bank, BASELINES["fair"])
        assert state.clock[cols.STATUS] == DONE
        assert state.clock[cols.FINISHED_JOBS] == 10_001
        assert [table.nbytes for table in state] == sizes
        _, peak = tracemalloc.get_traced_memory()
        assert peak - taken < 100_000  # the observation's tables; each job would have taken more
    finally:
        tracemalloc.stop()
