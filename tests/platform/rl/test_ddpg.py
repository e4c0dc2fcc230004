"""DDPG's update against a reference in plain torch: losses, Adam, target networks, delays."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from torch import Tensor, nn

from loadmaster.models.ddpg.module import DdpgModule
from loadmaster.models.ddpg.perceptron import Stack
from loadmaster.models.ddpg.settings import CONTEXT, CONTEXT_ID
from loadmaster.platform.rl.ddpg import DdpgLearner, actor_loss, critic_loss
from loadmaster.platform.rl.off_policy import OffPolicyConfig
from loadmaster.platform.rl.replay import Minibatches
from loadmaster.platform.training.config import OffPolicyLearning

OBSERVATION, ACTION, CONTEXTS, WIDTH, ROWS, UPDATES = 5, 2, 6, 3, 64, 4
LEARNING: dict[str, Any] = {"soft_update": 0.1, "actor_learning_rate": 1e-2}


def learner_of(network: dict[str, Any], **learning: Any) -> DdpgLearner:
    config = OffPolicyConfig().rollout_engine(learning=OffPolicyLearning(**LEARNING, **learning))
    spaces_of = tuple(spaces.Box(-1, 1, (size,), np.float32) for size in (OBSERVATION, ACTION))
    config.environment(observation_space=spaces_of[0], action_space=spaces_of[1])
    sizes = {"network": {"actor": [16, 8], "critic": [16, 8], **network}}
    sizes["contexts"] = CONTEXTS if "context" in network else 0  # type: ignore[assignment]
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=DdpgModule, model_config=sizes))
    config.debugging(seed=3)
    torch.manual_seed(3)
    built: DdpgLearner = config.build_learner(spaces={DEFAULT_MODULE_ID: spaces_of})
    module = module_of(built)
    # Last layers start near 0; here all matter.
    for table in module.network.parameters():
        nn.init.normal_(table, std=0.4)
    module.make_target_networks()
    if module.settings.context:
        module.contexts.normal_()
    return built


def module_of(learner: DdpgLearner) -> DdpgModule:
    found: DdpgModule = learner.module[DEFAULT_MODULE_ID].unwrapped()
    return found


def drawn(contexts: bool) -> Minibatches:
    rng, shape = np.random.default_rng(4), (UPDATES, ROWS)
    return Minibatches(
        observations=rng.standard_normal((*shape, OBSERVATION)).astype(np.float32),
        actions=rng.uniform(-1, 1, (*shape, ACTION)).astype(np.float32),
        rewards=rng.standard_normal(shape).astype(np.float32),
        next_observations=rng.standard_normal((*shape, OBSERVATION)).astype(np.float32),
        terminated=(rng.random(shape) < 0.2).astype(np.float32),
        integers={CONTEXT_ID: rng.integers(CONTEXTS, size=shape)} if contexts else {},
    )


def run(stack: Stack, x: Tensor) -> Tensor:
    last = len(stack.weights) - 1
    found = x.unsqueeze(0)
    for layer, (weight, bias) in enumerate(zip(stack.weights, stack.biases, strict=True)):
        found = found @ weight + bias
        found = found if layer == last else found.relu()
    return found


class Reference:
    """DDPG and TD3 by autograd and torch.optim, written from the papers."""

    def __init__(self, module: DdpgModule, learning: OffPolicyLearning) -> None:
        self.main, self.target = copy.deepcopy(module.network), copy.deepcopy(module.network)
        self.contexts, self.learning = module.contexts.clone(), learning
        rates = learning.actor_learning_rate, learning.critic_learning_rate
        stacks = self.main.actor, self.main.critic
        self.actor, self.critic = (
            torch.optim.Adam(stack.parameters(), rate)
            for stack, rate in zip(stacks, rates, strict=True)
        )

    def update(self, number: int, batch: Minibatches, noise: Tensor) -> tuple[float, float | None]:
        o, a, r, n, d = (torch.from_numpy(table[number]) for table in batch[:5])
        c = torch.zeros(len(o), 0)
        if batch.integers:
            c = self.contexts[torch.from_numpy(batch.integers[CONTEXT_ID][number])]
        with torch.no_grad():
            action = run(self.target.actor, torch.cat([n, c], 1))[0].tanh()
            action = (action + noise[number]).clamp(-1, 1)
            following = run(self.target.critic, torch.cat([n, action, c], 1)).squeeze(2)
            target = r + self.learning.gamma * (1 - d) * following.min(0).values
        values = run(self.main.critic, torch.cat([o, a, c], 1)).squeeze(2)
        loss = torch.stack([nn.functional.mse_loss(value, target) for value in values]).sum()
        self._step(self.critic, loss)
        if number % self.learning.actor_delay:
            return float(loss.detach()), None
        action = run(self.main.actor, torch.cat([o, c], 1))[0].tanh()
        actor = -run(self.main.critic, torch.cat([o, action, c], 1))[0].mean()
        self._step(self.actor, actor)
        with torch.no_grad():
            for old, new in zip(self.target.parameters(), self.main.parameters(), strict=True):
                old.copy_(old + self.learning.soft_update * (new - old))
        return float(loss.detach()), float(actor.detach())

    def _step(self, optimizer: torch.optim.Optimizer, loss: Any) -> None:
        self.actor.zero_grad()
        self.critic.zero_grad()
        loss.backward()
        if self.learning.gradient_clip is not None:
            tables = optimizer.param_groups[0]["params"]
            nn.utils.clip_grad_norm_(tables, self.learning.gradient_clip)
        optimizer.step()


@pytest.mark.parametrize(
    ("network", "learning"),
    [
        ({}, {}),
        ({"context": WIDTH}, {"gradient_clip": 0.01}),
        ({"critics": 2}, {"actor_delay": 2, "smoothing": 0.2, "smoothing_clip": 0.1}),
    ],
)
def test_updates_equal_a_reference(network: dict[str, Any], learning: dict[str, Any]) -> None:
    learner = learner_of(network, **learning)
    module, settings = module_of(learner), learner.config.learning
    reference, batch = Reference(module, settings), drawn("context" in network)
    rng = torch.Generator().manual_seed(8)
    noise = torch.zeros(batch.actions.shape)
    if settings.smoothing:
        noise = torch.randn(batch.actions.shape, generator=rng) * settings.smoothing
        noise = noise.clamp(-settings.smoothing_clip, settings.smoothing_clip)
    expected = [reference.update(number, batch, noise) for number in range(UPDATES)]
    metrics = learner.learn([batch], first=0, seed=8)
    for mine, other in (
        (module.network, reference.main),
        (module.target_network, reference.target),
    ):
        for name, table in other.state_dict().items():
            found = mine.state_dict()[name]
            assert torch.allclose(found, table, atol=2e-5, rtol=1e-4), name
    assert metrics["critic_loss"] == pytest.approx(np.mean([e[0] for e in expected]), rel=1e-4)
    actor = [e[1] for e in expected if e[1] is not None]
    assert len(actor) == UPDATES // settings.actor_delay
    assert metrics["actor_loss"] == pytest.approx(np.mean(actor), rel=1e-4, abs=1e-5)


def test_split_minibatches_and_a_restored_learner_continue_exactly() -> None:
    one, other, batch = learner_of({}), learner_of({}), drawn(contexts=False)
    one.learn([batch], first=0, seed=1)
    halves = [
        Minibatches(*(table[part] for table in batch[:5]), integers={})
        for part in (slice(2), slice(2, 4))
    ]
    other.learn([halves[0]], first=0, seed=1)
    resumed = learner_of({})
    resumed.set_state(copy.deepcopy(other.get_state()))
    resumed.learn([halves[1]], first=2, seed=1)
    for name, table in module_of(one).state_dict().items():
        assert torch.equal(module_of(resumed).state_dict()[name], table), name


def test_losses_for_autograd_have_the_gradients_of_an_update() -> None:
    """RLlib's `update` takes them, and an encoder of contexts does."""
    learner = learner_of({"context": WIDTH})
    module, batch = module_of(learner), drawn(contexts=True)
    ids = torch.from_numpy(batch.integers[CONTEXT_ID][0])
    context = module.contexts[ids].clone().requires_grad_()
    columns: dict[str, Any] = {
        Columns.OBS: torch.from_numpy(batch.observations[0]),
        Columns.ACTIONS: torch.from_numpy(batch.actions[0]),
        Columns.REWARDS: torch.from_numpy(batch.rewards[0]),
        Columns.NEXT_OBS: torch.from_numpy(batch.next_observations[0]),
        Columns.TERMINATEDS: torch.from_numpy(batch.terminated[0]),
        CONTEXT: context,
    }
    gamma = learner.config.learning.gamma
    loss = critic_loss(module, columns, gamma) + actor_loss(module, columns)
    (gradient,) = torch.autograd.grad(loss, context)
    assert gradient.abs().sum(1).min() > 0
    both = learner.compute_loss_for_module(
        module_id=DEFAULT_MODULE_ID, config=learner.config, batch=columns, fwd_out={}
    )
    assert both.item() == pytest.approx(loss.item())
    critic, actor = (list(s.parameters()) for s in (module.network.critic, module.network.actor))
    found = torch.autograd.grad(both, critic + actor)
    wanted = torch.autograd.grad(critic_loss(module, columns, gamma), critic)
    for mine, other in zip(found, wanted, strict=False):  # the actor's loss moves no critic
        assert torch.equal(mine, other)
