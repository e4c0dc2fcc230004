"""Training of DDPG's networks from logged transitions alone, in this process and without Ray.

Networks learn from standardised observations and rewards. The result takes observations and values
rewards in their own units: the scales are folded into first and last layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from ray.rllib.core.columns import Columns
from torch import Tensor

from loadmaster.envs.errors import InputError
from loadmaster.models.ddpg.module import DdpgModule
from loadmaster.models.ddpg.network import DdpgNetwork
from loadmaster.models.ddpg.perceptron import Stack
from loadmaster.models.ddpg.settings import CONTEXT
from loadmaster.models.layers import one_thread
from loadmaster.platform.rl.bcq import CANDIDATES, BcqUpdate, fit_generator
from loadmaster.platform.rl.ddpg import ACTOR, CRITIC, Update, take_updates
from loadmaster.platform.rl.iql import IqlUpdate
from loadmaster.platform.rl.offline_settings import OfflineSettings
from loadmaster.platform.rl.transitions import Floats, PolicyActions, Transitions
from loadmaster.platform.training.trainer import quiet_rllib

CHUNK = 256  # updates whose minibatches are drawn at once
SMALLEST = 1e-3  # scale of a number that hardly varies


def train_offline(
    transitions: Transitions,
    settings: OfflineSettings | None = None,
    initial: DdpgNetwork | None = None,
) -> DdpgNetwork:
    """A network learnt from a log; `initial` is one to start from, of the same widths.

    A log with contexts makes networks that take them. All random numbers follow from the seed.
    """
    settings = settings or OfflineSettings()
    learner = OfflineLearner(transitions, settings, initial)
    learner.learn(transitions, settings.updates)
    learner.scales.fold(learner.network)
    return learner.network.requires_grad_(True)


class OfflineLearner:
    """Networks that learn from a log which may grow between updates; its scales stay.

    `first` is the log that observations and rewards are standardised by. All random numbers follow
    from the seed.
    """

    def __init__(
        self, first: Transitions, settings: OfflineSettings, initial: DdpgNetwork | None = None
    ) -> None:
        self.settings, self.updates = settings, 0
        self.scales = Scales.of(first, settings.gamma, settings.least_spread)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            self._module = make_module(first, settings)
            if initial is not None:
                _start_from(self._module.network, initial, self.scales)
            self._module.make_target_networks()
            self._update: Update | None = None  # made with the first update
            self._state = torch.get_rng_state()
        self._rng = torch.Generator().manual_seed(settings.seed)

    @property
    def network(self) -> DdpgNetwork:
        """Takes scaled observations."""
        return self._module.network

    def learn(self, log: Transitions, updates: int) -> None:
        """Take so many updates from a log."""
        settings = self.settings
        columns = _columns(log, self.scales)
        with one_thread(), torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._state)
            if settings.algorithm == "bcq":
                columns[CANDIDATES] = _candidates(columns, settings, self._rng)
            self._update = self._update or make_update(self._module, settings)
            drawn = _draw(columns, updates, settings.minibatch, self._rng)
            take_updates(self._update, drawn, first=self.updates, actor_delay=1)
            self._state = torch.get_rng_state()
        self.updates += updates

    def actions(self, observations: Floats, contexts: Floats | None) -> Floats:
        """Actions (N, action) for observations as they are logged."""
        scaled = (torch.from_numpy(observations) - self.scales.mean) / self.scales.spread
        return actor_actions(self.network)(scaled.numpy(), contexts)


def actor_actions(network: DdpgNetwork) -> PolicyActions:
    """The actor as a function of arrays, for `evaluate_fitted_q`."""

    def act(observations: Floats, contexts: Floats | None) -> Floats:
        context = None if contexts is None else torch.from_numpy(contexts)
        with torch.no_grad():
            found: Floats = network.act(torch.from_numpy(observations), context).numpy()
        return found

    return act


class Scales(NamedTuple):
    """Means and scales of observations (observation,) and of rewards."""

    mean: Tensor
    spread: Tensor
    reward_mean: float  # 0 where episodes terminate: a constant would change what is best
    reward_spread: float
    gamma: float

    @classmethod
    def of(cls, log: Transitions, gamma: float, least_spread: float = 0.0) -> Scales:
        """Those of a log; a scale is at least `least_spread` times the mean's size."""
        mean, spread = log.observations.mean(0), log.observations.std(0)
        spread = np.maximum(spread, np.float32(least_spread) * np.abs(mean))
        return cls(
            torch.from_numpy(mean),
            torch.from_numpy(np.where(spread < SMALLEST, np.float32(1), spread)),
            0.0 if log.terminated.any() else float(log.rewards.mean()),
            max(SMALLEST, float(log.rewards.std())),
            gamma,
        )

    def fold(self, network: DdpgNetwork) -> None:
        """Make the network take observations as they are logged, and value such rewards."""
        for stack in (network.actor, network.critic):
            _scale_inputs(stack, self.mean, self.spread)
        _scale_outputs(network.critic, self._value_offset, self.reward_spread)

    def unfold(self, network: DdpgNetwork) -> None:
        """The inverse of `fold`."""
        for stack in (network.actor, network.critic):
            _scale_inputs(stack, -self.mean / self.spread, 1 / self.spread)
        offset = -self._value_offset / self.reward_spread
        _scale_outputs(network.critic, offset, 1 / self.reward_spread)

    @property
    def _value_offset(self) -> float:
        """The value of the mean reward in every step."""
        return self.reward_mean / (1 - self.gamma)


