"""RLlib learner for rollouts whose advantages are computed before the update: REINFORCE and PPO."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch
from torch import Tensor

from loadmaster.platform.rl.rollout import on_device, rows_of, taken
from loadmaster.platform.training.config import Learning

ENTROPY = "entropy"  # column that a module may return from its training pass


class InputDrivenLearner(TorchLearner):
    """Policy gradient with given advantages.

    A module's training pass returns either the log-probability and entropy of the batch's actions,
    or parameters of its distribution, as usual in RLlib. A module that decides for several agents
    returns both per agent: (B, agents).
    """

    @property
    def learning(self) -> Learning:
        found: Learning = self.config.learning
        return found

    def _create_iterator_if_necessary(
        self,
        *,
        training_data: Any,
        module_id: str = DEFAULT_MODULE_ID,
        num_epochs: int = 1,
        minibatches: int = 1,
        learning_rate: float | None = None,
        entropy_weight: float = 0.0,
        shuffle_seed: int = 0,
        **_: Any,
    ) -> Iterator[MultiAgentBatch]:
        self._module_id, self._entropy_weight = module_id, entropy_weight
        if learning_rate is not None:
            for _name, optimizer in self.get_optimizers_for_module(module_id):
                self._set_optimizer_lr(optimizer, learning_rate)
        self._minibatch_metrics: dict[str, list[Tensor]] = {}
        return self._minibatches(training_data.batch, num_epochs, minibatches, shuffle_seed)

    def _minibatches(
        self, columns: Any, epochs: int, minibatches: int, seed: int
    ) -> Iterator[MultiAgentBatch]:
        """Every decision once an epoch, in an order given by the seed."""
        tensors = on_device(columns, self.device)
        count = rows_of(columns)
        shuffle = torch.Generator().manual_seed(seed)
        kl_limit = self.learning.stop_at_kl if self.learning.method == "ppo" else math.inf
        for _ in range(epochs):
            order = torch.randperm(count, generator=shuffle)
            for rows in order.tensor_split(min(minibatches, count)):
                batch = SampleBatch(taken(tensors, rows, self.device))
                yield MultiAgentBatch({self._module_id: batch}, env_steps=len(rows))
            if (
                "kl" in self._minibatch_metrics
                and float(self._minibatch_metrics["kl"][-1]) > kl_limit
            ):
                return

    def compute_loss_for_module(
        self, *, module_id: str, config: Any, batch: Any, fwd_out: dict[str, Tensor]
    ) -> Tensor:
        log_probability, entropy = self._log_probability(module_id, batch, fwd_out)
        advantage = batch[Columns.ADVANTAGES]
        if log_probability.dim() == 2:  # each agent has its own ratio; the advantage is shared
            advantage = advantage.unsqueeze(1)
        log_ratio = log_probability - batch[Columns.ACTION_LOGP]
        ratio = log_ratio.exp()
        if self.learning.method == "ppo":
            clip = self.learning.clip
            bounded = ratio.clamp(1 - clip, 1 + clip)
            # PPO (Schulman et al. 2017), eq. 7, for each agent (Yu et al. 2022, MAPPO).
            gain = torch.min(ratio * advantage, bounded * advantage).mean(0).sum()
        else:
            # REINFORCE: grad log pi(a|s) * advantage.
            gain = (log_probability * advantage).mean(0).sum()
        total_entropy = entropy.mean(0).sum()
        kl = (ratio - 1 - log_ratio).mean(0)  # Schulman's estimator, never below 0
        self._record("entropy", total_entropy)
        self._record("kl", kl.max())  # of the agent that moved furthest
        loss: Tensor = -gain - self._entropy_weight * total_entropy
        return loss

    def _log_probability(
        self, module_id: str, batch: Any, fwd_out: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Log-probability of the batch's actions, and entropy."""
        if Columns.ACTION_LOGP in fwd_out:
            return fwd_out[Columns.ACTION_LOGP], fwd_out[ENTROPY]
        kind = self.module[module_id].unwrapped().get_train_action_dist_cls()
        distribution = kind.from_logits(fwd_out[Columns.ACTION_DIST_INPUTS])
        return distribution.logp(batch[Columns.ACTIONS]), distribution.entropy()

    def _record(self, name: str, value: Tensor) -> None:
        self._minibatch_metrics.setdefault(name, []).append(value.detach())

    def after_gradient_based_update(self, *, timesteps: dict[str, Any]) -> None:
        super().after_gradient_based_update(timesteps=timesteps)
        for name, values in self._minibatch_metrics.items():
            mean = float(torch.stack(values).mean())
            self.metrics.log_value((self._module_id, name), mean, window=1)

    @classmethod
    def rl_module_required_apis(cls) -> list[type]:
        return []
