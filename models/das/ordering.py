"""The ordering agent: a normal distribution of every job's priority."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from loadmaster.envs.gpu_scheduling.features import JOB_FEATURES, MACHINE_FEATURES
from loadmaster.models.das.heuristic_init import (
    INITIAL_LOG_STD,
    PRIORITY,
    bounded,
    heuristic_linear,
    log_density,
    normal_entropy,
)
from loadmaster.models.das.settings import DasSettings

BATCH = 128  # queues per forward pass, in order of length
MAX_WAVELENGTH = 10_000.0  # positions per radian of the slowest sine


class Priorities(NamedTuple):
    """Independent normal distributions; jobs outside the mask contribute nothing."""

    mean: Tensor  # (B, Q)
    log_std: Tensor  # (B, Q)
    mask: Tensor  # (B, Q) bool

    def sample(self, standard: Tensor) -> Tensor:
        """(B, Q) by standard normal numbers (B, Q)."""
        return self._masked(self.mean + self.log_std.exp() * standard)

    def log_prob(self, priority: Tensor) -> Tensor:
        """(B,)"""
        return self._masked(log_density(priority, self.mean, self.log_std)).sum(1)

    def entropy(self) -> Tensor:
        """(B,)"""
        return self._masked(normal_entropy(self.log_std)).sum(1)

    def _masked(self, of_job: Tensor) -> Tensor:
        return torch.where(self.mask, of_job, 0.0)


class Gate(nn.Module):
    """Squeeze and communicate: a learned gate mixes the pooled machines into each job.

    d f(s) + (1 - d) S_j with s the mean over machines and d = sigmoid(W [S_j, f(s)] + b).
    """

    def __init__(self, machine_features: int, width: int) -> None:
        super().__init__()
        self.tell = nn.Sequential(
            nn.Linear(machine_features, width), nn.ReLU(), nn.Linear(width, width)
        )  # f
        self.open = nn.Linear(2 * width, width)  # W3, b3

    def forward(self, jobs: Tensor, machines: Tensor) -> Tensor:
        """(B, Q, D) of jobs (B, Q, D) and machines (B, M, F)."""
        message: Tensor = self.tell(machines.mean(1)).unsqueeze(1).expand_as(jobs)
        gate: Tensor = torch.sigmoid(self.open(torch.cat([jobs, message], dim=-1)))
        return gate * message + (1 - gate) * jobs


class AttentionLayer(nn.Module):
    """Transformer encoder layer, normalised before attention and feed-forward network."""

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
        """(B, Q, D); rows outside `mask` (B, Q) are not attended to."""
        batch, queue, width = jobs.shape
        qkv = self.look(self.before_look(jobs)).view(batch, queue, 3, self.heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # (B, heads, Q, D / heads) each
        attended = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask[:, None, None, :]
        )
        jobs = jobs + self.join(attended.transpose(1, 2).reshape(batch, queue, width))
        update: Tensor = self.think(self.before_think(jobs))
        return jobs + update


class OrderingAgent(nn.Module):
    """Transformer over the jobs in order of arrival, beside a linear skip path (`straight`)."""

    def __init__(self, settings: DasSettings) -> None:
        super().__init__()
        width = settings.width
        self.straight = heuristic_linear(JOB_FEATURES, PRIORITY, settings)
        self.embed = nn.Linear(JOB_FEATURES, width)
        self.gate = Gate(MACHINE_FEATURES, width) if settings.communicate else None
        self.layers = nn.ModuleList(
            AttentionLayer(width, settings.heads) for _ in range(settings.layers)
        )
        self.finish = nn.LayerNorm(width)
        self.rank = nn.Linear(width, 2)  # mean, log std
        nn.init.zeros_(self.rank.weight)
        with torch.no_grad():
            self.rank.bias.copy_(torch.tensor([0.0, INITIAL_LOG_STD]))

    def forward(self, observation: dict[str, Tensor]) -> Priorities:
        """Distribution for an observation as in network.py.

        Large batches are split by queue length, so that short queues are not padded to the longest.
        """
        jobs, mask, machines = (observation[name] for name in ("jobs", "job_mask", "machines"))
        heeded = observation["heeded"] & mask
        if len(jobs) <= BATCH:
            return Priorities(*self._forward(jobs, mask, machines), heeded)
        queue = mask.shape[1]
        length = (mask * torch.arange(1, queue + 1, device=mask.device)).amax(1)
        order = length.argsort(stable=True)
        parts = []
        for rows in torch.split(order, BATCH):
            longest = max(1, int(length[rows[-1]]))
            part = self._forward(jobs[rows, :longest], mask[rows, :longest], machines[rows])
            parts.append(functional.pad(torch.stack(part), (0, queue - longest)))
        mean, log_std = torch.cat(parts, dim=1)[:, order.argsort()]
        return Priorities(mean, log_std, heeded)

    def _forward(self, jobs: Tensor, mask: Tensor, machines: Tensor) -> tuple[Tensor, Tensor]:
        """Means and log stds (B, Q)."""
        x = self.embed(jobs)
        if self.gate is not None:
            x = self.gate(x, machines)
        position = (mask.long().cumsum(1) - 1).clamp(min=0)
        x = x + encode_position(position, x.shape[-1]).to(x.dtype)
        # In an empty queue all rows are visible: attention over no row would be nan.
        visible = mask | ~mask.any(1, keepdim=True)
        for layer in self.layers:
            x = layer(x, visible)
        mean, log_std = self.rank(self.finish(x)).unbind(-1)
        return mean + self.straight(jobs).squeeze(-1), bounded(log_std)


def encode_position(position: Tensor, width: int) -> Tensor:
    """Sines and cosines (B, Q, width) of positions in the queue (B, Q)."""
    exponent = torch.arange(width // 2, device=position.device) * (2 / width)
    angle = position.unsqueeze(-1) * MAX_WAVELENGTH**-exponent
    return torch.cat([angle.sin(), angle.cos()], dim=-1)
