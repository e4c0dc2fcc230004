"""Both agents in one network, and the critic of both.

A batch of B observations is a mapping of
  jobs          (B, Q, JF) float32  jobs in the order of their arrival
  job_mask      (B, Q) bool         which rows are jobs
  heeded        (B, Q) bool         jobs whose priority has an effect
  machines      (B, M, MF) float32
  held          (B, Q, M) float32   share of the gang that fits on the machine now
  rack_held     (B, Q, R) float32   share of the gang that fits in the rack
  rack          (M,) or (B, M) int  the rack of each machine
  history_y     (B, T, M) float32   relative speeds on each machine at past decisions
  history_mask  (B, T, M) bool      whether a speed was observed
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


class Actions(NamedTuple):
    """Actions of both agents."""

    priority: Tensor  # (B, Q)
    affinity: Tensor  # (B, Q, M) as drawn


class Critic(nn.Module):
    """V(O), or with `sees_actions` Q(O, a_j, A_c), of both agents together.

    Pooling makes it independent of the order of machines and of padding.
    """

    def __init__(self, settings: DasSettings, sees_actions: bool = False) -> None:
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
        fitting = (observation["held"] > 0).float().mean(-1, keepdim=True)  # (B, Q, 1)
        inputs = [observation["jobs"], fitting]
        if self.placing is not None:
            if actions is None:
                raise ValueError("this critic needs actions")
            inputs += [actions.priority.unsqueeze(-1), self.placing(observation, actions.affinity)]
        jobs = torch.where(mask, self.of_job(torch.cat(inputs, dim=-1)), 0.0)
        waiting = mask.sum(1)  # (B, 1)
        pooled = [
            jobs.sum(1) / waiting.clamp(min=1),
            self.of_machine(observation["machines"]).mean(1),
            torch.log1p(waiting.float()),
        ]
        value: Tensor = self.worth(torch.cat(pooled, dim=-1))
        return value.squeeze(-1)


class _PlacingEncoder(nn.Module):
    """Encodes the affinities of each job that could start."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.of_job = nn.Linear(JOB_FEATURES, width)
        self.of_machine = nn.Linear(MACHINE_FEATURES, width, bias=False)
        self.of_affinity = nn.Parameter(torch.randn(width) / width**0.5)
        self.pair = nn.Linear(width, width)

    def forward(self, observation: dict[str, Tensor], affinity: Tensor) -> Tensor:
        """(B, Q, D); affinities to machines where the job does not fit are masked."""
        fits = (observation["held"] > 0) & observation["job_mask"].unsqueeze(-1)
        owner, row = fits.any(-1).nonzero(as_tuple=True)
        usable = fits[owner, row].unsqueeze(-1)  # (N, M, 1)
        jobs = self.of_job(observation["jobs"][owner, row]).unsqueeze(1)
        machines = self.of_machine(observation["machines"]).index_select(0, owner)
        drawn = affinity[owner, row].unsqueeze(-1) * self.of_affinity
        pairs = torch.relu(self.pair(torch.relu(machines + jobs + drawn)))
        mean = torch.where(usable, pairs, 0.0).sum(1) / usable.sum(1)
        empty = mean.new_zeros(*fits.shape[:2], mean.shape[-1])
        return empty.index_put((owner, row), mean)


def _encoder(features: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())


OF_JOBS = ("jobs", "job_mask", "heeded", "held", "rack_held")  # tables with a row for each job


class Decision(NamedTuple):
    """Actions of both agents, and their log densities."""

    actions: Actions  # as drawn, for learning
    barred: Tensor  # (B, Q, M) affinities to act on, -inf where the job does not fit
    ordering_log_prob: Tensor  # (B,)
    placement_log_prob: Tensor  # (B,)


class ActionEvaluation(NamedTuple):
    """Log densities of given actions, and entropies: (B,) each."""

    ordering_log_prob: Tensor
    placement_log_prob: Tensor
    ordering_entropy: Tensor
    placement_entropy: Tensor


class DasNetwork(nn.Module):
    """Both agents, in the four variants of the paper; see DasSettings."""

    def __init__(self, settings: DasSettings) -> None:
        super().__init__()
        self.settings = settings
        self.ordering = OrderingAgent(settings)
        self.placement = PlacementAgent(settings)

    def forward(self, observation: dict[str, Tensor]) -> tuple[Priorities, Placements]:
        return self.ordering(observation), self.placement(observation)

    @torch.no_grad()
    def decide(
        self, observation: dict[str, Tensor], generator: torch.Generator | None = None
    ) -> Decision:
        """Sample actions by `generator`; without it, take the means."""
        priorities, placements = self(observation)
        if generator is None:
            priority, affinity = torch.where(priorities.mask, priorities.mean, 0), placements.mean()
        else:
            priority = priorities.sample(_standard(priorities.mean.shape, generator))
            affinity = placements.sample(_standard(placements.fits.shape, generator))
        return Decision(
            Actions(priority, affinity),
            placements.barred(affinity),
            priorities.log_prob(priority),
            placements.log_prob(affinity),
        )

    def evaluate(self, observation: dict[str, Tensor], actions: Actions) -> ActionEvaluation:
        """Evaluate actions with gradients."""
        priorities, placements = self(observation)
        return ActionEvaluation(
            priorities.log_prob(actions.priority),
            placements.log_prob(actions.affinity),
            priorities.entropy(),
            placements.entropy(),
        )

    def parameter_counts(self) -> dict[str, int]:
        agents = {"ordering": self.ordering, "placement": self.placement}
        return {
            name: sum(one.numel() for one in agent.parameters()) for name, agent in agents.items()
        }


def batch_of_one(view: Observation, rows: int) -> dict[str, Tensor]:
    """The first `rows` rows of an observation, which are its jobs; shares its memory."""
    return {
        name: torch.from_numpy(table[:rows] if name in OF_JOBS else table).unsqueeze(0)
        for name, table in view._asdict().items()
    }


def _standard(shape: torch.Size, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, device=generator.device)
