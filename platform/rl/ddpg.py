"""RLlib's learner of DDPG (Lillicrap et al. 2016) and TD3 (Fujimoto et al. 2018)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from torch import Tensor
from torch.optim.adam import adam

from loadmaster.models.ddpg.module import DdpgModule
from loadmaster.models.ddpg.perceptron import backward, without_stack
from loadmaster.models.ddpg.settings import CONTEXT_ID, SMOOTHING
from loadmaster.platform.rl.learner import EngineLearner
from loadmaster.platform.rl.replay import Minibatches
from loadmaster.platform.training.config import OffPolicyLearning

ACTOR, CRITIC = "actor", "critic"  # names of the optimisers
STEP_METRICS = ("critic_loss", "q_mean")  # of every update; the actor's loss is of fewer


class DdpgLearner(EngineLearner):
    """Updates critics, actor and target networks from drawn minibatches."""

    def build(self) -> None:
        super().build()
        self.module.foreach_module(lambda _, module: module.unwrapped().make_target_networks())

    def configure_optimizers_for_module(self, module_id: str, config: Any = None) -> None:
        network, learning = self.module[module_id].unwrapped().network, self.config.learning
        actor, critic = list(network.actor.parameters()), list(network.critic.parameters())
        self.add_adam(module_id, actor, learning.actor_learning_rate, ACTOR)
        self.add_adam(module_id, critic, learning.critic_learning_rate, CRITIC)

    def learn(self, drawn: Iterable[Minibatches], *, first: int, seed: int) -> dict[str, float]:
        """Take an update for each minibatch; returns mean metrics.

        Each of `drawn` has the shape (updates, minibatch). `first` is the number of the first
        update in the run, by which the actor is delayed; `seed` is that of the smoothing.
        """
        began = time.perf_counter()
        learning = self.config.learning
        update = Update(self.module[DEFAULT_MODULE_ID].unwrapped(), self._optimizers(), learning)
        rng = torch.Generator().manual_seed(seed)
        chunks = (self._columns(minibatches, rng) for minibatches in drawn)
        metrics = take_updates(
            update, chunks, first, learning.actor_delay, actor_start=learning.actor_start
        )
        return {**metrics, "gradient_seconds": time.perf_counter() - began}

    def _optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Both optimisers, at the configured rates: a resumed run may have changed them."""
        rates = self.config.learning
        found = {name: self.get_optimizer(DEFAULT_MODULE_ID, name) for name in (ACTOR, CRITIC)}
        self._set_optimizer_lr(found[ACTOR], rates.actor_learning_rate)
        self._set_optimizer_lr(found[CRITIC], rates.critic_learning_rate)
        return found

    def _columns(self, drawn: Minibatches, rng: torch.Generator) -> dict[str, Tensor]:
        """Columns (updates, minibatch, ...) on the learner's device."""
        found = minibatch_columns(drawn, self.config.learning, rng)
        return {name: column.to(self.device) for name, column in found.items()}

    def compute_loss_for_module(
        self, *, module_id: str, config: Any, batch: Any, fwd_out: Mapping[str, Tensor]
    ) -> Tensor:
        """Both losses, for RLlib's own `update`; `learn` does not call it."""
        module = self.module[module_id].unwrapped()
        loss = critic_loss(module, batch, self.config.learning.gamma)
        critic = module.network.critic.requires_grad_(False)
        try:
            return loss + actor_loss(module, batch, self.config.learning.action_cost)
        finally:
            critic.requires_grad_(True)


def minibatch_columns(
    drawn: Minibatches, learning: OffPolicyLearning, rng: torch.Generator
) -> dict[str, Tensor]:
    """Columns (updates, minibatch, ...) under RLlib's names, with the noise of the smoothing."""
    columns: dict[str, NDArray[Any]] = {
        Columns.OBS: drawn.observations,
        Columns.ACTIONS: drawn.actions,
        Columns.REWARDS: drawn.rewards,
        Columns.NEXT_OBS: drawn.next_observations,
        Columns.TERMINATEDS: drawn.terminated,
    }
    if CONTEXT_ID in drawn.integers:
        columns[CONTEXT_ID] = drawn.integers[CONTEXT_ID]
    found = {name: torch.from_numpy(column) for name, column in columns.items()}
    if learning.smoothing:
        noise = torch.randn(drawn.actions.shape, generator=rng) * learning.smoothing
        found[SMOOTHING] = noise.clamp(-learning.smoothing_clip, learning.smoothing_clip)
    return found


class UpdateSettings(Protocol):
    """What an update reads of the settings of learning."""

    @property
    def gamma(self) -> float: ...

    @property
    def soft_update(self) -> float: ...

    @property
    def gradient_clip(self) -> float | None: ...

    @property
    def action_cost(self) -> float: ...


