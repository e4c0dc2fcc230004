"""DDPG's networks against plain torch, exploration by keys, contexts, and refused spaces."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from ray.rllib.core.columns import Columns
from torch import Tensor

from loadmaster.envs.errors import InputError
from loadmaster.models.ddpg.module import NOISE, RANDOM, DdpgModule
from loadmaster.models.ddpg.network import build_network
from loadmaster.models.ddpg.perceptron import Stack
from loadmaster.models.ddpg.settings import CONTEXT, CONTEXT_ID
from loadmaster.models.keyed_random import RNG_KEY

OBSERVATIONS = spaces.Box(-1, 1, (3,), np.float32)
ACTIONS = spaces.Box(-1, 1, (2,), np.float32)


def module_of(contexts: int = 0, **network: Any) -> DdpgModule:
    torch.manual_seed(1)
    return DdpgModule(
        observation_space=OBSERVATIONS,
        action_space=ACTIONS,
        model_config={"network": network, "contexts": contexts},
    )


def by_hand(stack: Stack, place: int, x: Tensor) -> Tensor:
    last = len(stack.weights) - 1
    for layer, (weight, bias) in enumerate(zip(stack.weights, stack.biases, strict=True)):
        x = x @ weight[place] + bias[place]
        x = x if layer == last else x.clamp(min=0)
    return x


@pytest.mark.parametrize("critics", [1, 2])
def test_values_and_gradients_of_stacked_perceptrons(critics: int) -> None:
    torch.manual_seed(2)
    stack, x = Stack(critics, (4, 6, 5, 2)).double(), torch.randn(7, 4, dtype=torch.float64)
    expected = torch.stack([by_hand(stack, place, x) for place in range(critics)])
    assert torch.allclose(stack(x), expected)
    x.requires_grad_()
    tables = list(stack.parameters())
    assert torch.autograd.gradcheck(lambda given, *_: stack(given).square(), (x, *tables))
    stack.requires_grad_(False)
    (gradient,) = torch.autograd.grad(stack(x).sum(), x)
    (wanted,) = torch.autograd.grad(sum(by_hand(stack, c, x).sum() for c in range(critics)), x)
    assert torch.allclose(gradient, wanted)


def test_greedy_and_exploring_actions() -> None:
    module = module_of()
    batch = {Columns.OBS: torch.randn(4000, 3), RNG_KEY: torch.arange(4000)}
    greedy = module.forward_inference(batch)[Columns.ACTIONS]
    assert torch.equal(module.forward_exploration(batch)[Columns.ACTIONS], greedy)
    module.exploration[NOISE] = 0.2
    noisy = module.forward_exploration(batch)[Columns.ACTIONS]
    assert float((noisy - greedy).std()) == pytest.approx(0.2, rel=0.05)
    part = {name: column[100:110] for name, column in batch.items()}  # the batch does not matter
    again = module.forward_exploration(part)[Columns.ACTIONS]
    assert torch.allclose(again, noisy[100:110], atol=1e-6)
    module.exploration[RANDOM] = 1.0
    anything = module.forward_exploration(batch)[Columns.ACTIONS]
    assert float(anything.std()) == pytest.approx(3**-0.5, rel=0.05)  # uniform
    module.exploration[RANDOM] = 0.25
    some = module.forward_exploration(batch)[Columns.ACTIONS]
    assert float((some == noisy).all(1).float().mean()) == pytest.approx(0.75, abs=0.03)
    module.exploration[NOISE] = 5.0
    assert float(module.forward_exploration(batch)[Columns.ACTIONS].abs().max()) == 1.0


@pytest.mark.parametrize("critic_context", [True, False])
def test_context_by_vector_and_by_row_of_the_table(critic_context: bool) -> None:
    module = module_of(contexts=5, context=4, critic_context=critic_context)
    module.contexts.copy_(torch.randn(5, 4))
    observations, ids = torch.randn(6, 3), torch.tensor([0, 4, 4, 1, 2, 3])
    by_row = {Columns.OBS: observations, CONTEXT_ID: ids}
    by_vector = {Columns.OBS: observations, CONTEXT: module.contexts[ids]}
    one, other = (module.forward_inference(batch)[Columns.ACTIONS] for batch in (by_row, by_vector))
    assert torch.equal(one, other)
    vector = by_vector[CONTEXT].clone().requires_grad_()
    values = module.network.value(observations, other, vector)
    assert values.shape == (1, 6)
    if critic_context:
        assert torch.autograd.grad(values.sum(), vector)[0].abs().sum() > 0
    else:
        assert not values.requires_grad or torch.equal(
            values, module.network.value(observations, other, None)
        )
    with pytest.raises(InputError, match="context"):
        module.forward_inference({Columns.OBS: observations})
    with pytest.raises(InputError, match="context"):
        module.network.act(observations)


def test_state_of_workers_has_no_target_network() -> None:
    module = module_of(critics=2)
    module.make_target_networks()
    names = module.get_state(inference_only=True)
    assert not any(name.startswith("target") for name in names)
    assert {"exploration", "network.critic.weights.0"} <= names.keys()
    worker = DdpgModule(
        observation_space=OBSERVATIONS,
        action_space=ACTIONS,
        model_config={"network": {"critics": 2}},
        inference_only=True,
    )
    worker.set_state(names)
    batch = {Columns.OBS: torch.randn(2, 3)}
    assert torch.equal(
        worker.forward_inference(batch)[Columns.ACTIONS],
        module.forward_inference(batch)[Columns.ACTIONS],
    )
    # A bundle holds actor and critics.
    settings = {"observation": 3, "action": 2, "critics": 2}
    weights = {n.removeprefix("network."): w for n, w in names.items() if n.startswith("network.")}
    assert build_network(settings).state_dict().keys() == weights.keys()


@pytest.mark.parametrize(
    ("observations", "actions", "words"),
    [
        (spaces.Discrete(3), ACTIONS, "observation space"),
        (OBSERVATIONS, spaces.Discrete(3), "action space"),
        (OBSERVATIONS, spaces.Box(-2, 2, (1,), np.float32), "from -1 to 1"),
    ],
)
def test_refused_spaces(observations: Any, actions: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        DdpgModule(observation_space=observations, action_space=actions, model_config={})


def test_refused_settings() -> None:
    for wrong in ({"critics": 3}, {"actor": []}, {"critic": [0]}, {"context": -1}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            build_network({"observation": 3, "action": 1, **wrong})
    with pytest.raises(InputError, match="65,536"):
        build_network({"observation": 3, "action": 1, "actor": [100_000]})
