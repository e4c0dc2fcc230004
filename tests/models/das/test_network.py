"""Both agents together: the four variants, their critic, and decisions in the environment."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling.actions import ORDERING, PLACEMENT
from loadmaster.envs.gpu_scheduling.features import MACHINE_FEATURES
from loadmaster.envs.gpu_scheduling.vector_env import GpuSchedulingVectorEnv
from loadmaster.envs.settings import build_settings
from loadmaster.models.das.network import Actions, Critic, DasNetwork
from loadmaster.models.das.settings import DasSettings
from tests.models.das.builders import (
    VARIANTS,
    network_of,
    observations,
    one_of,
    usable,
    with_machines,
)

WAITING = [7, 3, 1, 0]
THREE = [7, 3, 0]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("variant", VARIANTS)
def test_log_prob_of_decision_equals_evaluation(variant: str) -> None:
    network, observation = network_of(variant), observations(WAITING)
    assert network.settings.variant == variant
    decision = network.decide(observation, seeded())
    evaluated = network.evaluate(observation, decision.actions)
    for then, now in (
        (decision.ordering_log_prob, evaluated.ordering_log_prob),
        (decision.placement_log_prob, evaluated.placement_log_prob),
    ):
        assert then.shape == (4,)
        assert then.dtype == torch.float32
        torch.testing.assert_close(then, now.detach(), rtol=1e-5, atol=1e-4)
    again = network.decide(observation, seeded())
    assert torch.equal(again.barred, decision.barred)
    assert not torch.equal(network.decide(observation, seeded(1)).barred, decision.barred)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_parameter_has_a_gradient(variant: str) -> None:
    network, observation = network_of(variant), observations(WAITING)
    decision = network.decide(observation, seeded())
    evaluated = network.evaluate(observation, decision.actions)
    weights = torch.tensor([1.0, -2, 3, 1])
    sum((one * weights).sum() for one in evaluated).backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.any(), name


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradient_steps_raise_log_prob(variant: str) -> None:
    """Of arbitrary actions, from the initial weights."""
    torch.manual_seed(0)
    network, observation = DasNetwork(VARIANTS[variant]), observations(WAITING)
    actions = network.decide(observation, seeded(5)).actions
    optimiser = torch.optim.Adam(network.parameters(), lr=3e-3)
    seen = []
    for _ in range(30):
        evaluated = network.evaluate(observation, actions)
        likely = (evaluated.ordering_log_prob.sum(), evaluated.placement_log_prob.sum())
        seen.append([one.item() for one in likely])
        optimiser.zero_grad()
        (-sum(likely)).backward()
        optimiser.step()
    assert seen[-1][0] > seen[0][0] + 1
    assert seen[-1][1] > seen[0][1] + 5


def test_means_are_the_mode() -> None:
    network, observation = network_of("DAS"), observations(WAITING)
    best = network.decide(observation)
    assert torch.equal(best.barred, network.decide(observation).barred)
    for seed in range(5):
        drawn = network.decide(observation, seeded(seed))
        busy = slice(0, 3)  # no job waits in the last
        assert (drawn.placement_log_prob[busy] < best.placement_log_prob[busy]).all()
        assert (drawn.ordering_log_prob[busy] < best.ordering_log_prob[busy]).all()


def test_variants_differ_only_by_their_parts() -> None:
    counts = {name: DasNetwork(settings).parameter_counts() for name, settings in VARIANTS.items()}
    plain, full = counts["DA"], counts["DAS"]
    width = VARIANTS["DAS"].width
    gate = (MACHINE_FEATURES + 1) * width + (width + 1) * width + (2 * width + 1) * width
    process = (width + 1) * 8 + 4  # phi; l, rho, the noise and the gain
    assert full["ordering"] - plain["ordering"] == gate
    assert full["placement"] - plain["placement"] == process
    assert counts["DA+MC"] == {**plain, "ordering": full["ordering"]}
    assert counts["DA+RWGP"] == {**plain, "placement": full["placement"]}


def test_network_runs_on_any_number_of_machines() -> None:
    network = network_of("DAS")
    for machines in (1, 8, 300):
        observation = observations([5, 2], machines=machines)
        decision = network.decide(observation, seeded())
        evaluated = network.evaluate(observation, decision.actions)
        assert torch.isfinite(evaluated.placement_log_prob).all()
        torch.testing.assert_close(
            evaluated.placement_log_prob.detach(), decision.placement_log_prob, rtol=1e-5, atol=1e-3
        )
        evaluated.placement_log_prob.sum().backward()
        assert all(
            one.grad is None or torch.isfinite(one.grad).all() for one in network.parameters()
        )


def test_decision_on_800_machines_takes_less_than_50_ms() -> None:
    network, observation = network_of("DAS"), observations([8], machines=800, queue=8)
    spent = []
    for _ in range(8):
        start = time.thread_time()
        network.decide(observation, seeded())
        spent.append(time.thread_time() - start)
    assert min(spent) < 0.05


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"walk": 1.0}, "setting walk: .* less than 1"),
        ({"heads": 5}, "width=32 must be even and a multiple of heads=5"),
        ({"cross_rack": 0.9}, "cross_rack=0.9 must not exceed same_rack=0.6"),
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


def actions(queue: int = 7) -> Actions:
    made = torch.randn(3, 7, 7, generator=seeded(3))
    return Actions(made[:, :queue, 6], made[:, :queue, :6])


@pytest.mark.parametrize("sees_actions", [False, True], ids=["V", "Q"])
def test_critic_ignores_padding_and_order(sees_actions: bool) -> None:
    critic, observation, done = critic_of(sees_actions), observations(THREE), actions()
    worth = critic(observation, done)
    assert worth.shape == (3,)
    assert len(set(worth.tolist())) == 3
    order = torch.tensor([4, 2, 0, 5, 1, 3])
    turned = Actions(done.priority, done.affinity[..., order])
    torch.testing.assert_close(critic(with_machines(observation, order), turned), worth)
    for number, jobs in enumerate(THREE[:2]):
        shown = Actions(*(table[number : number + 1, :jobs] for table in done))
        torch.testing.assert_close(
            critic(one_of(observation, number, jobs), shown)[0], worth[number]
        )
    queue = torch.tensor([6, 2, 1, 0, 4, 3, 5])
    shuffled = {
        name: table[:, queue] for name, table in observation.items() if table.shape[1:2] == (7,)
    }
    moved = Actions(*(table[:, queue] for table in done))
    torch.testing.assert_close(critic({**observation, **shuffled}, moved), worth)


def test_only_q_depends_on_actions() -> None:
    observation, done = observations(THREE), actions()
    fits = usable(observation)
    barred = done._replace(affinity=done.affinity + (~fits).float())
    placed = done._replace(affinity=done.affinity + fits.float())
    ranked = done._replace(priority=done.priority + 1)
    q, v = critic_of(True), critic_of(False)
    worth = q(observation, done)
    assert torch.equal(q(observation, barred), worth)  # no effect where a job does not fit
    for other in (placed, ranked):
        assert (q(observation, other) != worth).tolist() == [True, True, False]
        assert torch.equal(v(observation, other), v(observation))
    with pytest.raises(ValueError, match="actions"):
        q(observation)


@pytest.mark.parametrize("variant", VARIANTS)
def test_decisions_are_legal_in_environment(variant: str) -> None:
    torch.manual_seed(0)
    network = DasNetwork(VARIANTS[variant])
    generator = seeded()
    vector = GpuSchedulingVectorEnv(3, jobs=40, load=3.0)
    tables, _ = vector.reset(seed=0)
    for _ in range(12):
        observation = {name: torch.from_numpy(table) for name, table in tables.items()}
        decision = network.decide(observation, generator)
        evaluated = network.evaluate(observation, decision.actions)
        assert torch.isfinite(evaluated.ordering_log_prob + evaluated.placement_log_prob).all()
        torch.testing.assert_close(evaluated.placement_log_prob, decision.placement_log_prob)
        actions = {
            ORDERING: decision.actions.priority.numpy(),
            PLACEMENT: decision.barred.numpy(),
        }
        tables, rewards, _, _, info = vector.step(actions)
        assert np.isfinite(rewards).all()
        assert info["legal"].all()
