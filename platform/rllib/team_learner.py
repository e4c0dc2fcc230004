"""RLlib's learner for agents that share a reward: the policy, and a critic that sees everything."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from torch import Tensor

from loadmaster.models.luck import LUCK, mixed
from loadmaster.platform.rllib.columns import on_device, rows_of, taken
from loadmaster.platform.rllib.learner import InputDrivenLearner

CRITIC = "critic"  # its module's name, beside the policy's
AT_ONCE = 2048  # rows that are judged in one pass: all would not always fit a device


class Judgement(NamedTuple):
    """A critic's, in units of its own.

    V says the same of a moment and of what was done then. Q says of the moment what it says of
    actions that the policy would draw, on average.
    """

    judged: NDArray[np.float32] | None  # (K,) of what was done
    promised: NDArray[np.float32] | None  # (K,) of the moment


class TeamLearner(InputDrivenLearner):
    """One update is either the policy's or the critic's, as `module_id` says.

    The critic is a module of its own: it has an optimiser and a learning rate of its own, its
    gradient is clipped apart, and neither rollout workers nor bundles ever see it.
    """

    def compute_loss_for_module(
        self, *, module_id: str, config: Any, batch: Any, fwd_out: dict[str, Tensor]
    ) -> Tensor:
        if module_id != CRITIC:
            return super().compute_loss_for_module(
                module_id=module_id, config=config, batch=batch, fwd_out=fwd_out
            )
        error: Tensor = fwd_out[Columns.VF_PREDS] - batch[Columns.VALUE_TARGETS]
        loss = error.square().mean()
        self._tally("loss", loss)
        return loss

    def postprocess_gradients_for_module(
        self, *, module_id: str, config: Any = None, module_gradients_dict: Any
    ) -> Any:
        """RLlib would log a gradient of 0 for the module that is not being updated."""
        if not module_gradients_dict:
            return {}
        return super().postprocess_gradients_for_module(
            module_id=module_id, config=config, module_gradients_dict=module_gradients_dict
        )

    @torch.no_grad()
    def judge(self, columns: Any, seed: int, sees_actions: bool) -> Judgement:
        """Of every row, by `seed` where draws are needed; rows without actions have no `judged`."""
        tensors, count = on_device(columns, self.device), rows_of(columns)
        torch.manual_seed(seed)  # for modules that draw as torch does
        judged: list[Tensor] = []
        promised: list[Tensor] = []
        for first in range(0, count, AT_ONCE):
            rows = torch.arange(first, min(first + AT_ONCE, count))
            batch = taken(tensors, rows, self.device)
            if Columns.ACTIONS in batch or not sees_actions:
                judged.append(self._worth(batch))
            if sees_actions:
                promised.append(self._expected(batch, mixed(rows.to(self.device), seed)))
        said = torch.cat(judged).cpu().numpy() if judged else None
        ahead = torch.cat(promised).cpu().numpy() if promised else said
        return Judgement(said, ahead)

    def _worth(self, batch: dict[str, Any]) -> Tensor:
        found: Tensor = self.module[CRITIC].forward_train(batch)[Columns.VF_PREDS]
        return found

    def _expected(self, batch: dict[str, Any], luck: Tensor) -> Tensor:
        """The mean over a few draws of all agents together."""
        policy, samples = self.module[DEFAULT_MODULE_ID], self.config.learning.critic.samples
        found = []
        for draw in range(samples):
            seen = {Columns.OBS: batch[Columns.OBS], LUCK: mixed(luck, draw)}
            actions = policy.forward_exploration(seen)[Columns.ACTIONS]
            found.append(self._worth({**batch, Columns.ACTIONS: actions}))
        return torch.stack(found).mean(0)
