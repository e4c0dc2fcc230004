"""Decima's network as an RLlib module: from observations to actions and their probability."""

from collections.abc import Callable
from typing import Any

import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from torch import Tensor

from loadmaster.envs.settings import build_settings
from loadmaster.models.decima.device_batch import DeviceMinibatches, Options, PackedDecisions
from loadmaster.models.decima.gradient import (
    DecisionMinibatches,
    SelectedDecisions,
    log_probability_and_entropy,
)
from loadmaster.models.decima.network import ILLEGAL, DecimaNetwork
from loadmaster.models.decima.settings import DecimaSettings
from loadmaster.models.policy import ENTROPY
from loadmaster.models.ragged import Minibatches


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

    def minibatches(self, columns: dict[str, Any], device: Any) -> Minibatches:
        """Recorded decisions without padding: for the compiled pass on a CPU, or on a GPU."""
        if torch.device(device).type == "cpu":
            return DecisionMinibatches(columns, self.network)
        return DeviceMinibatches(columns, device)

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
        if isinstance(observation, SelectedDecisions):
            log_probability, entropy = log_probability_and_entropy(self.network, observation)
            return {Columns.ACTION_LOGP: log_probability, ENTROPY: entropy}
        if isinstance(observation, PackedDecisions):
            return self._forward_packed(observation)
        stage, limit = batch[Columns.ACTIONS].long().unbind(1)
        scores, packed, embedded = self.network(observation)
        limit_scores = self.network.limit_scores(observation, packed, embedded, stage, self.limits)
        stages, limits = scores.log_softmax(1), limit_scores.log_softmax(1)
        return {
            Columns.ACTION_LOGP: _at(stages, stage) + _at(limits, limit - 1),
            ENTROPY: _entropy(stages) + _entropy(limits),
        }

    def _forward_packed(self, packed: PackedDecisions) -> dict[str, Tensor]:
        network, batch = self.network, packed.batch
        embedded = network.embed(batch, len(packed.total), packed.schedule)
        scores = network.score_rows(batch, embedded, packed.stage_row, packed.stages.owner)
        stages = _padded(scores, packed.stages).log_softmax(1)
        log_probability = _at(stages, packed.stages.chosen)
        entropy = _entropy(stages)
        if network.score_limit is not None:
            owner, level = packed.limits.owner, packed.limit
            scores = network.score_levels(batch, embedded, packed.job, packed.total, owner, level)
            limits = _padded(scores, packed.limits).log_softmax(1)
            log_probability = log_probability + _at(limits, packed.limits.chosen)
            entropy = entropy + _entropy(limits)
        return {Columns.ACTION_LOGP: log_probability, ENTROPY: entropy}

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


def _padded(scores: Tensor, options: Options) -> Tensor:
    """(B, widest), ILLEGAL behind each decision's own options."""
    whole = scores.new_full((len(options.chosen) * options.widest,), ILLEGAL)
    place = options.owner * options.widest + options.place
    return whole.index_copy(0, place, scores).view(-1, options.widest)


def _at(logs: Tensor, chosen: Tensor) -> Tensor:
    """(B,) of (B, choices)"""
    return logs.gather(1, chosen[:, None]).squeeze(1)


def _entropy(logs: Tensor) -> Tensor:
    """(B,) of log-probabilities (B, choices)."""
    # The softmax equals exp(logs), which takes five times as long where most are very negative.
    return -(logs.softmax(1) * logs).sum(1)
