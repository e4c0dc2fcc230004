"""The four variants of the network, their critic, and their actions in the environment."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings
from loadmaster.models.das.network import Actions, Critic, DasNetwork
from loadmaster.models.das.settings import DasSettings
from tests.models.das.builders import (
    VARIANTS,
    Batch,
    network_of,
    observations,
    one_of,
    usable,
    with_machines,
)

WAITING = [7, 3, 1, 0]


@torch.no_grad()
def sampled(network: DasNetwork, observation: Batch, seed: int = 0) -> tuple[Actions, Tensor]:
    """Actions and their log-probabilities (B, 2)."""
    generator, shape = torch.Generator().manual_seed(seed), observation["held"].shape
    standard = Actions(*(torch.randn(size, generator=generator) for size in (shape[:2], shape)))
    found = network(observation)
    actions = found.sample(standard)
    return actions, found.log_prob(actions)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_parameter_has_a_gradient(variant: str) -> None:
    network, observation = network_of(variant), observations(WAITING)
    found = network(observation)
    log_prob = found.log_prob(sampled(network, observation)[0])
    weights = torch.tensor([[1.0], [-2], [3], [1]])
    ((log_prob + found.entropy()) * weights).sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.any(), name


@pytest.mark.parametrize("machines", [1, 8, 300])
def test_network_runs_on_any_number_of_machines(machines: int) -> None:
    network, observation = network_of("DAS"), observations([5, 2], machines=machines)
    actions, expected = sampled(network, observation)
    log_prob = network(observation).log_prob(actions)
    assert torch.isfinite(log_prob).all()
    torch.testing.assert_close(log_prob.detach(), expected, rtol=1e-5, atol=1e-3)
    log_prob.sum().backward()
    assert all(one.grad is None or torch.isfinite(one.grad).all() for one in network.parameters())


def test_decision_on_800_machines_takes_less_than_50_ms() -> None:
    network, observation = network_of("DAS"), observations([8], machines=800, queue=8)
    spent = []
    for _ in range(8):
        start = time.thread_time()
        network.mean_actions(observation)
        spent.append(time.thread_time() - start)
    assert min(spent) < 0.05


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"walk": 1.0}, "setting walk: .* less than 1"),
        ({"heads": 5}, "heads=5"),
        ({"cross_rack": 0.9}, "cross_rack=0.9"),
        ({"noise": 0}, "setting noise: .* greater than 0"),
        ({"comunicate": True}, "did you mean 'communicate'"),
    ],
)
def test_invalid_settings_raise(values: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_settings(DasSettings, values)


def critic_of(sees_actions: bool) -> Critic:
    torch.manual_seed(4)
    return Critic(DasSettings(), sees_actions)


def arbitrary_actions() -> Actions:
    made = torch.randn(4, 7, 7, generator=torch.Generator().manual_seed(3))
    return Actions(made[..., 6], made[..., :6])


@pytest.mark.parametrize("sees_actions", [False, True], ids=["V", "Q"])
def test_critic_ignores_padding_and_order(sees_actions: bool) -> None:
    critic, observation = critic_of(sees_actions), observations(WAITING)
    actions = arbitrary_actions()
    value = critic(observation, actions)
    assert value.shape == (4,)
    assert len(set(value.tolist())) == 4
    order = torch.tensor([4, 2, 0, 5, 1, 3])
    turned = Actions(actions.priority, actions.affinity[..., order])
    torch.testing.assert_close(critic(with_machines(observation, order), turned), value)
    for number, jobs in enumerate(WAITING[:3]):
        own = Actions(*(table[number : number + 1, :jobs] for table in actions))
        torch.testing.assert_close(critic(one_of(observation, number, jobs), own)[0], value[number])
    queue = torch.tensor([6, 2, 1, 0, 4, 3, 5])
    shuffled = {
        name: table[:, queue] for name, table in observation.items() if table.shape[1:2] == (7,)
    }
    moved = Actions(*(table[:, queue] for table in actions))
    torch.testing.assert_close(critic({**observation, **shuffled}, moved), value)


def test_only_q_depends_on_actions() -> None:
    observation, actions = observations(WAITING), arbitrary_actions()
    fits = usable(observation)
    unusable = actions._replace(affinity=actions.affinity + (~fits).float())
    placed = actions._replace(affinity=actions.affinity + fits.float())
    ranked = actions._replace(priority=actions.priority + 1)
    q, v = critic_of(True), critic_of(False)
    value = q(observation, actions)
    assert torch.equal(q(observation, unusable), value)  # no effect where a job does not fit
    for other in (placed, ranked):
        assert (q(observation, other) != value).tolist() == [True, True, True, False]
        assert torch.equal(v(observation, other), v(observation))
    with pytest.raises(ValueError, match="actions"):
        q(observation)


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradient_steps_raise_log_prob(variant: str) -> None:
    """Of arbitrary actions, from the initial weights."""
    torch.manual_seed(0)
    network, observation = DasNetwork(VARIANTS[variant]), observations(WAITING)
    actions, _ = sampled(network, observation, seed=5)
    optimiser = torch.optim.Adam(network.parameters(), lr=3e-3)
    seen = []
    for _ in range(30):
        log_prob = network(observation).log_prob(actions).sum(0)
        seen.append(log_prob.detach())
        optimiser.zero_grad()
        (-log_prob.sum()).backward()
        optimiser.step()
    assert (seen[-1] > seen[0] + torch.tensor([1, 5])).all()


def test_means_are_the_mode() -> None:
    network, observation = network_of("DAS"), observations(WAITING)
    with torch.no_grad():
        best = network(observation).log_prob(network.mean_actions(observation))
    for seed in range(5):
        _, log_prob = sampled(network, observation, seed)
        assert (log_prob[:3] < best[:3]).all()  # no job waits in the last
