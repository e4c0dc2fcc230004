"""RLlib's learner: gradient steps of REINFORCE and PPO on recordings, with any number of peers."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from ray.rllib.core import COMPONENT_OPTIMIZER, COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.learner import DEFAULT_OPTIMIZER
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from torch import Tensor

from loadmaster.models.keyed_random import splitmix64
from loadmaster.models.policy import DECISION, ENTROPY, LOSS_TERMS
from loadmaster.models.ragged import Minibatches, PaddedMinibatches
from loadmaster.platform.rl.gradient_graph import GradientGraph
from loadmaster.platform.rl.peers import Peers, ProcessPeers
from loadmaster.platform.rl.rollout import Recording, columns_of

STEP_METRICS = ("loss", "entropy", "kl")  # of a gradient step; a critic has only a loss
TERM = "loss/"  # prefix of a module's own terms of the loss, as metrics
STATE = [COMPONENT_RL_MODULE, COMPONENT_OPTIMIZER]  # all that learning changes

More = Sequence[Mapping[str, NDArray[np.float32]]]  # columns by recording


class Selection(NamedTuple):
    """A minibatch: of `rows` own decisions, where None stands for no batch."""

    batch: dict[str, Any] | None
    rows: int
    fixed: object | None  # see Minibatches


class EngineLearner(TorchLearner):
    """What every learner shares: fused Adam, and states that it does not share with others."""

    def add_adam(
        self, module_id: str, weights: Sequence[Tensor], learning_rate: float, name: str = ""
    ) -> None:
        """Adam in one operation for all tables: a tenth of the time of a loop over them."""
        self.register_optimizer(
            module_id=module_id,
            optimizer_name=name or DEFAULT_OPTIMIZER,
            optimizer=torch.optim.Adam(weights, fused=True),
            params=list(weights),
            lr_or_lr_schedule=learning_rate,
        )

    def _set_optimizer_state(self, state: dict[str, Any]) -> None:
        """Load a copy: RLlib's tensors share their memory with the arrays given.

        Ray gives all learners of a machine the same memory, and Adam's means are updated in place.
        """
        super()._set_optimizer_state(copy.deepcopy(state))

    @classmethod
    def rl_module_required_apis(cls) -> list[type]:
        return []


class InputDrivenLearner(EngineLearner):
    """Learns from recordings, with advantages that were computed before: REINFORCE and PPO.

    A module's training pass returns either the log-probability and entropy of the batch's actions,
    or parameters of its distribution, as usual in RLlib. A module that decides for several agents
    returns both per agent, (B, agents), or, where their number differs, all of them end to end with
    the row of each as DECISION. LOSS_TERMS are added to the loss; its attribute `loss_terms` has
    their names in order.

    Several learners have the same weights and learn from their own recordings. Each step sums
    gradients, metrics and numbers of decisions over all of them, so all take the same step, the
    one a single learner would take with all recordings, and stop after the same pass.
    """

    peers: Peers | ProcessPeers | None = None

    def build(self) -> None:
        super().build()
        self._graphs: dict[str, GradientGraph] = {}  # by module
        if self.config.num_learners > 1:
            self.peers = ProcessPeers()

    def configure_optimizers_for_module(self, module_id: str, config: Any = None) -> None:
        self.add_adam(module_id, self.get_parameters(self.module[module_id]), config.lr)

    def _make_modules_ddp_if_necessary(self) -> None:
        """Leave the modules as they are: `_step` exchanges gradients."""

    def learn(
        self,
        recordings: Sequence[Recording],
        keys: Sequence[int],
        more: More,
        *,
        module_id: str = DEFAULT_MODULE_ID,
        epochs: int,
        minibatches: int,
        learning_rate: float,
        entropy_weight: float = 0.0,
        seed: int,
    ) -> dict[str, float]:
        """Take `epochs` passes over the recorded decisions; returns metrics of the steps.

        `keys` identify the recordings. They and `seed` decide which minibatch a decision is in, so
        minibatches are the same however many learners share the recordings. `exchange_seconds` of
        the time went to sums over all learners and to waiting for them.
        """
        began, self._exchange_s = time.perf_counter(), 0.0
        ((_, optimizer),) = self.get_optimizers_for_module(module_id)
        self._set_optimizer_lr(optimizer, learning_rate)
        batches = None
        if recordings:
            columns = columns_of(recordings, more, pinned=self._on_gpu)
            batches = self._minibatches(module_id, columns)
        strata = Strata(recordings, keys, minibatches)
        learning = self.config.learning
        kl_limit = learning.stop_at_kl if learning.method == "ppo" else math.inf
        steps: list[Tensor] = []
        entropy = torch.tensor(entropy_weight, device=self.device)
        for epoch, number in product(range(epochs), range(minibatches)):
            if number == 0:
                drawn = strata.draw(seed + epoch)
            rows = (drawn == number).nonzero().squeeze(1)
            batch = batches.select(rows) if batches is not None and len(rows) else None
            # A GPU is still busy with the last step: its KL is read after the next selection.
            if number == 0 and steps and float(steps[-1][STEP_METRICS.index("kl")]) > kl_limit:
                break
            fixed = None if batches is None else batches.fixed
            selection = Selection(batch, len(rows), fixed)
            steps.append(self._step(module_id, optimizer, selection, entropy))
        means = torch.stack(steps).mean(0).tolist()
        terms = [f"{TERM}{name}" for name in self._terms(module_id)]
        return {
            **dict(zip((*STEP_METRICS, *terms, "gradient_norm"), means, strict=True)),
            "exchange_seconds": self._exchange_s,
            "gradient_seconds": time.perf_counter() - began - self._exchange_s,
        }

    @property
    def _on_gpu(self) -> bool:
        return torch.device(self.device).type == "cuda"

    def call_with(self, method: str, references: Sequence[Any], **arguments: Any) -> Any:
        """Call a method with recordings from Ray's object store."""
        return getattr(self, method)(ray.get(list(references)), **arguments)

    def _minibatches(self, module_id: str, columns: dict[str, Any]) -> Minibatches:
        """Minibatches in the module's own form, if it has one for this device."""
        own = getattr(self.module[module_id], "minibatches", None)
        made: Minibatches | None = own(columns, self.device) if own is not None else None
        return PaddedMinibatches(columns, self.device) if made is None else made

    def _step(
        self,
        module_id: str,
        optimizer: torch.optim.Optimizer,
        selection: Selection,
        entropy_weight: Tensor,
    ) -> Tensor:
        """Take one step on the mean loss of all learners' rows; metrics and gradient norm."""
        parameters = [weight for group in optimizer.param_groups for weight in group["params"]]
        rows, count = selection.rows, len(STEP_METRICS) + len(self._terms(module_id))
        if rows:
            whole = self._gradient(module_id, parameters, selection, entropy_weight)
        else:
            weights = sum(weight.numel() for weight in parameters)
            whole = torch.zeros(weights + count + 1, device=self.device)
        # A mean over own rows becomes a sum, so that the sums of all learners give one mean.
        whole = whole * rows
        if self.peers is not None:
            before = time.perf_counter()
            self.peers.add(whole)
            self._exchange_s += time.perf_counter() - before
        if not (rows if self.peers is None else float(whole[-1])):
            return whole.new_zeros(count + 1)  # Adam would move by its momentum
        whole = whole / whole[-1]
        gradient, metrics = whole[: -1 - count], whole[-1 - count : -1]
        norm = gradient.norm()
        gradient = gradient * (self.config.learning.gradient_clip / (norm + 1e-6)).clamp(max=1)
        sizes = [weight.numel() for weight in parameters]
        for weight, own in zip(parameters, gradient.split(sizes), strict=True):
            weight.grad = own.view_as(weight)
        optimizer.step()
        return torch.cat([metrics, norm[None]])

    def _gradient(
        self,
        module_id: str,
        parameters: Sequence[Tensor],
        selection: Selection,
        entropy_weight: Tensor,
    ) -> Tensor:
        """Gradient of the mean loss over own rows, metrics and 1, end to end."""
        batch = selection.batch
        assert batch is not None

        def compute(weight: Tensor) -> Tensor:
            output = self.module[module_id].forward_train(batch)
            loss, metrics = self._loss(module_id, batch, output, weight)
            found = torch.autograd.grad(loss, parameters, allow_unused=True)
            flat = [
                parameter.new_zeros(parameter.numel()) if own is None else own.flatten()
                for parameter, own in zip(parameters, found, strict=True)
            ]
            return torch.cat([*flat, metrics, metrics.new_ones(1)])

        if selection.fixed is None or not self._on_gpu:
            return compute(entropy_weight)
        graph = self._graphs.setdefault(module_id, GradientGraph())
        return graph.run(selection.fixed, compute, entropy_weight)

    def _loss(
        self,
        module_id: str,
        batch: Mapping[str, Any],
        output: Mapping[str, Any],
        entropy: Tensor | float,
    ) -> tuple[Tensor, Tensor]:
        """Mean loss of the batch, its STEP_METRICS and the module's own terms.

        `entropy` is the weight of the bonus.
        """
        mask: Tensor | None = batch.get(Columns.LOSS_MASK)
        log_probability, entropies = self._log_probability(module_id, batch, output)
        # Each agent has its own ratio; the advantage is shared.
        advantage, decision = batch[Columns.ADVANTAGES], output.get(DECISION)
        decisions = len(advantage)
        if decision is not None:
            advantage = advantage[decision]
        elif log_probability.dim() == 2:
            advantage = advantage.unsqueeze(1)

        def mean(values: Tensor) -> Tensor:
            """Over the rows that count; of all agents together, if their number differs."""
            if decision is not None:
                return values.sum() / decisions
            if mask is None:
                return values.mean(0)
            own = mask if values.dim() == 1 else mask.unsqueeze(1)
            return (values * own).sum(0) / mask.sum()

        log_ratio = log_probability - batch[Columns.ACTION_LOGP]
        ratio = log_ratio.exp()
        if self.config.learning.method == "ppo":
            clip = self.config.learning.clip
            bounded = ratio.clamp(1 - clip, 1 + clip)
            # PPO (Schulman et al. 2017), eq. 7, for each agent (Yu et al. 2022, MAPPO).
            gain = mean(torch.min(ratio * advantage, bounded * advantage)).sum()
        else:
            # REINFORCE: grad log pi(a|s) * advantage.
            gain = mean(log_probability * advantage).sum()
        mean_entropy = mean(entropies).sum()
        divergence = ratio - 1 - log_ratio  # Schulman's estimator, never below 0
        # Of the agent that moved furthest; of the mean agent, if their number differs.
        kl = mean(divergence).max() if decision is None else divergence.mean()
        terms: Mapping[str, Tensor] = output.get(LOSS_TERMS) or {}
        own = [terms[name] for name in self._terms(module_id)]
        loss: Tensor = sum(own, -gain - entropy * mean_entropy)
        return loss, torch.stack([loss, mean_entropy, kl, *own]).detach()

    def _terms(self, module_id: str) -> tuple[str, ...]:
        """Names of the module's own terms of the loss."""
        return tuple(getattr(self.module[module_id].unwrapped(), "loss_terms", ()))

    def _log_probability(
        self, module_id: str, batch: Mapping[str, Any], output: Mapping[str, Any]
    ) -> tuple[Tensor, Tensor]:
        """Log-probability of the batch's actions, and entropy."""
        if Columns.ACTION_LOGP in output:
            return output[Columns.ACTION_LOGP], output[ENTROPY]
        kind = self.module[module_id].unwrapped().get_train_action_dist_cls()
        distribution = kind.from_logits(output[Columns.ACTION_DIST_INPUTS])
        return distribution.logp(batch[Columns.ACTIONS]), distribution.entropy()

    def compute_loss_for_module(
        self, *, module_id: str, config: Any, batch: Any, fwd_out: dict[str, Tensor]
    ) -> Tensor:
        """The loss without entropy bonus, for RLlib's own `update`; `learn` does not call it."""
        return self._loss(module_id, batch, fwd_out, 0.0)[0]


