"""What is known of an application from a log: estimates of features, embeddings of trajectories."""

import math

import numpy as np
import pytest
import torch

from loadmaster.envs.pod_scaling.calibration import tuned_baseline
from loadmaster.envs.pod_scaling.episode import Setup, build_setup
from loadmaster.envs.pod_scaling.rollout import run_episode
from loadmaster.envs.pod_scaling.settings import PodScalingSettings
from loadmaster.envs.pod_scaling.state import Floats
from loadmaster.envs.settings import build_settings
from loadmaster.models.aware.adaptation import Adaptation
from loadmaster.models.aware.estimates import (
    blank_application,
    new_estimates,
    write_application,
)
from loadmaster.models.aware.features import ESTIMATED, FORECAST, OBSERVED, input_mask
from loadmaster.models.aware.logged import LoggedEpisode, logged_estimates, record_rule
from loadmaster.models.aware.network import STEP_WIDTH, AwareNetwork
from loadmaster.models.aware.policy import AwarePolicy
from loadmaster.models.aware.rule_policy import run_rule
from loadmaster.models.aware.settings import AwareSettings

APPLICATIONS = ("test:7", "test:11", "sleep")


def logged(application: str, seed: int = 5) -> tuple[Setup, Floats, LoggedEpisode]:
    """Set-up, estimates along the way, and the log of an episode of HPA."""
    settings = PodScalingSettings(application=application)
    setup, estimates = build_setup(settings), new_estimates()
    rule = tuned_baseline("hpa", settings, setup.applications[0].name)
    return setup, estimates, record_rule(rule, settings, setup, seed, estimates)


def parameters(estimates: Floats) -> Floats:
    app = blank_application()
    write_application(estimates, math.inf, app)
    return app[np.isfinite(app)]


@pytest.mark.parametrize("application", APPLICATIONS)
def test_estimates_of_a_log_are_those_made_along_the_way(application: str) -> None:
    setup, along, episode = logged(application)
    found = logged_estimates(episode.features, setup.constants)
    np.testing.assert_allclose(parameters(found), parameters(along), rtol=2e-3, atol=1e-4)
    truth = setup.applications[0]
    assert parameters(found)[0] == pytest.approx(truth.cpu_s, rel=0.02)


def test_rule_earns_as_much_with_a_logs_estimates() -> None:
    setup, along, episode = logged("test:11")
    settings = PodScalingSettings(application="test:11")
    found = logged_estimates(episode.features, setup.constants)
    rewards = [
        run_rule(settings, setup, 9, estimates=own.copy()).reward
        for own in (along, found, new_estimates())
    ]
    assert rewards[1] == pytest.approx(rewards[0], abs=1e-3)
    assert abs(rewards[2] - rewards[0]) > 1e-3, "estimates make no difference: test nothing"


def test_recorded_episode_is_that_of_the_rule() -> None:
    setup, _, episode = logged("test:7")
    result = run_episode("hpa", PodScalingSettings(application="test:7"), 5, setup)
    np.testing.assert_array_equal(episode.rewards, result.rewards)
    assert len(episode.features) == len(episode.rewards) + 1
    assert episode.trajectory(input_mask("all")).shape == (100, STEP_WIDTH)


def test_inputs_are_nested() -> None:
    published, forecast, everything = map(input_mask, ("published", "forecast", "all"))
    assert published.sum() == OBSERVED
    assert forecast.sum() == OBSERVED + len(FORECAST)
    assert everything.sum() == OBSERVED + len(ESTIMATED)
    assert (published <= forecast).all()


def make_policy(**network: object) -> AwarePolicy:
    given = {"encoder": {"kind": "mean", "hidden": 8, "trajectories": 2}, "embedding": 4}
    torch.manual_seed(0)
    made = AwareNetwork(build_settings(AwareSettings, {**given, **network}))
    return AwarePolicy(made, PodScalingSettings())


def test_embedding_is_that_of_the_best_trajectories() -> None:
    policy, rng = make_policy(), np.random.default_rng(0)
    rows = [rng.standard_normal((20, STEP_WIDTH)).astype(np.float32) for _ in range(3)]
    found = Adaptation.new(policy)
    for reward, row in zip((1.0, 0.2, 1.5), rows, strict=True):
        found.add(reward, row)
    assert [each.reward for each in found.best] == [1.5, 1.0]
    np.testing.assert_allclose(
        found.known.embedding, policy.embed([rows[2], rows[0]]), rtol=1e-4, atol=1e-6
    )


def test_networks_do_not_read_what_their_inputs_leave_out() -> None:
    settings = PodScalingSettings(application="test:7", steps=2)
    setup = build_setup(settings)
    plain = make_policy(inputs="published", encoder={"kind": "none"})
    found = Adaptation.new(plain)
    _, trajectory = plain.record(settings, 0, setup, found.known)
    features = trajectory[:, : OBSERVED + len(ESTIMATED)]
    assert (features[:, OBSERVED:] == 0).all()
    assert (features[:, :OBSERVED] != 0).any()


def test_rule_acts_until_there_is_an_embedding() -> None:
    settings = PodScalingSettings(application="test:7", steps=20)
    setup, policy = build_setup(settings), make_policy()
    with torch.no_grad():
        policy.network.actor.biases[-1].fill_(3.0)  # margins far from the rule's
    found = Adaptation.new(policy)
    first = found.run_episode(settings, setup, 1).reward
    assert first == run_rule(settings, setup, 1).reward
    assert found.known.embedding.any()
    _, trajectory = policy.record(settings, 1, setup, found.copy())
    assert (trajectory[:, -7:-1] > 0.9).all()


def test_noise_changes_actions_within_their_bounds() -> None:
    settings = PodScalingSettings(application="test:7", steps=3)
    setup, policy = build_setup(settings), make_policy()
    noise = np.array([[5.0] * 6, [0.0] * 6, [-5.0] * 6], np.float32)
    _, trajectory = policy.record(settings, 0, setup, Adaptation.new(policy).known, noise)
    actions = trajectory[:, -7:-1]
    assert (actions[0] == 1).all()
    assert (actions[2] == -1).all()
    assert (actions[1] == 0).all(), "at the rule without an embedding"
