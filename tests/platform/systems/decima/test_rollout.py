"""Compiled episodes equal those of the environment, and explained decisions those of both."""

from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.core.columns import Columns

from loadmaster.envs.dag_scheduling.env import DagSchedulingEnv
from loadmaster.envs.dag_scheduling.observation import Observation
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.workloads import load_workload
from loadmaster.platform.systems.decima.evaluation import LearnedDecima
from tests.models.decima.test_module import module_of

pytestmark = pytest.mark.slow

EXECUTORS = 12
SETTINGS = DagSchedulingSettings(jobs=4, executors=EXECUTORS)
SIZES = {"jobs": 4, "executors": EXECUTORS, "max_jobs": 4, "max_stages": 80, "max_edges": 100}
STREAM = DagSchedulingSettings(arrivals="poisson", jobs=12, interarrival_s=4)


def batch_of_one(observation: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: torch.as_tensor(table)[None] for name, table in observation.items()}


def test_compiled_episode_equals_the_environment() -> None:
    env, module = DagSchedulingEnv(**SIZES), module_of(EXECUTORS)
    for seed in range(3):
        observation, _ = env.reset(seed=seed)
        over, decisions = False, 0
        while not over:
            found = module.forward_inference({Columns.OBS: batch_of_one(observation)})
            observation, _, over, _, _ = env.step(found[Columns.ACTIONS][0].numpy())
            decisions += 1
        result = LearnedDecima(module.network).run(SETTINGS, seed, load_workload(SETTINGS))
        assert result.decisions == decisions
        assert result.completion_s.tolist() == env.result().completion_s.tolist()


def test_samples_are_a_function_of_the_action_seed() -> None:
    policy, workload = LearnedDecima(module_of(EXECUTORS).network), load_workload(SETTINGS)
    once, again, other = (
        policy.run(SETTINGS, 1, workload, action_seed=seed).completion_s.tolist()
        for seed in (5, 5, 6)
    )
    assert once == again
    assert once != other


def test_recording_does_not_change_the_episode() -> None:
    settings = DagSchedulingSettings()  # 20 jobs: both the trace and the slots have to grow
    policy, workload = LearnedDecima(module_of(EXECUTORS).network), load_workload(settings)
    plain, recorded = (policy.run(settings, 2, workload, record=each) for each in (False, True))
    assert recorded.completion_s.tolist() == plain.completion_s.tolist()
    assert int((recorded.trace.moving == 0).sum()) == recorded.tasks


@pytest.mark.parametrize("settings", [SETTINGS, STREAM])  # the stream makes the tables grow
def test_explained_decisions_are_those_of_the_episode(settings: DagSchedulingSettings) -> None:
    policy, workload = LearnedDecima(module_of(EXECUTORS).network), load_workload(settings)
    steps = list(policy.iterate(settings, 1, workload))
    result = policy.run(settings, 1, workload)
    assert len(steps) == result.decisions
    assert steps[-1].state.completed_ms.tolist() == np.round(result.completion_s * 1000).tolist()
    for step in steps:
        decision, options = step.decision, step.explanation.choices["stage"]
        assert decision.stages[0].row == decision.row
        assert decision.limits[0].limit == decision.limit
        assert decision.executors >= 1
        assert [option.chosen for option in options] == [True] + [False] * (len(options) - 1)
        chances = [option.probability or 0 for option in options]
        assert chances == sorted(chances, reverse=True)
        others = decision.schedulable - len(chances)
        assert step.explanation.others["stage"] == others
        assert 0 < sum(chances) < 1 if others else sum(chances) == pytest.approx(1)


def test_probabilities_are_those_of_the_network() -> None:
    observation, _ = DagSchedulingEnv(**SIZES).reset(seed=3)
    network, tables = module_of(EXECUTORS).network, batch_of_one(observation)
    decision, _ = LearnedDecima(network).decide(Observation(**observation))
    with torch.no_grad():
        scores, *packed = network(tables)
        chosen = torch.tensor([decision.row])
        limit_scores = network.limit_scores(tables, *packed, chosen, EXECUTORS)
    stages, limits = scores.softmax(1)[0], limit_scores.softmax(1)[0]
    assert decision.schedulable == int(observation["schedulable"][:-1].sum())
    for stage in decision.stages:
        assert stage.probability == pytest.approx(stages[stage.row].item(), abs=1e-5)
    assert len(decision.limits) == min(decision.useful_limits, 5)
    for limit in decision.limits:
        assert limit.probability == pytest.approx(limits[limit.limit - 1].item(), abs=1e-5)


def test_a_network_without_limits_explains_stages_only() -> None:
    policy = LearnedDecima(module_of(EXECUTORS, limits=False).network)
    for decision in policy.explain(SETTINGS, 0, load_workload(SETTINGS), 3):
        assert decision.record["limits"] == []
        assert decision.record["chosen"]["limit"] == EXECUTORS
        assert list(decision.explanation.choices) == ["stage"]
