"""RLlib modules of DAS's agents and their critic, for platform/rl/mappo.py."""

from typing import Any

import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from torch import Tensor

from loadmaster.envs.gpu_scheduling.actions import ORDERING, PLACEMENT
from loadmaster.envs.settings import build_settings
from loadmaster.models.das.network import Actions, Critic, DasNetwork
from loadmaster.models.das.settings import DasSettings
from loadmaster.models.keyed_random import RNG_KEY, standard_normal
from loadmaster.models.policy import ENTROPY


class DasModule(TorchRLModule):
    """An action is a priority for each row of the queue and its affinity to each machine.

    Affinities go to the environment as drawn, so that the recorded action is the one of the
    density: the environment ignores machines where a job does not fit.

    `model_config`: "network", the fields of DasSettings.
    """

    def setup(self) -> None:
        settings = build_settings(DasSettings, self.model_config["network"])
        self.network = DasNetwork(settings)

    def _forward_inference(self, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        return {Columns.ACTIONS: _by_agent(self.network.mean_actions(batch[Columns.OBS]))}

    @torch.no_grad()
    def _forward_exploration(self, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Sample by each row's own key.

        The queue comes first in both shapes, so that padding it does not change the numbers of
        other rows.
        """
        found = self.network(batch[Columns.OBS])
        key, shape = batch[RNG_KEY], found.placements.fits.shape[1:]
        standard = Actions(
            standard_normal(key, shape[:1], stream=0), standard_normal(key, shape, stream=1)
        )
        actions = found.sample(standard)
        return {Columns.ACTIONS: _by_agent(actions), Columns.ACTION_LOGP: found.log_prob(actions)}

    def _forward_train(self, batch: dict[str, Any], **_: Any) -> dict[str, Tensor]:
        found = self.network(batch[Columns.OBS])
        log_prob = found.log_prob(_to_actions(batch[Columns.ACTIONS]))
        return {Columns.ACTION_LOGP: log_prob, ENTROPY: found.entropy()}


class DasCritic(TorchRLModule):
    """`model_config`: "network", the fields of DasSettings, and whether it "sees_actions"."""

    def setup(self) -> None:
        settings = build_settings(DasSettings, self.model_config["network"])
        self.sees_actions: bool = self.model_config["sees_actions"]
        self.critic = Critic(settings, self.sees_actions)

    def _forward_train(self, batch: dict[str, Any], **_: Any) -> dict[str, Tensor]:
        actions = _to_actions(batch[Columns.ACTIONS]) if self.sees_actions else None
        return {Columns.VF_PREDS: self.critic(batch[Columns.OBS], actions)}


def _by_agent(actions: Actions) -> dict[str, Tensor]:
    return {ORDERING: actions.priority, PLACEMENT: actions.affinity}


def _to_actions(actions: dict[str, Tensor]) -> Actions:
    return Actions(actions[ORDERING], actions[PLACEMENT])
