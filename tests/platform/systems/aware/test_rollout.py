"""AWARE's vector environment against its policy, step by step; loads and applications by seed."""

from typing import Any

import numpy as np
import pytest
import torch

from loadmaster.envs.pod_scaling.settings import PodScalingSettings
from loadmaster.models.aware.choice import nothing_known
from loadmaster.models.aware.features import FEATURES, REWARD_CENTRE, REWARD_UNIT
from loadmaster.models.aware.network import STEP_WIDTH
from loadmaster.models.aware.rule_policy import run_rule
from loadmaster.models.aware.settings import MARGINS
from loadmaster.platform.systems.aware.rollout import MarginEnvs, application_of, condition_of
from loadmaster.platform.systems.aware.training import conditions_of
from tests.models.aware.parts import policy_of

SETTINGS = PodScalingSettings(steps=12)
LOADS: Any = (("diurnal-like", "high"), ("bursty-like", "high"), ("diurnal-like", "low"))
SEEDS = [4, 9, 11, 14]


@pytest.mark.parametrize(("size", "sets"), [(0.0, "margins"), (1.0, "margins"), (3.0, "plans")])
def test_environments_equal_the_policy_step_by_step(size: float, sets: str) -> None:
    policy, conditions = policy_of(size=size, actor_sets=sets), conditions_of(SETTINGS, LOADS)
    network = policy.network
    envs = MarginEnvs(len(SEEDS), policy.settings, conditions)
    features, _ = envs.reset(seed=SEEDS)
    context = torch.ones(len(SEEDS), policy.settings.context)
    rows = []
    for _ in range(SETTINGS.steps):
        with torch.no_grad():
            actions = network.act(torch.from_numpy(features), context).numpy()
        following, rewards, terminated, truncated, _ = envs.step(actions)
        assert not terminated.any()
        rows.append(np.concatenate([features, actions, rewards[:, None]], axis=1))
        features = following
    assert truncated.all()
    trajectories = np.stack(rows, axis=1)
    assert trajectories.shape[2] == STEP_WIDTH
    for place, seed in enumerate(SEEDS):
        own, setup = condition_of(conditions, seed)
        known = nothing_known(policy.settings.context)
        known = known._replace(embedding=np.ones_like(known.embedding))
        result, expected = policy.record(own, seed, setup, known)
        np.testing.assert_allclose(trajectories[place], expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(envs.result(place).rewards, result.rewards, rtol=1e-8)
        mean = REWARD_CENTRE + REWARD_UNIT * trajectories[place, :, -1].mean()
        assert mean == pytest.approx(result.reward, rel=1e-6)


def test_a_finished_environment_starts_again_with_nothing_known() -> None:
    settings = SETTINGS.model_copy(update={"steps": 3})
    policy, conditions = policy_of(), conditions_of(settings, LOADS)
    envs = MarginEnvs(2, policy.settings, conditions)
    envs.reset(seed=[1, 2])
    nothing = np.zeros((2, len(MARGINS)), np.float32)
    for _ in range(3):
        envs.step(nothing)
    features, rewards, _, truncated, _ = envs.step(nothing)
    assert not rewards.any()
    assert not truncated.any()
    fresh, _ = MarginEnvs(2, policy.settings, conditions).reset(
        seed=[envs.result(place).seed for place in range(2)]
    )
    np.testing.assert_array_equal(features, fresh)


def test_seed_determines_load_and_application() -> None:
    conditions = conditions_of(SETTINGS, LOADS)
    own = [(each.settings.workload, each.settings.load) for each in conditions]
    assert own == list(LOADS)
    envs = MarginEnvs(len(SEEDS), policy_of().settings, conditions)
    envs.reset(seed=SEEDS)
    arrived = set()
    for _ in range(SETTINGS.steps):
        envs.step(np.zeros((len(SEEDS), len(MARGINS)), np.float32))
    for place, seed in enumerate(SEEDS):
        settings, setup = condition_of(conditions, seed)
        assert settings is conditions[seed % 3].settings
        name = setup.applications[application_of(len(setup.applications), seed)].name
        assert envs.applications[place] == name
        found = envs.result(place).arrived
        np.testing.assert_array_equal(found, run_rule(settings, setup, seed).arrived)
        arrived.add(found.sum())
    assert len(arrived) == len(SEEDS)


def test_features_are_finite_and_of_moderate_size() -> None:
    envs = MarginEnvs(16, policy_of().settings, conditions_of(SETTINGS, LOADS))
    features, _ = envs.reset(seed=100)
    assert features.shape == (16, FEATURES)
    rng = np.random.default_rng(0)
    for _ in range(SETTINGS.steps):
        features, rewards, *_ = envs.step(rng.uniform(-1, 1, (16, len(MARGINS))).astype(np.float32))
        assert np.isfinite(rewards).all()
        assert np.abs(features).max() < 20
