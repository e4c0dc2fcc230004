"""Batch-constrained Q-learning (Fujimoto et al. 2019) on the networks of DDPG.

A generator imitates the logged behaviour; the policy is the best of its actions, each perturbed a
little. The actor learns that policy's actions by regression, so that one pass of it acts.
"""

from collections.abc import Mapping

import torch
from ray.rllib.core.columns import Columns
from torch import Tensor, nn

from loadmaster.models.ddpg.module import DdpgModule
from loadmaster.models.ddpg.perceptron import Stack, backward, forward
from loadmaster.platform.rl.ddpg import AdamStep, Update, bellman_target
from loadmaster.platform.rl.offline_settings import BcqSettings, OfflineSettings

CANDIDATES = "candidates"  # column of a batch: generated actions (B, candidates, action)
NARROWEST = -4.0  # logarithm of a generated action's standard deviation; the widest is 0
WIDTH = 2.0  # factor of the network's output


class Generator(nn.Module):
    """Normal distributions of logged actions by state, with a standard deviation for each number.

    The published generator is a variational autoencoder. On actions at their bounds, as rules
    choose them, its latent numbers encode the action and the state is ignored.
    """

    def __init__(self, state: int, action: int, widths: tuple[int, ...], bcq: BcqSettings) -> None:
        super().__init__()
        self.bcq = bcq
        self.network = Stack(1, (state, *widths, 2 * action))

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Means (B, action), and logarithms of standard deviations."""
        mean, spread = self.network(states)[0].chunk(2, 1)
        return mean.tanh(), NARROWEST * (WIDTH * spread).sigmoid()

    def loss(self, states: Tensor, actions: Tensor) -> Tensor:
        """Negated mean logarithm of the likelihood, without its constant."""
        mean, spread = self(states)
        found: Tensor = (spread + 0.5 * ((actions - mean) * (-spread).exp()).square()).mean()
        return found

    @torch.no_grad()
    def candidates(self, states: Tensor, rng: torch.Generator) -> Tensor:
        """(N, candidates, action) for states (N, state); the first is the mean."""
        limit = self.bcq.most_deviations
        mean, spread = self(states)
        shape = len(states), self.bcq.candidates, mean.shape[1]
        drawn = torch.randn(shape, generator=rng).clamp_(-limit, limit)
        drawn[:, 0] = 0
        return drawn.mul_(spread.exp()[:, None]).add_(mean[:, None]).clamp_(-1, 1)


def fit_generator(
    states: Tensor, actions: Tensor, settings: OfflineSettings, rng: torch.Generator
) -> Generator:
    """A generator of the actions (N, action) that were logged in states (N, state)."""
    bcq, size = settings.bcq, settings.minibatch
    generator = Generator(states.shape[1], actions.shape[1], settings.network.critic, bcq)
    adam = torch.optim.Adam(generator.parameters(), bcq.generator_learning_rate, fused=True)
    for _ in range(bcq.generator_updates):
        rows = torch.randint(len(states), (size,), generator=rng)
        loss = generator.loss(states[rows], actions[rows])
        adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
    return generator


class BcqUpdate(Update):
    """Updates of critics, perturbations and the actor, at the next states of a minibatch.

    Candidates are drawn once for each logged state, not in each update.
    """

    def __init__(
        self,
        module: DdpgModule,
        optimizers: Mapping[str, torch.optim.Optimizer],
        settings: OfflineSettings,
    ) -> None:
        super().__init__(module, optimizers, settings)
        self._bcq = settings.bcq
        sizes = module.settings
        inputs = sizes.observation + sizes.action + sizes.context
        widths = (inputs, *settings.network.critic, sizes.action)
        stack, target = Stack(1, widths), Stack(1, widths)
        target.load_state_dict(stack.state_dict())
        self._perturbation, self._perturbation_target = stack.tables(), target.tables()
        adam = torch.optim.Adam(stack.parameters(), settings.actor_learning_rate)
        self._perturbation_step = AdamStep(adam, settings.gradient_clip)
        self._best = torch.empty(0)  # actions (B, action) of the policy at the next states

    def critic(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Step towards eq. 13: the best candidate by a mix of the lower and the higher critic."""
        candidates, bcq = batch[CANDIDATES], self._bcq
        rows, count, width = candidates.shape
        states = batch[Columns.NEXT_OBS].repeat_interleave(count, 0)
        context = self._module.context_of(batch)
        context = None if context is None else context.repeat_interleave(count, 0)
        actions = candidates.reshape(-1, width)
        found, _ = forward(self._perturbation_target, _inputs(states, actions, context))
        actions = found.tanh_().mul_(bcq.perturbation).add_(actions).clamp_(-1, 1)
        values, _ = self._target.value(states, actions, context)
        if values.dim() == 3:
            values = values.amin(0).lerp_(values.amax(0), 1 - bcq.lower_share)
        following, place = values.view(rows, count).max(1)
        self._best = actions.view(rows, count, width)[torch.arange(rows), place]
        target = bellman_target(batch, following[:, None], self._learning.gamma)
        return self._fit_critic(batch, target)

    def actor(self, batch: dict[str, Tensor]) -> Tensor:
        """Step the perturbations along eq. 14, and the actor towards the policy's actions."""
        states, context = batch[Columns.NEXT_OBS], self._module.context_of(batch)
        if self._bcq.perturbation:
            self._step_perturbation(states, batch[CANDIDATES][:, 0], context)
        actions, layers = self._network.act(states, context)
        error = actions - self._best
        slope = (2 / len(error)) * error * (1 - actions.square())
        gradients, _ = backward(self._network.actor, layers, slope)
        self._actor_step.take(gradients)
        return error.square().sum(1).mean()

    def _step_perturbation(self, states: Tensor, drawn: Tensor, context: Tensor | None) -> None:
        found, layers = forward(self._perturbation, _inputs(states, drawn, context))
        moved = found.tanh_()
        actions = (drawn + self._bcq.perturbation * moved).clamp_(-1, 1)
        values, inputs = self._network.value(states, actions, context, first=True)
        ahead = torch.full_like(values, -self._bcq.perturbation / len(values))
        _, of_input = backward(self._first_critic, inputs, ahead, of_tables=False, of_input=True)
        first = self._network.settings.observation
        of_actions = of_input[:, first : first + drawn.shape[1]]
        gradients, _ = backward(self._perturbation, layers, of_actions * (1 - moved.square()))
        self._perturbation_step.take(gradients)

    def targets(self) -> None:
        super().targets()
        torch._foreach_lerp_(
            self._perturbation_target.all, self._perturbation.all, self._learning.soft_update
        )


def _inputs(states: Tensor, actions: Tensor, context: Tensor | None) -> Tensor:
    return torch.cat([states, actions] if context is None else [states, actions, context], 1)
