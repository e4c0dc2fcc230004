"""The rule srpt-caps as a prior: decisions of an untrained network, parity, bundles, settings."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from loadmaster.envs.dag_scheduling.actions import executors_granted
from loadmaster.envs.dag_scheduling.baselines import BASELINES, Baseline
from loadmaster.envs.dag_scheduling.baselines.rules import decide as decide_by_rule
from loadmaster.envs.dag_scheduling.env import DagSchedulingEnv
from loadmaster.envs.dag_scheduling.observation import EXECUTORS, Observation
from loadmaster.envs.errors import InputError
from loadmaster.models.bundle import load_bundle
from loadmaster.models.decima.compiled import decide, scratch_for
from loadmaster.models.decima.network import DecimaNetwork, build_network
from loadmaster.models.decima.policy import DecimaPolicy
from loadmaster.models.decima.prior import SEARCHED, rule_parameters
from loadmaster.models.decima.settings import DecimaSettings, PriorSettings
from loadmaster.models.decima.weights import weights_of
from tests.bundles import make_bundle
from tests.models.decima.test_network import (
    SIZES,
    Tables,
    as_tensors,
    first_legal,
    kernel_for,
    log_probabilities,
    observations,
    row_of,
)

__all__ = ["observations"]  # the fixture

pytestmark = pytest.mark.slow

STREAM = {"arrivals": "poisson", "interarrival_s": 15, "initial_jobs": 6, "jobs": 14}
CLASSES = {"executor_classes": [{"count": 6, "memory": 0.5}, {"count": 6}], "jobs": 9}


def rule_of(network: DecimaNetwork) -> Baseline:
    """The rule with the network's parameters."""
    assert network.settings.prior is not None
    assert network.tilt_prior is not None
    values = rule_parameters(network.settings.prior, network.tilt_prior)
    parameters = dict(zip(SEARCHED, values.tolist(), strict=True))
    parameters["scale"] = float(np.exp(parameters["scale"]))
    rule = BASELINES["srpt-caps"]
    return Baseline(rule.name, rule.summary, rule.rule, {**parameters, "spill": 1.0})


@pytest.mark.parametrize("environment", [{"jobs": 10}, STREAM, CLASSES])
@pytest.mark.parametrize("prior", [{}, {"scale": 0.05, "alpha": 0.3, "stay": 0.2, "path": 0.6}])
def test_untrained_network_decides_as_the_rule(
    environment: dict[str, Any], prior: dict[str, float]
) -> None:
    torch.manual_seed(1)
    network = build_network({"prior": prior})
    weights, rule = weights_of(network), rule_of(network).encoded
    scratch = scratch_for(network, SIZES["max_stages"], SIZES["max_jobs"], executors=50)
    env = DagSchedulingEnv(**environment, **SIZES)
    observation, over, decisions, several = env.reset(seed=3)[0], False, 0, 0
    while not over:
        view = Observation(**observation)
        row, limit = decide_by_rule(rule, view, 0, 0)
        own_row, own_limit, _ = decide(view, weights, scratch, -1.0, -1.0)
        executors = executors_granted(view, row, limit)
        assert (own_row, executors_granted(view, own_row, own_limit)) == (row, executors)
        observation, _, over, _, _ = env.step(np.array([row, limit]))
        decisions += 1
        several += executors > 1
    assert decisions > 50
    assert several > 10


@pytest.mark.parametrize("limits", [True, False])
def test_compiled_prior_equals_torch(observations: Tables, limits: bool) -> None:
    torch.manual_seed(3)
    settings = PriorSettings(strength=2.0, limit_strength=3.0, beyond=1.0)
    network = DecimaNetwork(DecimaSettings(limits=limits, prior=settings))
    torch.nn.init.normal_(network.score_stage[-1].weight)
    weights, scratch = kernel_for(network)
    draws = np.random.default_rng(9).random((len(observations["cluster"]), 2))
    chosen = [
        decide(Observation(**row_of(observations, i)), weights, scratch, *pair)
        for i, pair in enumerate(draws)
    ]
    rows = np.array([row for row, _, _ in chosen])
    stage, limit = log_probabilities(network, observations, rows)
    for i, (row, level, log_probability) in enumerate(chosen):
        expected = float(stage[i, row] + limit[i, level - 1])
        assert log_probability == pytest.approx(expected, abs=1e-5)
    without = log_probabilities(build_network({"limits": limits}), observations, rows)
    assert not torch.allclose(stage, without[0])


def test_prior_has_no_gradient_and_leaves_the_other_weights_as_they_are() -> None:
    networks = []
    for settings in ({}, {"prior": {}}):
        torch.manual_seed(5)
        networks.append(build_network(settings))
    plain, other = (dict(network.named_parameters()) for network in networks)
    assert plain.keys() == other.keys()
    heads = {f"score_{kind}.6.{part}" for kind in ("stage", "limit") for part in ("weight", "bias")}
    for name, weight in plain.items():
        assert torch.equal(other[name], torch.zeros_like(weight) if name in heads else weight)
    assert "tilt_prior" not in networks[0].state_dict()
    assert networks[1].state_dict()["tilt_prior"].tolist() == [0.0] * len(SEARCHED)


