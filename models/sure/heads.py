"""The distribution of SURE's actions: whether to act, then the change of each task.

With one action for the job, its change counts in equal shares for the tasks.
"""

import math
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from loadmaster.models.keyed_random import standard_normal, uniform
from loadmaster.models.sure.graph import DecisionBatch
from loadmaster.models.sure.sampler import (
    ACTION_STREAM,
    GATE_STREAM,
    JOB_ACTION_STREAM,
    task_keys,
)

LOG_TAU = math.log(2 * math.pi)


class ActionDistribution(NamedTuple):
    """Whether to act, and changes of T tasks; with one action for the job, J = B, else J = T."""

    gate_logit: Tensor  # (B,)
    mean: Tensor  # (J,)
    log_std: Tensor  # ()
    by_job: bool  # one action for the job

    def sample(self, batch: DecisionBatch, key: Tensor) -> tuple[Tensor, Tensor]:
        """Gates (B,) and changes (T,) by keys (B,)."""
        gate = uniform(key, 0, GATE_STREAM) < self.gate_logit.double().sigmoid()
        of_action = key if self.by_job else task_keys(key, batch)
        stream = JOB_ACTION_STREAM if self.by_job else ACTION_STREAM
        change = self.mean + self.log_std.exp() * standard_normal(of_action, (), stream)
        return gate, self._by_task(change, batch)

    def most_likely(self, batch: DecisionBatch) -> tuple[Tensor, Tensor]:
        """The likelier gates (B,) and the mean changes (T,)."""
        return self.gate_logit > 0, self._by_task(self.mean, batch)

    def log_prob(self, batch: DecisionBatch, gate: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
        """Of gates (B,), and of changes (T,), 0 where the gate is shut."""
        standard = (change - self._by_task(self.mean, batch)) / self.log_std.exp()
        log_density = -standard.square() / 2 - self.log_std - LOG_TAU / 2
        of_gate = logsigmoid(torch.where(gate, self.gate_logit, -self.gate_logit))
        return of_gate, self._where_open(batch, gate, log_density)

    def entropy(self, batch: DecisionBatch, gate: Tensor) -> tuple[Tensor, Tensor]:
        """Of the gates (B,), and of the changes (T,), 0 where the gate is shut."""
        odds = self.gate_logit
        of_gate = -odds.sigmoid() * logsigmoid(odds) - (-odds).sigmoid() * logsigmoid(-odds)
        return of_gate, self._where_open(batch, gate, self.log_std + (1 + LOG_TAU) / 2)

    def _by_task(self, numbers: Tensor, batch: DecisionBatch) -> Tensor:
        return numbers[batch.decision] if self.by_job else numbers

    def _where_open(self, batch: DecisionBatch, gate: Tensor, numbers: Tensor) -> Tensor:
        """(T,) a task's share of `numbers`: with one action for the job, it counts once."""
        share = torch.ones_like(batch.prior)
        if self.by_job:
            share = 1 / batch.sizes[batch.decision]
        return torch.where(gate[batch.decision], share * numbers, 0.0)


def head(*sizes: int) -> nn.Sequential:
    """Linear layers with ReLU between; the last begins with zeros."""
    layers: list[nn.Module] = []
    for given, made in pairwise(sizes):
        layers += [nn.Linear(given, made), nn.ReLU()]
    last = layers[-2]
    assert isinstance(last, nn.Linear)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(*layers[:-1])


def bounded(found: Tensor, bound: float) -> Tensor:
    """(rows,) between -bound and bound, linear around 0; of a head's output (rows, 1)."""
    return bound * (found.squeeze(1) / bound).tanh()


def job_embedding(tasks: Tensor, batch: DecisionBatch) -> Tensor:
    """(B, 2 D) mean and maximum of the embeddings of a decision's tasks (T, D)."""
    largest = tasks.new_full((len(batch.sizes), tasks.shape[1]), -torch.inf)
    owner = batch.decision.unsqueeze(1).expand_as(tasks)
    largest = largest.scatter_reduce(0, owner, tasks, "amax")
    return torch.cat([batch.sum_by_decision(tasks) / batch.sizes.unsqueeze(1), largest], dim=1)
