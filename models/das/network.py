"""Both agents in one network: what they do, and how likely that was.

An observation of B moments is a mapping of
  jobs          (B, Q, JF) float32  jobs in the order of their arrival
  job_mask      (B, Q) bool         which rows are jobs
  heeded        (B, Q) bool         whose priority can change anything
  machines      (B, M, MF) float32
  held          (B, Q, M) float32   share of the gang that the machine has room for now
  rack_held     (B, Q, R) float32   share of the gang that the rack has room for
  rack          (M,) or (B, M) int  the rack of each machine
  history_y     (B, T, M) float32   relative speed of what ran on each machine at past decisions
  history_mask  (B, T, M) bool      whether anything did
  history_t     (B, T) float32      s since that decision
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from loadmaster.envs.gpu_scheduling.features import JOB_FEATURES, MACHINE_FEATURES
from loadmaster.envs.gpu_scheduling.observation import Observation
from loadmaster.models.das.ordering import OrderingAgent, Priorities
from loadmaster.models.das.placement import PlacementAgent, Placements
from loadmaster.models.das.settings import DasSettings

# The critic: what a moment is worth to both agents together.
#
# It sees everything and pools it, so that neither the order of the machines nor rows without a job
# can matter.


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


OF_JOBS = ("jobs", "job_mask", "heeded", "held", "rack_held")  # tables with a row for each job


class Decision(NamedTuple):
    """What both agents do, and the logarithm of the density of it."""

    actions: Actions  # as drawn: what is learnt from
    barred: Tensor  # (B, Q, M) the affinities, -inf where there is no room: what is acted on
    ordering_log_prob: Tensor  # (B,)
    placement_log_prob: Tensor  # (B,)


class Judgement(NamedTuple):
    """How likely actions are now, and how open the choice was: (B,) each."""

    ordering_log_prob: Tensor
    placement_log_prob: Tensor
    ordering_entropy: Tensor
    placement_entropy: Tensor


class DasNetwork(nn.Module):
    """The four variants of the paper; see DasSettings."""

    def __init__(self, settings: DasSettings) -> None:
        super().__init__()
        self.settings = settings
        self.ordering = OrderingAgent(settings)
        self.placement = PlacementAgent(settings)

    def forward(self, observation: dict[str, Tensor]) -> tuple[Priorities, Placements]:
        return self.ordering(observation), self.placement(observation)

    @torch.no_grad()
    def decide(
        self, observation: dict[str, Tensor], luck: torch.Generator | None = None
    ) -> Decision:
        """Drawn by `luck`; without it, the means: the policy's best guess."""
        priorities, placements = self(observation)
        if luck is None:
            priority, affinity = torch.where(priorities.mask, priorities.mean, 0), placements.mean()
        else:
            priority = priorities.sample(_standard(priorities.mean.shape, luck))
            affinity = placements.sample(_standard(placements.fits.shape, luck))
        return Decision(
            Actions(priority, affinity),
            placements.barred(affinity),
            priorities.log_prob(priority),
            placements.log_prob(affinity),
        )

    def evaluate(self, observation: dict[str, Tensor], actions: Actions) -> Judgement:
        """With gradients, for learning."""
        priorities, placements = self(observation)
        return Judgement(
            priorities.log_prob(actions.priority),
            placements.log_prob(actions.affinity),
            priorities.entropy(),
            placements.entropy(),
        )

    def parameter_counts(self) -> dict[str, int]:
        """Of each agent."""
        agents = {"ordering": self.ordering, "placement": self.placement}
        return {
            name: sum(one.numel() for one in agent.parameters()) for name, agent in agents.items()
        }


def batch_of_one(view: Observation, rows: int) -> dict[str, Tensor]:
    """An observation whose first `rows` rows are jobs, without the others; it shares its memory."""
    return {
        name: torch.from_numpy(table[:rows] if name in OF_JOBS else table).unsqueeze(0)
        for name, table in view._asdict().items()
    }


def _standard(shape: torch.Size, luck: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=luck, device=luck.device)
