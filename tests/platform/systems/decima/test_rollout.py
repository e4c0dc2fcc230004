"""Compiled episodes under a network equal those of the environment."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from loadmaster.envs.dag_scheduling.env import DagSchedulingEnv
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.workloads import load_workload
from loadmaster.models.decima.network import DecimaNetwork
from loadmaster.models.decima.policy import DecimaPolicy
from loadmaster.platform.systems.decima.rollout import run_episode

pytestmark = pytest.mark.slow

SETTINGS = DagSchedulingSettings(jobs=4, executors=12)


@pytest.fixture(scope="module")
def policy() -> DecimaPolicy:
    torch.manual_seed(8)
    return DecimaPolicy(DecimaNetwork())


def test_compiled_episode_equals_the_environment(policy: DecimaPolicy) -> None:
    network = policy.network
    env = DagSchedulingEnv(jobs=4, executors=12, max_jobs=4, max_stages=80, max_edges=100)
    for seed in range(3):
        observation, _ = env.reset(seed=seed)
        over, decisions = False, 0
        while not over:
            tables = {name: torch.as_tensor(t)[None] for name, t in observation.items()}
            with torch.no_grad():
                scores, batch, embedded = network(tables)
                stage = scores.argmax(1)
                limits = network.limit_scores(tables, batch, embedded, stage, 12)
            action = np.array([int(stage), int(limits.argmax(1)) + 1])
            observation, _, over, _, _ = env.step(action)
            decisions += 1
        result = run_episode(policy, SETTINGS, seed, load_workload(SETTINGS))
        assert result.decisions == decisions
        assert result.completion_s.tolist() == env.result().completion_s.tolist()


def test_samples_are_a_function_of_the_action_seed(policy: DecimaPolicy) -> None:
    workload = load_workload(SETTINGS)
    once, again, other = (
        run_episode(policy, SETTINGS, 1, workload, action_seed=seed).completion_s.tolist()
        for seed in (5, 5, 6)
    )
    assert once == again
    assert once != other


def test_recording_does_not_change_the_episode(policy: DecimaPolicy) -> None:
    settings = DagSchedulingSettings()  # 20 jobs: both the trace and the slots have to grow
    plain, recorded = (
        run_episode(policy, settings, 2, load_workload(settings), record=record)
        for record in (False, True)
    )
    assert recorded.completion_s.tolist() == plain.completion_s.tolist()
    assert recorded.trace is not None
    assert int((recorded.trace.moving == 0).sum()) == recorded.tasks
