"""The endpoint decides as the policy does in the simulator: every decision, every round."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from loadmaster.envs.dag_scheduling import state as at
from loadmaster.envs.dag_scheduling.actions import apply_action
from loadmaster.envs.dag_scheduling.baselines.rules import decide as decide_by_rule
from loadmaster.envs.dag_scheduling.observation import Observation, observe
from loadmaster.envs.dag_scheduling.rollout import buffers_for, initial_state
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.simulator import advance
from loadmaster.envs.dag_scheduling.snapshot import state_from_snapshot
from loadmaster.envs.dag_scheduling.workloads import load_workload
from loadmaster.models.bundle import load_bundle
from loadmaster.models.decima.network import DecimaNetwork
from loadmaster.serving.systems.decima.examples import state_of
from loadmaster.serving.systems.decima.rounds import ServedPolicy
from loadmaster.serving.systems.decima.rules import RULES, DecimaRule, tuned_rule
from loadmaster.serving.systems.decima.system import ENDPOINT
from tests.serving.systems.decima.episodes import EPISODES, Decide, in_process, rounds, sent, told

DECISIONS = 240  # of each case

CASES = [
    ("decima-stream", "stream"),
    ("decima-batch", "batch"),
    ("decima-classes", "classes"),
    ("decima-stream", "classes, stream"),
    ("decima-makespan", "no estimates"),
]


def compare(policy: ServedPolicy | DecimaRule, episode: str, decide: Decide, most: int) -> int:
    """Ask about every round and every decision of an episode; how many decisions there were."""
    asked = 0
    for held in rounds(EPISODES[episode], 11, decide):
        whole = policy.decide(sent(held.state, "round")).decision
        assert told(whole) == held.given
        assert whole.idle == held.free - sum(executors for _, _, executors, _ in held.given)
        assert whole.undecided == 0
        for place, before in enumerate(held.before):
            state = sent(before, "one")
            one = policy.decide(state).decision
            assert told(one) == held.given[place : place + 1]
            assert ENDPOINT.validate_decision(state, one) is None
        assert ENDPOINT.validate_decision(held.state, whole) is None
        asked += len(held.before)
        if asked >= most:
            break
    return asked


@pytest.mark.parametrize(("bundle", "episode"), CASES)
def test_the_network_decides_as_in_the_simulator(root: Path, bundle: str, episode: str) -> None:
    folder = root / "models" / "pretrained" / bundle
    network = load_bundle(folder).build()
    assert isinstance(network, DecimaNetwork)
    asked = compare(ENDPOINT.policy(folder), episode, in_process(network), DECISIONS)
    assert asked >= 200  # of five cases: 1,000


@pytest.mark.parametrize("episode", ["batch", "stream", "classes, stream"])
@pytest.mark.parametrize("rule", RULES)
def test_the_rules_decide_as_in_the_simulator(rule: str, episode: str) -> None:
    own = tuned_rule(rule)

    def by_rule(view: Observation) -> tuple[int, int]:
        return decide_by_rule(own.rule, own.alpha, own.threshold, own.release, view, 0, 0)

    assert compare(ENDPOINT.rule(rule), episode, by_rule, 80) >= 80


@pytest.mark.parametrize("episode", EPISODES)
def test_the_observation_is_the_same_to_the_last_digit(episode: str) -> None:
    settings = DagSchedulingSettings(**EPISODES[episode])
    workload = load_workload(settings)
    state = initial_state(settings, workload, 5, slots=settings.total_jobs)
    view, rows = buffers_for(state, workload.bank)
    again, other_rows = buffers_for(state, workload.bank)
    for _ in range(60):
        assert advance(state, workload.bank) == at.DECIDE
        observe(state, workload.bank, view, rows)
        snapshot = sent(state_of(state, workload.bank), "one").snapshot
        observe(state_from_snapshot(snapshot), snapshot.bank, again, other_rows)
        for name, table in view._asdict().items():
            np.testing.assert_array_equal(getattr(again, name), table, err_msg=name)
        # Some stage that may be chosen, never the same for long, so that promises pile up.
        legal = np.flatnonzero(view.schedulable[:-1])
        pick = int(legal[state.clock[at.DECISIONS] % len(legal)])
        apply_action(state, workload.bank, view, rows, pick, 3)
