"""SURE's compiled forward pass beside torch, kept features, single decisions."""

from typing import Any

import numpy as np
import pytest
import torch

from loadmaster.envs.errors import InputError
from loadmaster.models.keyed_random import standard_normal
from loadmaster.models.sure.compiled_decision import CompiledDecision, Decision, JobDecision
from loadmaster.models.sure.compiled_weights import weights_of
from loadmaster.models.sure.graph import NONE, pack
from loadmaster.models.sure.network import SureNetwork, build_network
from loadmaster.models.sure.sampler import NEIGHBOUR, SELF
from tests.models.sure.builders import Tables, random_observation

NETWORKS: dict[str, dict[str, Any]] = {
    "shipped": {},
    "small": {"width": 10, "layers": 2, "snapshots": 4, "neighbours": 2, "temperature": 0.5},
    "whole blocks": {"width": 16, "snapshots": 3, "neighbours": 5, "hops": 1},
    "random": {"sampler": "random"},
    "temporal": {"sampler": "temporal"},
    "spatial": {"sampler": "spatial"},
    "full": {"sampler": "full", "width": 20},
    "one action": {"actions": "job"},
    "random, one action": {"sampler": "random", "actions": "job", "width": 12},
}
# Tasks, window, history; the last has no snapshot at all.
OBSERVED = ((10, 60, None), (57, 20, None), (13, 30, 4), (1, 7, None), (6, 12, 0))


def trained(name: str) -> SureNetwork:
    """A network whose outputs depend on all of its weights."""
    torch.manual_seed(1)
    network = build_network(NETWORKS[name])
    for weight in network.parameters():
        torch.nn.init.normal_(weight, std=0.1) if weight.dim() > 1 else None
    torch.nn.init.normal_(network.gate[-1].weight, std=0.01)  # the rule's log-odds count, too
    return network


def rule(observation: Tables, seed: int) -> tuple[Any, float]:
    """Changes, and log-odds of acting: of even seeds positive."""
    changes = np.random.default_rng(seed).normal(size=len(observation["tasks"])) / 4
    return changes.astype(np.float32), 1.5 * (-1) ** seed


@pytest.fixture(scope="module")
def observations() -> list[Tables]:
    rng = np.random.default_rng(2)
    return [random_observation(rng, *sizes) for sizes in OBSERVED]