class Strata:
    """Stratified minibatches: a recording's decisions are drawn in runs, one for each minibatch.

    Of as many successive decisions as there are minibatches, each is in another one. Successive
    observations have about the same size, so a minibatch is the same share of the work in every
    learner: with 14 of them and 64 rollouts of Decima the largest share of a step is 13% above the
    mean, 16% with independent draws. A draw depends on the recording alone, not on which others a
    learner has.
    """

    def __init__(self, recordings: Sequence[Recording], keys: Sequence[int], count: int) -> None:
        """`keys` identify the recordings, `count` is the number of minibatches."""
        sizes = [len(recording.kept) for recording in recordings]
        self._count = count
        self._key = torch.repeat_interleave(
            torch.tensor(keys, dtype=torch.int64), torch.tensor(sizes, dtype=torch.int64)
        )
        self._place = torch.cat([torch.arange(size) for size in (*sizes, 0)])

    def draw(self, seed: int) -> Tensor:
        """(rows,) number of the minibatch of each decision; another pass has another seed."""
        rotation = splitmix64(splitmix64(self._key, seed), self._place // self._count)
        return (self._place + rotation % self._count) % self._count


def keys_of_rows(recordings: Sequence[Recording], keys: Sequence[int]) -> Tensor:
    """(rows,) a key for random numbers of each kept decision."""
    parts = [
        splitmix64(torch.as_tensor(recording.kept), key)
        for recording, key in zip(recordings, keys, strict=True)
    ]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64)
