"""The actor and the critics as one network, whose weights a bundle holds."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings
from loadmaster.models.ddpg.perceptron import Stack, Tables, forward
from loadmaster.models.ddpg.settings import DdpgSettings


class DdpgNetwork(nn.Module):
    """A deterministic actor and Q critics of observation, action and context."""

    def __init__(self, settings: DdpgSettings) -> None:
        super().__init__()
        self.settings = settings
        self.actor = Stack(1, (settings.actor_inputs, *settings.actor, settings.action))
        self.critic = Stack(settings.critics, (settings.critic_inputs, *settings.critic, 1))

    def act(self, observations: Tensor, context: Tensor | None = None) -> Tensor:
        """(B, action) between -1 and 1."""
        found: Tensor = self.actor(actor_input(self.settings, observations, context))[0].tanh()
        return found

    def value(self, observations: Tensor, actions: Tensor, context: Tensor | None = None) -> Tensor:
        """(critics, B) expected discounted returns."""
        inputs = critic_input(self.settings, observations, actions, context)
        found: Tensor = self.critic(inputs).squeeze(2)
        return found

    def tables(self) -> "NetworkTables":
        return NetworkTables(self)


class NetworkTables:
    """The network's own memory, for passes without autograd; each also returns layers' inputs."""

    def __init__(self, network: DdpgNetwork) -> None:
        self.settings = network.settings
        self.actor, self.critic = network.actor.tables(), network.critic.tables()

    def act(self, observations: Tensor, context: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        """(B, action)"""
        found, inputs = forward(self.actor, actor_input(self.settings, observations, context))
        return found.tanh_(), inputs

    def value(
        self, observations: Tensor, actions: Tensor, context: Tensor | None, first: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """(critics, B, 1), or (B, 1) of a single critic; `first`: of the first alone."""
        inputs = critic_input(self.settings, observations, actions, context)
        return forward(self.first_critic if first else self.critic, inputs)

    @property
    def first_critic(self) -> Tables:
        if self.settings.critics == 1:
            return self.critic
        return Tables(*([table[0] for table in tables] for tables in self.critic))


def actor_input(settings: DdpgSettings, observations: Tensor, context: Tensor | None) -> Tensor:
    """(B, actor_inputs): observation, context."""
    if not settings.context:
        return observations
    return torch.cat([observations, _needed(context)], 1)


def critic_input(
    settings: DdpgSettings, observations: Tensor, actions: Tensor, context: Tensor | None
) -> Tensor:
    """(B, critic_inputs): observation, action, context."""
    if not settings.context or not settings.critic_context:
        return torch.cat([observations, actions], 1)
    return torch.cat([observations, actions, _needed(context)], 1)


def _needed(context: Tensor | None) -> Tensor:
    if context is None:
        raise InputError("the networks take a context; expected one for each observation")
    return context


def build_network(settings: Mapping[str, Any]) -> DdpgNetwork:
    return DdpgNetwork(build_settings(DdpgSettings, settings))
