"""The placement agent: an affinity of every job that could start now to every machine."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from loadmaster.envs.gpu_scheduling.features import JOB_FEATURES, MACHINE_FEATURES, SPEED
from loadmaster.models.das.gaussian_process import (
    Affinities,
    IndependentAffinities,
    RandomWalkProcess,
    read_history,
)
from loadmaster.models.das.heuristic_init import (
    AFFINITY_OF_MACHINE,
    AFFINITY_OF_PAIR,
    FIRST_LOG_STD,
    PAIR_FEATURES,
    bounded,
    pair_features,
    straight_path,
)
from loadmaster.models.das.settings import DasSettings


class Placements(NamedTuple):
    """Affinities of the N jobs of a batch that fit somewhere.

    What fits nowhere now fits nowhere until the next decision, so an affinity of it would change
    nothing: it has none, and no part in the probability. That depends on the observation alone.
    """

    affinities: Affinities
    owner: Tensor  # (N,) which observation
    row: Tensor  # (N,) which job of it
    fits: Tensor  # (B, Q, M) bool

    def mean(self) -> Tensor:
        """(B, Q, M), 0 for all other jobs."""
        return self._spread(self.affinities.mean)

    def sample(self, standard: Tensor) -> Tensor:
        """(B, Q, M), by way of as many standard normal numbers."""
        return self._spread(self.affinities.sample(standard[self.owner, self.row]))

    def log_prob(self, affinity: Tensor) -> Tensor:
        """(B,) of affinities (B, Q, M) as they were drawn: machines without room included.

        Those are barred after the draw, so this is the density of the draw itself.
        """
        return self._sum(self.affinities.log_prob(affinity[self.owner, self.row]))

    def entropy(self) -> Tensor:
        """(B,)"""
        return self._sum(self.affinities.entropy())

    def barred(self, affinity: Tensor) -> Tensor:
        """(B, Q, M): -inf where a job has no room."""
        return torch.where(self.fits, affinity, -torch.inf)

    def _spread(self, of_job: Tensor) -> Tensor:
        empty = of_job.new_zeros(self.fits.shape, dtype=torch.float32)
        return empty.index_put((self.owner, self.row), of_job.float())

    def _sum(self, of_job: Tensor) -> Tensor:
        total = of_job.new_zeros(len(self.fits))
        return total.index_add(0, self.owner, of_job).float()


class PlacementAgent(nn.Module):
    """Jobs and machines in, a distribution of affinities out."""

    def __init__(self, settings: DasSettings) -> None:
        super().__init__()
        width = settings.width
        self.settings = settings
        self.straight = straight_path(PAIR_FEATURES, AFFINITY_OF_PAIR, settings)
        self.straight_to_machine = straight_path(MACHINE_FEATURES, AFFINITY_OF_MACHINE, settings)
        self.of_job = nn.Linear(JOB_FEATURES, width)
        self.of_machine = nn.Linear(MACHINE_FEATURES, width, bias=False)
        self.of_pair = nn.Linear(PAIR_FEATURES, width, bias=False)
        self.pair = nn.Linear(width, width)
        self.prior = nn.Linear(width, 1)
        self.spread = nn.Linear(width, 1)  # log std, or log amplitude of the process
        for head in (self.prior, self.spread):
            nn.init.zeros_(head.weight)  # no opinion to begin with
        nn.init.zeros_(self.prior.bias)
        nn.init.constant_(self.spread.bias, FIRST_LOG_STD)
        self.kind = nn.Linear(width, settings.kind_width) if settings.process else None  # phi
        self.process = RandomWalkProcess(settings) if settings.process else None

    def forward(self, observation: dict[str, Tensor]) -> Placements:
        """See network.py for the observation."""
        held, machines = observation["held"], observation["machines"]
        fits = (held > 0) & observation["job_mask"].unsqueeze(-1)
        owner, row = fits.any(-1).nonzero(as_tuple=True)
        rack = observation["rack"].expand(len(fits), -1).index_select(0, owner).long()
        asking = observation["jobs"][owner, row]
        room = pair_features(
            asking,
            machines.index_select(0, owner),
            held[owner, row],
            observation["rack_held"][owner, row],
            rack,
        )
        jobs = self.of_job(asking).unsqueeze(1)
        around = self.of_machine(machines).index_select(0, owner)
        first = torch.relu(around + jobs + self.of_pair(room))
        pairs = torch.relu(self.pair(first))  # (N, M, D)
        straight = self.straight_to_machine(machines).index_select(0, owner) + self.straight(room)
        prior = (self.prior(pairs) + straight).squeeze(-1)
        if self.process is None or self.kind is None:
            log_std = bounded(self.spread(pairs).squeeze(-1))
            return Placements(IndependentAffinities(prior, log_std), owner, row, fits)
        amplitude = bounded(self.spread(pairs.mean(1)).squeeze(-1))
        history = read_history(
            observation["history_y"],
            observation["history_mask"],
            observation["history_t"],
            self.settings.tau,
        )
        usual = machines[..., SPEED].index_select(0, owner)
        affinities = self.process(prior, usual, amplitude, self.kind(pairs), rack, history, owner)
        return Placements(affinities, owner, row, fits)
