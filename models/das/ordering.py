"""The ordering agent: a priority for every waiting job."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from loadmaster.envs.gpu_scheduling.features import JOB_FEATURES, MACHINE_FEATURES
from loadmaster.models.das.heuristic_init import (
    FIRST_LOG_STD,
    PRIORITY,
    bounded,
    entropy_of,
    log_density,
    straight_path,
)
from loadmaster.models.das.settings import DasSettings

TOGETHER = 128  # queues that go through the layers at once, where there are more
SLOWEST_WAVE = 10_000.0  # places over which the slowest wave of the encoding turns by 1


class Priorities(NamedTuple):
    """A normal distribution for each job; those whose priority changes nothing have no part."""

    mean: Tensor  # (B, Q)
    log_std: Tensor  # (B, Q)
    mask: Tensor  # (B, Q) bool

    def sample(self, standard: Tensor) -> Tensor:
        """(B, Q), by way of as many standard normal numbers."""
        return self._kept(self.mean + self.log_std.exp() * standard)

    def log_prob(self, priority: Tensor) -> Tensor:
        """(B,)"""
        return self._kept(log_density(priority, self.mean, self.log_std)).sum(1)

    def entropy(self) -> Tensor:
        """(B,)"""
        return self._kept(entropy_of(self.log_std)).sum(1)

    def _kept(self, of_job: Tensor) -> Tensor:
        return torch.where(self.mask, of_job, 0.0)


class Gate(nn.Module):
    """Squeeze and communicate: each job takes in as much of the cluster's state as it likes."""

    def __init__(self, machine_features: int, width: int) -> None:
        super().__init__()
        self.tell = nn.Sequential(
            nn.Linear(machine_features, width), nn.ReLU(), nn.Linear(width, width)
        )  # f
        self.open = nn.Linear(2 * width, width)  # W3, b3

    def forward(self, jobs: Tensor, machines: Tensor) -> Tensor:
        """(B, Q, D) of jobs (B, Q, D) and machines (B, M, F)."""
        squeezed = machines.mean(1)  # s = AvgPool_k(S_c): the same in any order of the machines
        told: Tensor = self.tell(squeezed).unsqueeze(1).expand_as(jobs)
        gate: Tensor = torch.sigmoid(self.open(torch.cat([jobs, told], dim=-1)))
        return gate * told + (1 - gate) * jobs


class AttentionLayer(nn.Module):
    """Jobs look at one another, then each thinks for itself; both are added to what was."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_look = nn.LayerNorm(width)
        self.look = nn.Linear(width, 3 * width)
        self.join = nn.Linear(width, width)
        self.before_think = nn.LayerNorm(width)
        self.think = nn.Sequential(
            nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)
        )

    def forward(self, jobs: Tensor, mask: Tensor) -> Tensor:
        """(B, Q, D); nobody looks at a row that `mask` (B, Q) leaves out."""
        batch, queue, width = jobs.shape
        looked = self.look(self.before_look(jobs)).view(batch, queue, 3, self.heads, -1)
        query, key, value = looked.permute(2, 0, 3, 1, 4)  # (B, heads, Q, D / heads) each
        seen = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask[:, None, None, :]
        )
        jobs = jobs + self.join(seen.transpose(1, 2).reshape(batch, queue, width))
        thought: Tensor = self.think(self.before_think(jobs))
        return jobs + thought


class OrderingAgent(nn.Module):
    """Jobs in the order of their arrival in, a normal priority for each out."""

    def __init__(self, settings: DasSettings) -> None:
        super().__init__()
        width = settings.width
        self.straight = straight_path(JOB_FEATURES, PRIORITY, settings)
        self.embed = nn.Linear(JOB_FEATURES, width)
        self.gate = Gate(MACHINE_FEATURES, width) if settings.communicate else None
        self.layers = nn.ModuleList(
            AttentionLayer(width, settings.heads) for _ in range(settings.layers)
        )
        self.finish = nn.LayerNorm(width)
        self.rank = nn.Linear(width, 2)  # mean, log std
        nn.init.zeros_(self.rank.weight)  # no opinion to begin with
        with torch.no_grad():
            self.rank.bias.copy_(torch.tensor([0.0, FIRST_LOG_STD]))

    def forward(self, observation: dict[str, Tensor]) -> Priorities:
        """See network.py for the observation.

        Short queues apart from long ones: most are far shorter than the longest, and attention
        would spend its time on rows without a job.
        """
        jobs, mask, machines = (observation[name] for name in ("jobs", "job_mask", "machines"))
        heeded = observation["heeded"] & mask
        if len(jobs) <= TOGETHER:
            return Priorities(*self._ranked(jobs, mask, machines), heeded)
        queue = mask.shape[1]
        length = (mask * torch.arange(1, queue + 1, device=mask.device)).amax(1)
        order = length.argsort(stable=True)
        parts = []
        for rows in torch.split(order, TOGETHER):
            longest = max(1, int(length[rows[-1]]))
            seen = jobs[rows, :longest], mask[rows, :longest], machines[rows]
            ranked = torch.stack(self._ranked(*seen))
            parts.append(functional.pad(ranked, (0, queue - longest)))
        mean, log_std = torch.cat(parts, dim=1)[:, order.argsort()]
        return Priorities(mean, log_std, heeded)

    def _ranked(self, jobs: Tensor, mask: Tensor, machines: Tensor) -> tuple[Tensor, Tensor]:
        """Means and log stds (B, Q)."""
        known = self.embed(jobs)
        if self.gate is not None:
            known = self.gate(known, machines)
        place = (mask.long().cumsum(1) - 1).clamp(min=0)
        known = known + encode_place(place, known.shape[-1]).to(known.dtype)
        # An empty queue has nobody to look at, which attention cannot bear: let all look at all.
        visible = mask | ~mask.any(1, keepdim=True)
        for layer in self.layers:
            known = layer(known, visible)
        mean, log_std = self.rank(self.finish(known)).unbind(-1)
        return mean + self.straight(jobs).squeeze(-1), bounded(log_std)


def encode_place(place: Tensor, width: int) -> Tensor:
    """Sines and cosines (B, Q, width) of places in the queue (B, Q)."""
    waves = torch.arange(width // 2, device=place.device) * (2 / width)
    angle = place.unsqueeze(-1) * SLOWEST_WAVE**-waves
    return torch.cat([angle.sin(), angle.cos()], dim=-1)