class Update:
    """One update at a time, on the memory of the weights and of Adam's means, without autograd.

    The gradients are those of `critic_loss` and `actor_loss`.
    """

    def __init__(
        self,
        module: DdpgModule,
        optimizers: Mapping[str, torch.optim.Optimizer],
        learning: UpdateSettings,
    ) -> None:
        self._module, self._learning = module, learning
        self._network, self._target = module.network.tables(), module.target_network.tables()
        self._first_critic = self._network.first_critic
        clip = self._learning.gradient_clip
        self._actor_step = AdamStep(optimizers[ACTOR], clip)
        self._critic_step = AdamStep(optimizers[CRITIC], clip)

    def critic(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Step along the gradient of `critic_loss`; the loss and the mean value."""
        following = self._module.forward_target(batch, self._target)[Columns.VF_PREDS]
        return self._fit_critic(batch, bellman_target(batch, following, self._learning.gamma))

    def _fit_critic(self, batch: dict[str, Tensor], target: Tensor) -> tuple[Tensor, Tensor]:
        """Step towards the targets (B, 1); the loss and the mean value."""
        network, rows = self._network, len(target)
        context = self._module.context_of(batch)
        values, inputs = network.value(batch[Columns.OBS], batch[Columns.ACTIONS], context)
        error = values - target
        gradients, _ = backward(network.critic, inputs, error * (2 / rows))
        self._critic_step.take(gradients)
        return error.square().sum() / rows, values.mean()

    def actor(self, batch: dict[str, Tensor]) -> Tensor:
        """Step along the gradient of `actor_loss`, by the chain rule through the first critic.

        Lillicrap et al. 2016, eq. 6.
        """
        network, observations = self._network, batch[Columns.OBS]
        context = self._module.context_of(batch)
        actions, layers = network.act(observations, context)
        values, inputs = network.value(observations, actions, context, first=True)
        ahead = torch.full_like(values, -1 / len(values))
        _, of_input = backward(self._first_critic, inputs, ahead, of_tables=False, of_input=True)
        first = network.settings.observation
        of_actions = of_input[:, first : first + network.settings.action]
        cost = self._learning.action_cost
        if cost:
            of_actions = of_actions + actions * (2 * cost / len(actions))
        gradients, _ = backward(network.actor, layers, of_actions * (1 - actions.square()))
        self._actor_step.take(gradients)
        return -values.mean()

    def targets(self) -> None:
        """Move the target weights towards the weights, in one operation for all tables."""
        for target, network in (
            (self._target.actor, self._network.actor),
            (self._target.critic, self._network.critic),
        ):
            torch._foreach_lerp_(target.all, network.all, self._learning.soft_update)


def take_updates(
    update: Update,
    chunks: Iterable[Mapping[str, Tensor]],
    first: int,
    actor_delay: int,
    actor_start: int = 0,
) -> dict[str, float]:
    """Take an update for each minibatch of columns (updates, minibatch, ..); mean metrics.

    `first` is the number of the first update, by which the actor is delayed; before update
    `actor_start` only the critic learns.
    """
    steps: list[Tensor] = []
    actor_losses: list[Tensor] = []
    number = first
    with torch.no_grad():
        for columns in chunks:
            for place in range(len(columns[Columns.REWARDS])):
                batch = {name: column[place] for name, column in columns.items()}
                steps += update.critic(batch)
                if number % actor_delay == 0:
                    if number >= actor_start:
                        actor_losses.append(update.actor(batch))
                    update.targets()
                number += 1
    values = torch.stack(steps).view(-1, len(STEP_METRICS)).mean(0).tolist()
    metrics = dict(zip(STEP_METRICS, values, strict=True))
    if actor_losses:
        metrics["actor_loss"] = float(torch.stack(actor_losses).mean())
    return metrics


class AdamStep:
    """Steps of one of RLlib's optimisers, whose state they change, without its checks."""

    def __init__(self, optimizer: torch.optim.Optimizer, clip: float | None) -> None:
        (self._group,), self._clip = optimizer.param_groups, clip
        weights: list[Tensor] = self._group["params"]
        for weight in weights:
            if not optimizer.state[weight]:
                optimizer.state[weight] = {
                    "step": torch.zeros((), device=weight.device),
                    "exp_avg": torch.zeros_like(weight),
                    "exp_avg_sq": torch.zeros_like(weight),
                }
        states = [optimizer.state[weight] for weight in weights]
        self._weights = [without_stack(weight) for weight in weights]
        self._means, self._squares = (
            [without_stack(state[name]) for state in states] for name in ("exp_avg", "exp_avg_sq")
        )
        self._steps = [state["step"] for state in states]

    def take(self, gradients: list[Tensor]) -> None:
        if self._clip is not None:
            norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
            factor = (self._clip / (norm + 1e-6)).clamp(max=1)
            gradients = [gradient * factor for gradient in gradients]
        adam(
            *(self._weights, gradients, self._means, self._squares, [], self._steps),
            fused=True,
            amsgrad=False,
            beta1=self._group["betas"][0],
            beta2=self._group["betas"][1],
            lr=self._group["lr"],
            weight_decay=0.0,
            eps=self._group["eps"],
            maximize=False,
        )


def critic_loss(module: DdpgModule, batch: dict[str, Any], gamma: float) -> Tensor:
    """Squared error of the values, summed over critics. Its gradient reaches a batch's contexts.

    Lillicrap et al. 2016, algorithm 1; of two critics the lower makes the target (Fujimoto et al.
    2018, eq. 10).
    """
    target = bellman_target(batch, module.forward_target(batch)[Columns.VF_PREDS], gamma)
    context = module.context_of(batch)
    values = module.network.value(batch[Columns.OBS], batch[Columns.ACTIONS], context)
    return (values - target.squeeze(1)).square().mean(1).sum()


def actor_loss(module: DdpgModule, batch: dict[str, Any], action_cost: float = 0.0) -> Tensor:
    """Negated mean value of the actor's actions by the first critic, and what their size costs.

    Its gradient reaches contexts through the actions alone: through the critic, a context would
    raise the values instead of the actions' worth.
    """
    context = module.context_of(batch)
    actions = module.network.act(batch[Columns.OBS], context)
    judged = None if context is None else context.detach()
    value = module.network.value(batch[Columns.OBS], actions, judged)[0].mean()
    return action_cost * actions.square().sum(1).mean() - value


def bellman_target(batch: Mapping[str, Tensor], following: Tensor, gamma: float) -> Tensor:
    """(B, 1) reward and discounted value of what follows, unless the episode terminated."""
    factor = (1 - batch[Columns.TERMINATEDS]).mul_(gamma)
    return torch.addcmul(batch[Columns.REWARDS], factor, following.squeeze(1)).unsqueeze(1)
