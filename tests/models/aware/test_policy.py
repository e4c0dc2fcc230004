"""AWARE's policy: the rule without an action, what it remembers, and what it explains."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from loadmaster.envs.pod_scaling.episode import build_setup
from loadmaster.envs.pod_scaling.episode_runner import EpisodeRunner
from loadmaster.envs.pod_scaling.settings import PodScalingSettings
from loadmaster.models.aware.adaptation import Adaptation, adapt_to
from loadmaster.models.aware.choice import Remembered, nothing_known, unpack
from loadmaster.models.aware.estimates import ESTIMATE_COLUMNS
from loadmaster.models.aware.explain import MARGIN
from loadmaster.models.aware.policy import AwarePolicy
from loadmaster.models.aware.rule import carry_out
from loadmaster.models.aware.rule_policy import RULE, run_rule
from loadmaster.models.aware.settings import MARGINS
from tests.models.aware.parts import SMALL, network_of, policy_of


def settings_of(**values: Any) -> PodScalingSettings:
    return PodScalingSettings(**{"steps": 20, **values})


@pytest.mark.parametrize(
    "values",
    [{}, {"load": "low"}, {"workload": "bursty-like"}, {"resize": "evict"},
     {"shift": ["payload:1.5@10"]}],
)  # fmt: skip
def test_without_an_action_it_is_the_rule(values: dict[str, Any]) -> None:
    settings = settings_of(**values)
    setup, policy = build_setup(settings), policy_of(size=0)
    for seed in range(6):
        one, other = policy.run(settings, seed, setup), run_rule(settings, setup, seed)
        assert other.policy == RULE
        for field in dataclasses.fields(one):
            if field.name != "policy":
                np.testing.assert_array_equal(getattr(one, field.name), getattr(other, field.name))


def embedded() -> Remembered:
    """An application with an embedding, for which the actor acts."""
    return nothing_known(4)._replace(embedding=np.ones(4, np.float32))


def test_an_action_changes_the_margins_by_its_reach() -> None:
    settings, policy = settings_of(), policy_of(size=3.0)
    setup = build_setup(settings)
    runner = EpisodeRunner(settings, setup, 1)
    decision = next(policy.steps(runner, embedded())).decision
    assert (np.abs(decision.action) > 0.05).any()
    own = policy.settings
    for name, action, value in zip(MARGINS, decision.action, decision.margins or (), strict=True):
        factor = np.exp(getattr(own.reach, name) * float(action))
        assert value == pytest.approx(getattr(own.rule, name) * factor, rel=1e-6)
    with pytest.raises(AssertionError, match="not equal"):
        np.testing.assert_array_equal(
            policy.run(settings, 1, setup, embedded()).rewards,
            run_rule(settings, setup, 1).rewards,
        )


def test_an_actor_may_set_plans_without_the_rule() -> None:
    settings, policy = settings_of(), policy_of(size=3.0, actor_sets="plans")
    runner = EpisodeRunner(settings, build_setup(settings), 1)
    constants, state = runner.setup.constants, runner.episode.state
    decision = policy.choose(constants, state, nothing_known(4))  # also without an embedding
    places = 0.5 * (decision.action[:3].astype(np.float64) + 1)
    low, high = constants.low, constants.high
    expected = low * (high / low) ** places
    np.testing.assert_allclose(decision.plan[:2], expected[:2], rtol=1e-6)
    assert decision.plan[2] == round(expected[2])
    served = policy.decide(constants, state, None)
    assert not served.reason.choices
    assert "requests/s" in served.reason.summary


def test_packed_memory_makes_the_same_decisions() -> None:
    settings, policy = settings_of(), policy_of()
    setup = build_setup(settings)
    runner = EpisodeRunner(settings, setup, 3)
    state, known = runner.episode.state, nothing_known(4)
    known = known._replace(embedding=np.array([0.3, 1e-7, 2.0, 0.0], np.float32))
    memory = known.packed()
    while not runner.over:
        again = unpack(memory, known.embedding, 4)
        np.testing.assert_allclose(again.estimates, known.estimates, rtol=1e-12)
        np.testing.assert_array_equal(again.embedding, known.embedding)
        decision = policy.choose(setup.constants, state, known)
        served = policy.decide(setup.constants, state, memory, known.embedding)
        assert served.step is not None
        np.testing.assert_allclose(served.step.observation, decision.features, rtol=1e-5)
        np.testing.assert_allclose(served.step.action, decision.action, rtol=1e-5)
        np.testing.assert_allclose(served.plan, decision.plan, rtol=1e-9)
        assert not served.reason.notes
        memory = served.memory
        carry_out(setup.constants, state, decision.plan)


def test_a_new_application_has_nothing_known() -> None:
    settings, policy = settings_of(), policy_of()
    setup = build_setup(settings)
    state = EpisodeRunner(settings, setup, 3).episode.state
    for wrong in (None, np.ones(7, np.float32)):
        found = unpack(wrong, wrong, 4)
        assert not found.estimates.any()
        assert not found.embedding.any()
    served = policy.decide(setup.constants, state, None)
    assert len(served.reason.notes) == 1
    assert served.memory.shape == (2 * ESTIMATE_COLUMNS,)
    assert served.step is not None
    assert not served.step.action.any(), "the rule's, without an embedding"
    assert {option.name for option in served.reason.choices[MARGIN]} == set(MARGINS)


def test_the_embedding_is_an_input_of_the_actor() -> None:
    settings, policy = settings_of(), policy_of()
    setup = build_setup(settings)
    state = EpisodeRunner(settings, setup, 3).episode.state
    one, other = nothing_known(4), nothing_known(4)
    other.embedding[:] = 1
    actions = [policy.choose(setup.constants, state, known).action for known in (one, other)]
    assert np.abs(actions[0] - actions[1]).max() > 1e-3
    plain = policy_of(encoder={"kind": "none"})
    assert plain.choose(setup.constants, state, nothing_known(0)).action.shape == (len(MARGINS),)
    assert plain.network.encoder is None


def test_embeddings_are_shared_by_equal_encoders_only() -> None:
    policy, actor = policy_of(), policy_of()
    torch.nn.init.zeros_(actor.network.actor.weights[-1])
    assert policy.embedding_format == actor.embedding_format
    assert policy.embedding_format.startswith("aware-embedding-4-")
    assert policy_of(seed=2).embedding_format != policy.embedding_format
    assert policy_of(encoder={"kind": "none"}).embedding_format == ""


def test_adaptation_makes_the_embedding_of_the_best_episodes() -> None:
    settings, policy = settings_of(application="test:7", steps=10), policy_of()
    setup = build_setup(settings)
    found, rewards = adapt_to(policy, settings, setup, range(5))
    known, recorded = nothing_known(4), []
    again = Adaptation(policy, known)
    for seed in range(5):
        result, trajectory = policy.record(settings, seed, setup, again.known)
        recorded.append((result.reward, trajectory))
        again.add(result.reward, trajectory)
    recorded.sort(key=lambda each: -each[0])
    most = SMALL["encoder"]["trajectories"]  # type: ignore[index]
    assert [each.reward for each in found.best] == sorted(rewards, reverse=True)[:most]
    expected = policy.embed([trajectory for _, trajectory in recorded[:most]])
    np.testing.assert_allclose(found.known.embedding, expected, rtol=1e-5, atol=1e-7)
    assert found.known.embedding.any()
    before = found.known.estimates.copy()
    copy: Remembered = found.copy()
    policy.run(settings, 9, setup, copy)
    np.testing.assert_array_equal(found.known.estimates, before)
    assert (copy.estimates != before).any()


def test_output_that_is_no_number_is_refused() -> None:
    network = network_of()
    torch.nn.init.constant_(network.actor.biases[-1], float("nan"))
    settings = settings_of()
    policy, setup = AwarePolicy(network, settings, "broken"), build_setup(settings)
    with pytest.raises(FloatingPointError, match="broken"):
        policy.run(settings, 1, setup, embedded())