def test_parameters_of_the_rule_travel_in_bundles(observations: Tables, tmp_path: Path) -> None:
    bundle = load_bundle(make_bundle(tmp_path / "policy", prior={"scale": 0.3}))
    network = bundle.build("decima")
    assert isinstance(network, DecimaNetwork)
    assert rule_of(network).parameters == pytest.approx(
        {"scale": 0.3, "alpha": 0.45, "share": 0.9, "stay": 1.0, "path": 0.2, "spill": 1.0}
    )
    before = network(as_tensors(observations))[0]
    bundle.weights["tilt_prior"][SEARCHED.index("stay")] = 2.0  # as evolution does
    network.load_state_dict(bundle.weights)
    assert rule_of(network).parameters["stay"] == pytest.approx(1.6)
    assert not torch.equal(network(as_tensors(observations))[0], before)


def test_settings_of_the_prior_are_checked() -> None:
    with pytest.raises(InputError, match=r"setting prior\.scale: Input should be greater than 0"):
        build_network({"prior": {"scale": 0}})
    with pytest.raises(InputError, match=r"prior\.scales"):
        build_network({"prior": {"scales": 1}})


IDLE = {"arrivals": "poisson", "interarrival_s": 60, "initial_jobs": 2, "jobs": 8}


@pytest.mark.parametrize("environment", [{"jobs": 6}, IDLE])
def test_without_reach_it_idles_as_the_rule_without_spill(environment: dict[str, Any]) -> None:
    network = build_network({"prior": {"scale": 0.05, "reach": 0}})
    weights, rule = weights_of(network), rule_of(network)
    encoded = replace(rule, parameters={**rule.parameters, "spill": 0.0}).encoded
    scratch = scratch_for(network, SIZES["max_stages"], SIZES["max_jobs"], executors=50)
    env = DagSchedulingEnv(**environment, **SIZES)
    observation, over, idle = env.reset(seed=3)[0], False, 0
    while not over:
        row, limit = decide_by_rule(encoded, Observation(**observation), 0, 0)
        own_row, _, log_probability = decide(
            Observation(**observation), weights, scratch, -1.0, -1.0
        )
        assert own_row == row
        if row == len(observation["schedulable"]) - 1:
            assert log_probability == 0
            idle += 1
        observation, _, over, _, _ = env.step(np.array([row, limit]))
    assert idle > 5


def test_policy_explains_why_executors_idle() -> None:
    policy = DecimaPolicy(build_network({"prior": {"scale": 1e-6, "reach": 0}}))
    env = DagSchedulingEnv(jobs=2, **SIZES)
    observation = env.reset(seed=3)[0]
    while not observation["schedulable"][-1] or (observation["jobs"][:2, EXECUTORS] == 0).any():
        decision, _ = policy.decide(Observation(**observation))
        observation = env.step(np.array([decision.row, decision.limit]))[0]
    decision, explanation = policy.decide(Observation(**observation))
    assert (decision.executors, decision.stages, decision.limits) == (0, [], [])
    assert "they idle, since every job holds as many as it may" in explanation.summary


@pytest.mark.parametrize("reach", [None, 0.3])
def test_linear_terms_of_jobs_are_the_same_in_torch(
    observations: Tables, reach: float | None
) -> None:
    torch.manual_seed(4)
    network = build_network({"prior": {"reach": reach, "strength": 2.0, "limit_strength": 3.0}})
    without = log_probabilities(network, observations, first_legal(observations))
    assert network.tilts is not None
    for table in network.tilts:
        torch.nn.init.normal_(table)
    weights, scratch = kernel_for(network)
    changed = {name: table.copy() for name, table in observations.items()}
    chosen = []
    for i in range(len(changed["cluster"])):
        view = Observation(**row_of(changed, i))  # `decide` removes stages beyond their reach
        chosen.append(decide(view, weights, scratch, 0.4, 0.6))
    acted = [i for i, (row, _, _) in enumerate(chosen) if row < changed["stages"].shape[1]]
    assert len(acted) > len(chosen) / 2
    tables = {name: table[acted] for name, table in changed.items()}
    rows = np.array([chosen[i][0] for i in acted])
    stage, limit = log_probabilities(network, tables, rows)
    for place, i in enumerate(acted):
        row, level, log_probability = chosen[i]
        expected = float(stage[place, row].detach() + limit[place, level - 1].detach())
        assert log_probability == pytest.approx(expected, abs=1e-5)
    assert not torch.allclose(stage, without[0][acted])


def test_a_silent_head_is_skipped_without_effect(observations: Tables) -> None:
    torch.manual_seed(6)
    network = build_network({"prior": {}})
    torch.nn.init.normal_(network.tilt_stage.weight)
    weights, scratch = kernel_for(network)
    assert weights.heads.tolist() == [0, 0]
    computed = weights._replace(heads=np.ones(2, np.int64))
    for i in range(len(observations["cluster"])):
        view = Observation(**row_of(observations, i))
        skipped = decide(view, weights, scratch, 0.3, 0.7)
        assert decide(view, computed, scratch, 0.3, 0.7) == skipped
    assert weights_of(build_network({})).heads.tolist() == [1, 1]
