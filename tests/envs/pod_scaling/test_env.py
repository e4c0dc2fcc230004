"""The environment beyond the contract: discrete actions, observations, rewards and metrics."""

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import SyncVectorEnv

import loadmaster.envs  # noqa: F401 (registers the environments)
from loadmaster.envs.pod_scaling.env import PodScalingEnv
from loadmaster.envs.pod_scaling.metrics import EPISODE_METRICS
from loadmaster.envs.pod_scaling.observation import STATE_COLUMNS
from loadmaster.envs.pod_scaling.vector_env import PodScalingVectorEnv
from tests.envs.pod_scaling.episodes import PLAIN

GYM_ID = "loadmaster/PodScaling-v0"
COLUMN = {name: place for place, name in enumerate(STATE_COLUMNS)}


def test_discrete_environment_passes_the_checker() -> None:
    check_env(gymnasium.make(GYM_ID, actions="discrete").unwrapped)


def test_discrete_vector_equals_single_environments() -> None:
    values: dict[str, Any] = {"actions": "discrete", "steps": 8, "application": "test"}
    vector = PodScalingVectorEnv(3, **values)
    singles = SyncVectorEnv([lambda: PodScalingEnv(**values)] * 3)
    vector.action_space.seed(0)
    begin, expected = vector.reset(seed=5)[0], singles.reset(seed=5)[0]
    np.testing.assert_array_equal(begin["state"], expected["state"])
    assert len(set(vector.applications)) > 1
    for _ in range(12):
        actions = vector.action_space.sample()
        seen, rewards, _, truncated, _ = vector.step(actions)
        expected, others, _, ends, _ = singles.step(actions)
        np.testing.assert_array_equal(seen["state"], expected["state"])
        np.testing.assert_array_equal(rewards, others)
        np.testing.assert_array_equal(truncated, ends)


def test_reward_is_preservation_and_use() -> None:
    for slo_weight, use_weight in ((0.5, 0.5), (0.8, 0.1)):
        env = PodScalingEnv(slo_weight=slo_weight, use_weight=use_weight, steps=20)
        env.reset(seed=2)
        env.action_space.seed(0)
        rewards = [env.step(env.action_space.sample())[1] for _ in range(20)]
        result = env.result()
        np.testing.assert_allclose(
            rewards,
            2 * slo_weight * result.preserved + use_weight * (result.cpu_use + result.memory_use),
        )
        np.testing.assert_allclose(rewards, result.rewards)
        assert (result.preserved == np.minimum(result.slo_s / result.p99_s, 1)).all()
        assert (result.cpu_use <= 1 + 1e-9).all()
        assert (result.memory_use <= 1 + 1e-9).all()


def test_observation_is_of_the_past() -> None:
    """CPU use is that of a report 15 to 60 seconds old, and the columns are as named."""
    env = PodScalingEnv((PLAIN,), workload="toy", initial_replicas=2, initial_cpu_m=1000, steps=30)
    seen, _ = env.reset(seed=0)
    row = seen["state"]
    assert row[COLUMN["cpu use"]] == pytest.approx(0.5)
    assert row[COLUMN["replicas"]] == pytest.approx(math.log(2) / math.log(20))
    assert row[COLUMN["ready"]] == 1
    assert row[COLUMN["load change"]] == 0
    assert math.exp(row[COLUMN["slo slack"]]) == pytest.approx(row[COLUMN["slo preservation"]])
    ages = set()
    for _ in range(30):
        row = env.step(np.zeros(3, np.float32))[0]["state"]
        ages.add(float(row[COLUMN["age of metrics"]]))
    assert ages <= {0.25, 0.5, 0.75, 1.0, 1.25, 1.5}
    assert len(ages) >= 4
    last = env.result()
    slack = math.log(last.slo_s[-1] / last.p99_s[-1])
    assert row[COLUMN["slo slack"]] == pytest.approx(slack, abs=1e-5)


def test_metrics_of_an_episode() -> None:
    env = PodScalingEnv(steps=30, application="test", timeout_s=15)
    env.reset(seed=1)
    for step in range(30):  # too small, then large
        env.step(np.full(3, -1.0 if step < 15 else 0.5, np.float32))
    result = env.result()
    values = {metric.name: metric.of(result) for metric in EPISODE_METRICS}
    assert values["violations"] == pytest.approx(100 * (result.p99_s > result.slo_s).mean())
    assert values["p99_max"] == result.p99_s.max() <= 15
    assert values["core_hours"] == pytest.approx(result.cores.sum() / 60)
    assert values["gib_hours"] == pytest.approx(result.mib.sum() / 60 / 1024)
    assert 0 < values["violated_requests"] < 100
    assert values["ooms"] <= values["restarts"]
    ended = result.served + result.timed_out + result.lost
    change = np.diff(result.waiting, prepend=np.nan)[1:]
    np.testing.assert_allclose((result.arrived - ended)[1:], change)
