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

from loadmaster.envs.gpu_scheduling.observation import Observation
from loadmaster.models.das.critic import Actions
from loadmaster.models.das.ordering import OrderingAgent, Priorities
from loadmaster.models.das.placement import PlacementAgent, Placements
from loadmaster.models.das.settings import DasSettings

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
