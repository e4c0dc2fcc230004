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

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from loadmaster.envs.gpu_scheduling.features import JOB_FEATURES, MACHINE_FEATURES
from loadmaster.envs.gpu_scheduling.observation import Observation
from loadmaster.envs.settings import build_settings
from loadmaster.models.das.ordering import OrderingAgent, Priorities
from loadmaster.models.das.placement import PlacementAgent, Placements
from loadmaster.models.das.settings import DasSettings


class Actions(NamedTuple):
    """Of both agents, or standard normal numbers in their shapes."""

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


TILTED = 9  # parameters of a rule that `tilt_rule` changes
OF_JOBS = ("jobs", "job_mask", "heeded", "held", "rack_held")  # tables with a row for each job


class ActionDistribution(NamedTuple):
    """Of B observations; log densities and entropies are (B, 2), one column for each agent."""

    priorities: Priorities
    placements: Placements

    def mean(self) -> Actions:
        priority = torch.where(self.priorities.mask, self.priorities.mean, 0)
        return Actions(priority, self.placements.mean())

    def sample(self, standard: Actions) -> Actions:
        """By standard normal numbers."""
        return Actions(
            self.priorities.sample(standard.priority), self.placements.sample(standard.affinity)
        )

    def log_prob(self, actions: Actions) -> Tensor:
        logs = (
            self.priorities.log_prob(actions.priority),
            self.placements.log_prob(actions.affinity),
        )
        return torch.stack(logs, 1)

    def entropy(self) -> Tensor:
        return torch.stack([self.priorities.entropy(), self.placements.entropy()], 1)


class DasNetwork(nn.Module):
    """Both agents, in the four variants of the paper; see DasSettings."""

    tilt_rule: Tensor | None  # changes of a rule's parameters, as in rule_tilt.py

    def __init__(self, settings: DasSettings) -> None:
        super().__init__()
        self.settings = settings
        self.register_buffer("tilt_rule", None)
        if settings.opening == "rule":
            self.tilt_rule = torch.zeros(TILTED)
        self.ordering = OrderingAgent(settings)
        self.placement = PlacementAgent(settings)

    def forward(self, observation: dict[str, Tensor]) -> ActionDistribution:
        return ActionDistribution(self.ordering(observation), self.placement(observation))

    @torch.no_grad()
    def mean_actions(self, observation: dict[str, Tensor]) -> Actions:
        found: ActionDistribution = self(observation)
        return found.mean()


def batch_of_one(view: Observation, rows: int) -> dict[str, Tensor]:
    """The first `rows` rows of an observation, which are its jobs; shares its memory."""
    return {
        name: torch.from_numpy(table[:rows] if name in OF_JOBS else table).unsqueeze(0)
        for name, table in view._asdict().items()
    }


def build_network(settings: Mapping[str, Any]) -> DasNetwork:
    """Build a network from the settings of a bundle; an InputError names a wrong one."""
    return DasNetwork(build_settings(DasSettings, settings))