@pytest.mark.parametrize("greedy", [True, False], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", NETWORKS)
def test_decisions_are_those_of_torch(name: str, greedy: bool, observations: list[Tables]) -> None:
    network = trained(name)
    compiled = CompiledDecision(network)
    gates = set()
    for number, observation in enumerate(observations):
        for key in (number, 2**62 + number, -number - 1):
            prior, gate_prior = rule(observation, number)
            batch = pack([observation], network.settings.hops, [prior], [gate_prior])
            own = torch.tensor([key])
            found = compiled.decide(observation, prior, gate_prior, None if greedy else key)
            expected = network.act(batch, own if not greedy else own * 0, greedy)
            assert found.gate == bool(expected.gate)
            gates.add(found.gate)
            np.testing.assert_allclose(found.change, expected.change, rtol=1e-4, atol=2e-5)
            assert found.nodes == int(expected.nodes)
            if expected.draw is None:
                continue
            assert np.array_equal(found.drawn.snapshot, expected.draw.snapshot)
            column = expected.draw.neighbour.numpy()
            task = np.take_along_axis(
                batch.candidates.numpy()[:, None], np.maximum(column, 0), axis=2
            ).reshape(column.shape)
            assert np.array_equal(found.drawn.neighbour, np.where(column < 0, NONE, task))
    assert gates == {True, False}


@pytest.mark.parametrize("name", NETWORKS)
def test_distribution_and_scores_are_those_of_torch(name: str, observations: list[Tables]) -> None:
    network, key = trained(name), 5
    for observation in observations[:3]:
        prior, gate_prior = rule(observation, 3)
        batch = network.window(pack([observation], network.settings.hops, [prior], [gate_prior]))
        found = CompiledDecision(network).decide(observation, prior, gate_prior, key)
        features = network.node_features(batch)
        scores = network.score(features, batch)
        draw = network.draw(scores, batch, torch.tensor([key]))
        expected = network.distribution(network.embed(features, batch, draw), batch)
        assert found.gate_logit == pytest.approx(expected.gate_logit.item(), rel=1e-4, abs=2e-5)
        mean = expected.mean.detach().expand(len(prior))
        np.testing.assert_allclose(found.mean, mean, rtol=1e-4, atol=2e-5)
        assert found.log_std == network.log_std.item()
        if draw is None:
            continue
        omega = network.omega(scores, batch, torch.tensor([key])).detach().numpy()
        place = np.maximum(found.drawn.snapshot, 0)
        own = np.take_along_axis(omega[..., SELF], place, axis=1)
        drawn = found.drawn.snapshot >= 0
        np.testing.assert_allclose(found.drawn.snapshot_score[drawn], own[drawn], atol=2e-6)
        near = omega[np.maximum(found.drawn.neighbour, 0), place[..., None], NEIGHBOUR]
        drawn = found.drawn.neighbour >= 0
        np.testing.assert_allclose(found.drawn.neighbour_score[drawn], near[drawn], atol=2e-6)


def assert_same(found: Decision, expected: Decision) -> None:
    for own, other in zip(found.drawn, expected.drawn, strict=True):
        assert np.array_equal(own, other)
    assert np.array_equal(found.change, expected.change)
    assert found[:1] + found[2:3] == expected[:1] + expected[2:3]


@pytest.mark.parametrize("name", ["small", "spatial", "full"])
def test_kept_features_give_the_decisions_of_the_whole_window(name: str) -> None:
    """Snapshots arrive in parts, the first half before the window is full; one part is longer."""
    network, window = trained(name), 8
    whole = random_observation(np.random.default_rng(4), 9, 40)
    prior, gate_prior = rule(whole, 0)
    kept = JobDecision(network, whole["tasks"], whole["edges"], window)
    again = CompiledDecision(network)
    end = 0
    for new in (3, 1, 5, 5, 8, 11, 2):
        known = {part: whole[part][end : end + new] for part in ("snapshots", "times")}
        kept.add(known["snapshots"], known["times"])
        end += new
        observation = dict(whole)
        for part, table in known.items():
            last = whole[part][max(end - window, 0) : end]
            blank = np.zeros((window - len(last), *table.shape[1:]), np.float32)
            observation[part] = np.concatenate([blank, last])
        found = kept.decide(whole["restart"], prior, gate_prior, key=end)
        assert_same(found, again.decide(observation, prior, gate_prior, key=end))
    kept.clear()
    assert kept.decide(whole["restart"], prior, gate_prior).nodes == 0


def test_tables_of_several_jobs_do_not_mix(observations: list[Tables]) -> None:
    network = trained("small")
    shared = CompiledDecision(network)
    for _ in range(2):
        for number, observation in enumerate(observations):
            values = (observation, *rule(observation, number))
            assert_same(shared.decide(*values), CompiledDecision(network).decide(*values))


def test_noise_of_changes_is_keyed() -> None:
    """The change of one action for the job: mean + deviation * the first number of its stream."""
    network = trained("one action")
    observation = random_observation(np.random.default_rng(1), 5, 6)
    found = CompiledDecision(network).decide(observation, np.zeros(5), 0.0, key=9)
    noise = standard_normal(torch.tensor([9]), (), 2).item()
    expected = found.mean + np.exp(found.log_std) * noise
    np.testing.assert_allclose(found.change, expected, rtol=1e-5)


def test_bad_input_is_one_line() -> None:
    observation = random_observation(np.random.default_rng(1), 5, 6)
    compiled = CompiledDecision(trained("small"))
    with pytest.raises(InputError, match=r"prior: 4 values; expected 5"):
        compiled.decide(observation, np.zeros(4), 0.0)
    with pytest.raises(InputError, match=r"times: shape"):
        compiled.decide({**observation, "times": observation["times"][:, 1:]}, np.zeros(5), 0.0)
    with pytest.raises(InputError, match=r"sampler=none, encoder=gin is not compiled"):
        weights_of(build_network({"sampler": "none"}), 6)
