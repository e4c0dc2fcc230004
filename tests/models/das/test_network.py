"""Both agents together: the four variants, deciding and learning from what was decided."""

from __future__ import annotations

import time

import pytest
import torch

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling.features import MACHINE_FEATURES
from loadmaster.envs.settings import build_settings
from loadmaster.models.das.network import DasNetwork
from loadmaster.models.das.settings import DasSettings
from tests.models.das.moments import VARIANTS, moments, network_of

WAITING = [7, 3, 1, 0]


def luck(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_is_decided_is_as_likely_when_learnt_from(variant: str) -> None:
    network, observation = network_of(variant), moments(WAITING)
    assert network.settings.variant == variant
    decision = network.decide(observation, luck())
    judged = network.evaluate(observation, decision.actions)
    for then, now in (
        (decision.ordering_log_prob, judged.ordering_log_prob),
        (decision.placement_log_prob, judged.placement_log_prob),
    ):
        assert then.shape == (4,)
        assert then.dtype == torch.float32
        torch.testing.assert_close(then, now.detach(), rtol=1e-5, atol=1e-4)
    again = network.decide(observation, luck())
    assert torch.equal(again.barred, decision.barred)
    assert not torch.equal(network.decide(observation, luck(1)).barred, decision.barred)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_parameter_learns(variant: str) -> None:
    network, observation = network_of(variant), moments(WAITING)
    decision = network.decide(observation, luck())
    judged = network.evaluate(observation, decision.actions)
    weights = torch.tensor([1.0, -2, 3, 1])
    sum((one * weights).sum() for one in judged).backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.any(), name


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradient_steps_make_a_choice_more_likely(variant: str) -> None:
    """Towards arbitrary actions, from the state a new network is in."""
    torch.manual_seed(0)
    network, observation = DasNetwork(VARIANTS[variant]), moments(WAITING)
    actions = network.decide(observation, luck(5)).actions
    optimiser = torch.optim.Adam(network.parameters(), lr=3e-3)
    seen = []
    for _ in range(30):
        judged = network.evaluate(observation, actions)
        likely = (judged.ordering_log_prob.sum(), judged.placement_log_prob.sum())
        seen.append([one.item() for one in likely])
        optimiser.zero_grad()
        (-sum(likely)).backward()
        optimiser.step()
    assert seen[-1][0] > seen[0][0] + 1
    assert seen[-1][1] > seen[0][1] + 5


def test_without_luck_the_means_decide() -> None:
    network, observation = network_of("DAS"), moments(WAITING)
    best = network.decide(observation)
    assert torch.equal(best.barred, network.decide(observation).barred)
    for seed in range(5):
        drawn = network.decide(observation, luck(seed))
        busy = slice(0, 3)  # in the last nobody waits
        assert (drawn.placement_log_prob[busy] < best.placement_log_prob[busy]).all()
        assert (drawn.ordering_log_prob[busy] < best.ordering_log_prob[busy]).all()


def test_variants_differ_by_their_parts_alone() -> None:
    counts = {name: DasNetwork(settings).parameter_counts() for name, settings in VARIANTS.items()}
    plain, full = counts["DA"], counts["DAS"]
    width = VARIANTS["DAS"].width
    gate = (MACHINE_FEATURES + 1) * width + (width + 1) * width + (2 * width + 1) * width
    process = (width + 1) * 8 + 4  # phi; l, rho, the noise and the gain
    assert full["ordering"] - plain["ordering"] == gate
    assert full["placement"] - plain["placement"] == process
    assert counts["DA+MC"] == {**plain, "ordering": full["ordering"]}
    assert counts["DA+RWGP"] == {**plain, "placement": full["placement"]}


def test_a_network_works_on_a_cluster_of_any_size() -> None:
    """Trained on few machines, it serves many; beyond 256 in cells."""
    network = network_of("DAS")
    for machines in (1, 8, 300):
        observation = moments([5, 2], machines=machines)
        decision = network.decide(observation, luck())
        judged = network.evaluate(observation, decision.actions)
        assert torch.isfinite(judged.placement_log_prob).all()
        torch.testing.assert_close(
            judged.placement_log_prob.detach(), decision.placement_log_prob, rtol=1e-5, atol=1e-3
        )
        judged.placement_log_prob.sum().backward()
        assert all(
            one.grad is None or torch.isfinite(one.grad).all() for one in network.parameters()
        )


def test_eight_hundred_machines_are_decided_on_in_time() -> None:
    """The promise: 50 ms on one thread, here with 8 jobs that could start."""
    network, observation = network_of("DAS"), moments([8], machines=800, queue=8)
    spent = []
    for _ in range(8):
        start = time.thread_time()
        network.decide(observation, luck())
        spent.append(time.thread_time() - start)
    assert min(spent) < 0.05


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"walk": 1.0}, "setting walk: .* less than 1"),
        ({"heads": 5}, "width=32 must be even and a multiple of heads=5"),
        ({"cross_rack": 0.9}, "cross_rack=0.9 must not exceed same_rack=0.6"),
        ({"noise": 0}, "setting noise: .* greater than 0"),
        ({"comunicate": True}, "did you mean 'communicate'"),
    ],
)
def test_wrong_settings_are_told(values: dict[str, object], told: str) -> None:
    with pytest.raises(InputError, match=told):
        build_settings(DasSettings, values)
