"""RLlib module of DDPG: the network, its target network, exploration, and a table of contexts."""

from typing import Any

import torch
from gymnasium import spaces
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.utils import make_target_network
from ray.rllib.core.rl_module.apis import InferenceOnlyAPI, TargetNetworkAPI
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from torch import Tensor, nn

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings
from loadmaster.models.ddpg.network import DdpgNetwork, NetworkTables
from loadmaster.models.ddpg.settings import (
    CONTEXT,
    CONTEXT_ID,
    MOST_CONTEXTS,
    SMOOTHING,
    DdpgSettings,
)
from loadmaster.models.keyed_random import RNG_KEY, standard_normal, uniform

NOISE, RANDOM = 0, 1  # places in `exploration`


class DdpgModule(TorchRLModule, TargetNetworkAPI, InferenceOnlyAPI):
    """Acts by the actor, with noise to explore, and values actions by the critics.

    `model_config`: "network", the fields of DdpgSettings without the widths of observations and
    actions, which the spaces have; "contexts", the number of contexts in the table.

    Exploration and contexts are buffers, so they reach workers and checkpoints with the weights:
    `exploration` is the noise's standard deviation and the share of random actions, `contexts` the
    vectors that a batch refers to by CONTEXT_ID. A batch may have a column CONTEXT instead.
    """

    exploration: Tensor
    contexts: Tensor

    def setup(self) -> None:
        self.settings = self.network_settings()
        rows = self.model_config.get("contexts", 0)
        if not 0 <= rows <= MOST_CONTEXTS:
            raise InputError(f"contexts is {rows:,}; expected 0 to {MOST_CONTEXTS:,}")
        self.network = self.make_network()
        self.register_buffer("exploration", torch.zeros(2))
        self.register_buffer("contexts", torch.zeros(rows, self.settings.context))

    def network_settings(self) -> DdpgSettings:
        return network_settings(
            self.observation_space, self.action_space, self.model_config.get("network", {})
        )

    def make_network(self) -> DdpgNetwork:
        """The network with actor and critics; a subclass may add an encoder to it."""
        return DdpgNetwork(self.settings)

    def context_of(self, batch: dict[str, Any]) -> Tensor | None:
        """(B, context) of a batch, None where the networks take none."""
        if not self.settings.context:
            return None
        if CONTEXT in batch:
            found: Tensor = batch[CONTEXT]
            return found
        if CONTEXT_ID not in batch or not len(self.contexts):
            raise InputError(f"a batch without {CONTEXT}; expected it, or {CONTEXT_ID} and a table")
        return self.contexts[batch[CONTEXT_ID]]

    @torch.no_grad()
    def _forward_inference(self, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        return {Columns.ACTIONS: self.network.act(batch[Columns.OBS], self.context_of(batch))}

    @torch.no_grad()
    def _forward_exploration(self, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Actions with Gaussian noise, some of them uniform, by each row's own key."""
        greedy = self.network.act(batch[Columns.OBS], self.context_of(batch))
        key, shape = batch[RNG_KEY], greedy.shape[1:]
        noise, share = self.exploration.tolist()
        actions = greedy + noise * standard_normal(key, shape, stream=0).to(greedy)
        if share > 0:
            numbers = uniform(key[:, None], torch.arange(1 + shape[0]), stream=1)
            anything = (2 * numbers[:, 1:] - 1).to(greedy)
            actions = torch.where(numbers[:, :1] < share, anything, actions)
        return {Columns.ACTIONS: actions.clamp(-1, 1)}

    def _forward_train(self, batch: dict[str, Any], **_: Any) -> dict[str, Tensor]:
        """Values (critics, B) of the batch's actions."""
        context = self.context_of(batch)
        values = self.network.value(batch[Columns.OBS], batch[Columns.ACTIONS], context)
        return {Columns.VF_PREDS: values}

    # TargetNetworkAPI: the learner makes and updates the target network.

    def make_target_networks(self) -> None:
        self.target_network: DdpgNetwork = make_target_network(self.network)

    def get_target_network_pairs(self) -> list[tuple[nn.Module, nn.Module]]:
        return [
            (self.network.actor, self.target_network.actor),
            (self.network.critic, self.target_network.critic),
        ]

    @torch.no_grad()
    def forward_target(
        self, batch: dict[str, Any], tables: NetworkTables | None = None
    ) -> dict[str, Tensor]:
        """Values (B, 1) of the next observations by the target networks, the lower of two critics.

        The target actor's actions are moved by the column SMOOTHING (B, action), if there is one
        (Fujimoto et al. 2018, eq. 14), and bounded. `tables` are those of the target network.
        """
        target = tables or self.target_network.tables()
        observations, context = batch[Columns.NEXT_OBS], self.context_of(batch)
        actions, _ = target.act(observations, context)
        if SMOOTHING in batch:
            actions = actions.add_(batch[SMOOTHING]).clamp_(-1, 1)
        values, _ = target.value(observations, actions, context)
        return {Columns.VF_PREDS: values if values.dim() == 2 else values.amin(0)}

    def get_non_inference_attributes(self) -> list[str]:
        return ["target_network"]


def network_settings(
    observation: spaces.Space[Any], action: spaces.Space[Any], given: dict[str, Any]
) -> DdpgSettings:
    """Settings of networks for these spaces: vectors, and actions between -1 and 1."""
    if not isinstance(observation, spaces.Box) or len(observation.shape) != 1:
        raise InputError(f"the observation space is {observation}; expected a Box of one axis")
    if (
        not isinstance(action, spaces.Box)
        or len(action.shape) != 1
        or not ((action.low == -1).all() and (action.high == 1).all())
    ):
        raise InputError(f"the action space is {action}; expected a Box of one axis from -1 to 1")
    widths = {"observation": observation.shape[0], "action": action.shape[0]}
    return build_settings(DdpgSettings, {**given, **widths})
