"""SURE's network as an RLlib module: the training pass over recorded decisions."""

from typing import Any

import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from torch import Tensor

from loadmaster.envs.settings import build_settings
from loadmaster.models.policy import DECISION, ENTROPY, LOSS_TERMS
from loadmaster.models.ragged import Minibatches
from loadmaster.models.sure.batches import SelectedDecisions, SureMinibatches, counted
from loadmaster.models.sure.network import SureNetwork
from loadmaster.models.sure.objective import (
    GAUSSIAN,
    KL,
    MUTUAL_INFORMATION,
    objective_terms,
    weighted_losses,
)
from loadmaster.models.sure.settings import SureSettings


class SureModule(TorchRLModule):
    """A decision is a gate, a change of each task and a drawn subgraph of each.

    Rollouts call `network` directly: they keep what the snapshots of the window have in common.
    `model_config`: "network", the fields of SureSettings.
    """

    def setup(self) -> None:
        self.network = SureNetwork(build_settings(SureSettings, self.model_config["network"]))
        settings = self.network.settings
        terms = (KL, GAUSSIAN) if settings.scored else ()
        informed = settings.draws and settings.mutual_information_weight > 0
        self.loss_terms = (*terms, *((MUTUAL_INFORMATION,) if informed else ()))

    def minibatches(self, columns: dict[str, Any], device: Any) -> Minibatches:
        settings = self.network.settings
        return SureMinibatches(columns, settings.hops, settings.drawn_neighbours, device)

    def _forward_train(self, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Log-probabilities of the gates, of the tasks that changed, and of the draws."""
        given: SelectedDecisions = batch[Columns.OBS]
        found = self.network.evaluate(*given)
        weight, draws = self.network.settings.sampler_weight, found.log_prob.sampler
        # The value stays, for the ratio; the gradient is weighed.
        draws = weight * draws + (1 - weight) * draws.detach()
        log_prob = found.log_prob._replace(sampler=draws)
        decision = given.batch.decision
        acting = given.gate[decision]
        each = torch.arange(len(given.gate), device=decision.device)
        terms: dict[str, Tensor] = {}
        if self.loss_terms:
            own = objective_terms(self.network, given.batch, found)
            terms = weighted_losses(own, self.network.settings)
        return {
            Columns.ACTION_LOGP: counted(log_prob, acting),
            ENTROPY: counted(found.entropy, acting),
            DECISION: counted((each, decision, decision), acting),
            LOSS_TERMS: terms,
        }