@torch.no_grad()
def _scale_inputs(stack: Stack, mean: Tensor, spread: Tensor) -> None:
    """Make (x - mean) / spread part of the first layer; the observation comes first in x."""
    weight, bias = stack.weights[0], stack.biases[0]
    part = weight[:, : len(mean)]
    part /= spread[:, None]
    bias -= (mean @ part).unsqueeze(1)


@torch.no_grad()
def _scale_outputs(stack: Stack, offset: float, spread: float) -> None:
    stack.weights[-1] *= spread
    stack.biases[-1].mul_(spread).add_(offset)


def make_module(log: Transitions, settings: OfflineSettings) -> DdpgModule:
    """Networks of the log's widths."""
    description = log.description
    widths = len(description.observation), len(description.action)
    boxes = [spaces.Box(-1, 1, (width,), np.float32) for width in widths]
    network = {**settings.network.model_dump(), "context": description.context}
    with quiet_rllib():
        return DdpgModule(
            observation_space=boxes[0], action_space=boxes[1], model_config={"network": network}
        )


def _start_from(network: DdpgNetwork, initial: DdpgNetwork, scales: Scales) -> None:
    """Copy the weights of `initial`, scaled."""
    if initial.settings != network.settings:
        raise InputError(f"the initial network is {initial.settings}; expected {network.settings}")
    network.load_state_dict(initial.state_dict())
    scales.unfold(network)


def _columns(log: Transitions, scales: Scales) -> dict[str, Tensor]:
    """Columns (N, ..) of all transitions, under RLlib's names."""

    def scaled(observations: Floats) -> Tensor:
        return (torch.from_numpy(observations) - scales.mean) / scales.spread

    rewards = (log.rewards - scales.reward_mean) / scales.reward_spread
    columns = {
        Columns.OBS: scaled(log.observations),
        Columns.ACTIONS: torch.from_numpy(log.actions),
        Columns.REWARDS: torch.from_numpy(rewards.astype(np.float32)),
        Columns.NEXT_OBS: scaled(log.next_observations),
        Columns.TERMINATEDS: torch.from_numpy(log.terminated.astype(np.float32)),
    }
    if log.contexts is not None:
        columns[CONTEXT] = torch.from_numpy(log.contexts)
    return columns


def _candidates(
    columns: dict[str, Tensor], settings: OfflineSettings, rng: torch.Generator
) -> Tensor:
    """Actions of a fitted generator at the next states."""
    context = [columns[CONTEXT]] if CONTEXT in columns else []
    states = torch.cat([columns[Columns.OBS], *context], 1)
    generator = fit_generator(states, columns[Columns.ACTIONS], settings, rng)
    return generator.candidates(torch.cat([columns[Columns.NEXT_OBS], *context], 1), rng)


def make_update(module: DdpgModule, settings: OfflineSettings) -> Update:
    """The algorithm's update, with new optimisers."""
    rates = {ACTOR: settings.actor_learning_rate, CRITIC: settings.critic_learning_rate}
    optimizers = {
        name: torch.optim.Adam(getattr(module.network, name).parameters(), rate)
        for name, rate in rates.items()
    }
    kinds = {"iql": IqlUpdate, "bcq": BcqUpdate, "ddpg": Update}
    return kinds[settings.algorithm](module, optimizers, settings)


def _draw(
    columns: dict[str, Tensor], updates: int, minibatch: int, rng: torch.Generator
) -> Iterator[dict[str, Tensor]]:
    """Minibatches of transitions drawn uniformly, CHUNK at a time."""
    count = len(columns[Columns.REWARDS])
    for first in range(0, updates, CHUNK):
        shape = min(CHUNK, updates - first), minibatch
        rows = torch.randint(count, shape, generator=rng)
        yield {name: column[rows] for name, column in columns.items()}
