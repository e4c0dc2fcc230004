"""Implicit Q-learning (Kostrikov et al. 2022) on the networks of DDPG.

No value is ever taken of an action that was not logged: a value function learns a high expectile of
the values of logged actions, and the actor imitates logged actions by their advantage.
"""

from collections.abc import Mapping

import torch
from ray.rllib.core.columns import Columns
from torch import Tensor

from loadmaster.models.ddpg.module import DdpgModule
from loadmaster.models.ddpg.network import actor_input
from loadmaster.models.ddpg.perceptron import Stack, backward, forward
from loadmaster.platform.rl.ddpg import AdamStep, Update, bellman_target
from loadmaster.platform.rl.offline_settings import OfflineSettings


class IqlUpdate(Update):
    """Updates of the value function, the critics and the actor."""

    def __init__(
        self,
        module: DdpgModule,
        optimizers: Mapping[str, torch.optim.Optimizer],
        settings: OfflineSettings,
    ) -> None:
        super().__init__(module, optimizers, settings)
        self._iql = settings.iql
        self.value = Stack(1, (module.settings.actor_inputs, *settings.network.critic, 1))
        self._value = self.value.tables()
        adam = torch.optim.Adam(self.value.parameters(), settings.critic_learning_rate)
        self._value_step = AdamStep(adam, settings.gradient_clip)
        self._advantages = torch.empty(0)  # of the latest minibatch

    def critic(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        observations, rows = batch[Columns.OBS], len(batch[Columns.REWARDS])
        context = self._module.context_of(batch)
        logged, _ = self._target.value(observations, batch[Columns.ACTIONS], context)
        logged = logged if logged.dim() == 2 else logged.amin(0)
        both = torch.cat([observations, batch[Columns.NEXT_OBS]])
        twice = None if context is None else torch.cat([context, context])
        values, inputs = forward(self._value, actor_input(self._module.settings, both, twice))
        self._advantages = logged - values[:rows]
        # Eq. 5: |expectile - 1(u < 0)| u^2 of u = Q(s, a) - V(s).
        expectile = self._iql.expectile
        weight = torch.where(self._advantages < 0, 1 - expectile, expectile)
        slope = (-2 / rows) * weight * self._advantages
        gradients, _ = backward(self._value, [layer[:rows] for layer in inputs], slope)
        self._value_step.take(gradients)
        # Eq. 6: the target is r + gamma V(s').
        return self._fit_critic(batch, bellman_target(batch, values[rows:], self._learning.gamma))

    def actor(self, batch: dict[str, Tensor]) -> Tensor:
        """Step along eq. 7, of a normal distribution around a deterministic actor."""
        iql, context = self._iql, self._module.context_of(batch)
        weight = (iql.temperature * self._advantages).exp_().clamp_(max=iql.most_weight)
        actions, layers = self._network.act(batch[Columns.OBS], context)
        error = actions - batch[Columns.ACTIONS]
        slope = (2 / len(error)) * weight * error * (1 - actions.square())
        gradients, _ = backward(self._network.actor, layers, slope)
        self._actor_step.take(gradients)
        return (weight * error.square()).sum(1).mean()
