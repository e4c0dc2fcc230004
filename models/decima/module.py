"""Decima's network as an RLlib module: from observations to actions and their probability."""

from collections.abc import Callable
from typing import Any

import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from torch import Tensor

from loadmaster.envs.settings import build_settings
from loadmaster.models.decima.network import DecimaNetwork
from loadmaster.models.decima.settings import DecimaSettings
from loadmaster.models.policy import ENTROPY


class DecimaModule(TorchRLModule):
    """An action is (stage row, limit); observations are padded tables of any size.

    The limit depends on the stage, so both are sampled here, one after the other, and RLlib
    receives actions instead of the parameters of a distribution.

    `model_config`: "network", the fields of DecimaSettings, and "limits", the highest limit: the
    executors of the cluster.
    """

    def setup(self) -> None:
        settings = build_settings(DecimaSettings, self.model_config["network"])
        self.network = DecimaNetwork(settings)
        self.limits: int = self.model_config["limits"]

    def _forward_inference(self, batch: dict[str, Any], **_: Any) -> dict[str, Tensor]:
        """The best-scored stage, and the best-scored limit for it."""
        return self._decide(batch[Columns.OBS], lambda scores: scores.argmax(1))

    def _forward_exploration(self, batch: dict[str, Any], **_: Any) -> dict[str, Tensor]:
        """A sampled stage, and a sampled limit for it."""
        return self._decide(
            batch[Columns.OBS], lambda scores: torch.multinomial(scores.softmax(1), 1).squeeze(1)
        )

    def _forward_train(self, batch: dict[str, Any], **_: Any) -> dict[str, Tensor]:
        """Log-probabilities of the batch's actions, and entropies: (B,) each.

        The entropy is that of the stage plus that of the limit given the batch's stage.
        """
        observation = batch[Columns.OBS]
        stage, limit = batch[Columns.ACTIONS].long().unbind(1)
        scores, packed, embedded = self.network(observation)
        limit_scores = self.network.limit_scores(observation, packed, embedded, stage, self.limits)
        stages, limits = scores.log_softmax(1), limit_scores.log_softmax(1)
        return {
            Columns.ACTION_LOGP: _at(stages, stage) + _at(limits, limit - 1),
            ENTROPY: _entropy(stages) + _entropy(limits),
        }

    @torch.no_grad()
    def _decide(
        self, observation: dict[str, Tensor], choose: Callable[[Tensor], Tensor]
    ) -> dict[str, Tensor]:
        scores, packed, embedded = self.network(observation)
        stage = choose(scores)
        limit_scores = self.network.limit_scores(observation, packed, embedded, stage, self.limits)
        place = choose(limit_scores)
        return {
            Columns.ACTIONS: torch.stack([stage, place + 1], dim=1),
            Columns.ACTION_LOGP: _at(scores.log_softmax(1), stage)
            + _at(limit_scores.log_softmax(1), place),
        }


def _at(logs: Tensor, chosen: Tensor) -> Tensor:
    """(B,) of (B, choices)"""
    return logs.gather(1, chosen[:, None]).squeeze(1)


def _entropy(logs: Tensor) -> Tensor:
    """(B,) of log-probabilities (B, choices)."""
    # The softmax equals exp(logs), which takes five times as long where most are very negative.
    return -(logs.softmax(1) * logs).sum(1)
