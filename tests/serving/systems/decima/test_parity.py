"""Parity of endpoint and simulator: the same observations, the same decisions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from loadmaster.envs.dag_scheduling import state as state_cols
from loadmaster.envs.dag_scheduling.actions import apply_action
from loadmaster.envs.dag_scheduling.observation import observe
from loadmaster.envs.dag_scheduling.rollout import buffers_for, initial_state
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.simulator import advance
from loadmaster.envs.dag_scheduling.snapshot import state_from_snapshot
from loadmaster.envs.dag_scheduling.workloads import load_workload
from loadmaster.models.bundle import load_bundle
from loadmaster.models.decima.network import DecimaNetwork
from loadmaster.serving.systems.decima.examples import state_of
from loadmaster.serving.systems.decima.rounds import ServedPolicy
from loadmaster.serving.systems.decima.rules import RULES, DecimaRule
from loadmaster.serving.systems.decima.system import ENDPOINT
from tests.serving.systems.decima.episodes import (
    EPISODES,
    Decide,
    assignments,
    by_rule,
    in_process,
    parsed,
    rounds,
)

pytestmark = pytest.mark.slow

DECISIONS = 240  # of each case

CASES = [
    ("decima-stream", "stream"),
    ("decima-batch", "batch"),
    ("decima-classes", "classes"),
    ("decima-stream", "classes, stream"),
    ("decima-makespan", "no estimates"),
]


def compare(policy: ServedPolicy | DecimaRule, episode: str, decide: Decide, most: int) -> int:
    """Compare every round and every decision of an episode; returns the number of decisions."""
    decisions = 0
    for expected in rounds(EPISODES[episode], 11, decide):
        whole = policy.decide(parsed(expected.state, "round")).decision
        assert assignments(whole) == expected.given
        assert whole.idle == expected.free - sum(executors for _, _, executors, _ in expected.given)
        assert whole.undecided == 0
        for place, before in enumerate(expected.before):
            state = parsed(before, "one")
            one = policy.decide(state).decision
            assert assignments(one) == expected.given[place : place + 1]
            assert ENDPOINT.validate_decision(state, one) is None
        assert ENDPOINT.validate_decision(expected.state, whole) is None
        decisions += len(expected.before)
        if decisions >= most:
            break
    return decisions


@pytest.mark.parametrize(("bundle", "episode"), CASES)
def test_network_decisions_equal_those_in_the_simulator(
    root: Path, bundle: str, episode: str
) -> None:
    folder = root / "models" / "pretrained" / bundle
    network = load_bundle(folder).build()
    assert isinstance(network, DecimaNetwork)
    decisions = compare(ENDPOINT.policy(folder), episode, in_process(network), DECISIONS)
    assert decisions >= 200  # of five cases: 1,000


@pytest.mark.parametrize("episode", ["batch", "stream", "classes, stream"])
@pytest.mark.parametrize("rule", RULES)
def test_rule_decisions_equal_those_in_the_simulator(rule: str, episode: str) -> None:
    assert compare(ENDPOINT.rule(rule), episode, by_rule(rule), 80) >= 80


@pytest.mark.parametrize("episode", EPISODES)
def test_observations_of_a_snapshot_equal_the_simulators(episode: str) -> None:
    settings = DagSchedulingSettings(**EPISODES[episode])
    workload = load_workload(settings)
    state = initial_state(settings, workload, 5, slots=settings.total_jobs)
    view, rows = buffers_for(state, workload.bank)
    again, other_rows = buffers_for(state, workload.bank)
    for _ in range(60):
        assert advance(state, workload.bank) == state_cols.DECIDE
        observe(state, workload.bank, view, rows)
        snapshot = parsed(state_of(state, workload.bank), "one").snapshot
        observe(state_from_snapshot(snapshot), snapshot.bank, again, other_rows)
        for name, table in view._asdict().items():
            np.testing.assert_array_equal(getattr(again, name), table, err_msg=name)
        # Choose stages in turn, so that commitments accumulate.
        legal = np.flatnonzero(view.schedulable[:-1])
        pick = int(legal[state.clock[state_cols.DECISIONS] % len(legal)])
        apply_action(state, workload.bank, view, rows, pick, 3)
