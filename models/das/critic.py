"""The critic: what a moment is worth to both agents together.

It sees everything and pools it, so that neither the order of the machines nor rows without a job
can matter.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from loadmaster.envs.gpu_scheduling.features import JOB_FEATURES, MACHINE_FEATURES
from loadmaster.models.das.settings import DasSettings


class Actions(NamedTuple):
    """What both agents did."""

    priority: Tensor  # (B, Q)
    affinity: Tensor  # (B, Q, M) as drawn


class Critic(nn.Module):
    """V(O), or with `sees_actions` Q(O, a_j, A_c)."""

    def __init__(
        self,
        settings: DasSettings,
        sees_actions: bool = False,
    ) -> None:
        super().__init__()
        width = settings.width
        self.placing = _PlacingEncoder(width) if sees_actions else None
        of_actions = 1 + width if sees_actions else 0
        self.of_job = _encoder(JOB_FEATURES + 1 + of_actions, width)
        self.of_machine = _encoder(MACHINE_FEATURES, width)
        self.worth = nn.Sequential(nn.Linear(2 * width + 1, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, observation: dict[str, Tensor], actions: Actions | None = None) -> Tensor:
        """(B,)"""
        mask = observation["job_mask"].unsqueeze(-1)
        room = (observation["held"] > 0).float().mean(-1, keepdim=True)  # (B, Q, 1)
        told = [observation["jobs"], room]
        if self.placing is not None:
            if actions is None:
                raise ValueError("this critic judges actions, and was given none")
            told += [actions.priority.unsqueeze(-1), self.placing(observation, actions.affinity)]
        jobs = torch.where(mask, self.of_job(torch.cat(told, dim=-1)), 0.0)
        waiting = mask.sum(1)  # (B, 1)
        pooled = [
            jobs.sum(1) / waiting.clamp(min=1),
            self.of_machine(observation["machines"]).mean(1),
            torch.log1p(waiting.float()),
        ]
        found: Tensor = self.worth(torch.cat(pooled, dim=-1))
        return found.squeeze(-1)


class _PlacingEncoder(nn.Module):
    """Of each job that could start: which machines it is drawn to."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.of_job = nn.Linear(JOB_FEATURES, width)
        self.of_machine = nn.Linear(MACHINE_FEATURES, width, bias=False)
        self.of_affinity = nn.Parameter(torch.randn(width) / width**0.5)
        self.pair = nn.Linear(width, width)

    def forward(self, observation: dict[str, Tensor], affinity: Tensor) -> Tensor:
        """(B, Q, D); affinities to machines without room decide nothing and are not seen."""
        fits = (observation["held"] > 0) & observation["job_mask"].unsqueeze(-1)
        owner, row = fits.any(-1).nonzero(as_tuple=True)
        room = fits[owner, row].unsqueeze(-1)  # (N, M, 1)
        jobs = self.of_job(observation["jobs"][owner, row]).unsqueeze(1)
        machines = self.of_machine(observation["machines"]).index_select(0, owner)
        drawn = affinity[owner, row].unsqueeze(-1) * self.of_affinity
        pairs = torch.relu(self.pair(torch.relu(machines + jobs + drawn)))
        mean = torch.where(room, pairs, 0.0).sum(1) / room.sum(1)
        empty = mean.new_zeros(*fits.shape[:2], mean.shape[-1])
        return empty.index_put((owner, row), mean)


def _encoder(features: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
