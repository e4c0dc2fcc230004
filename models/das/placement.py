"""The placement agent: a distribution of the affinity of every startable job to every machine."""

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
    INITIAL_LOG_STD,
    PAIR_FEATURES,
    bounded,
    heuristic_linear,
    pair_features,
)
from loadmaster.models.das.settings import DasSettings


class Placements(NamedTuple):
    """Affinities of the N jobs of a batch that fit on some machine.

    Affinities of other jobs would have no effect, so they are 0 and have no part in the density.
    """

    affinities: Affinities
    owner: Tensor  # (N,) index of the observation
    row: Tensor  # (N,) row of the job in it
    fits: Tensor  # (B, Q, M) bool

    def mean(self) -> Tensor:
        """(B, Q, M)"""
        return self._scatter(self.affinities.mean)

    def sample(self, standard: Tensor) -> Tensor:
        """(B, Q, M) by standard normal numbers (B, Q, M)."""
        return self._scatter(self.affinities.sample(standard[self.owner, self.row]))

    def log_prob(self, affinity: Tensor) -> Tensor:
        """(B,) of all affinities (B, Q, M), also to machines where the job does not fit."""
        return self._sum(self.affinities.log_prob(affinity[self.owner, self.row]))

    def entropy(self) -> Tensor:
        """(B,)"""
        return self._sum(self.affinities.entropy())

    def _scatter(self, of_job: Tensor) -> Tensor:
        empty = of_job.new_zeros(self.fits.shape, dtype=torch.float32)
        return empty.index_put((self.owner, self.row), of_job.float())

    def _sum(self, of_job: Tensor) -> Tensor:
        total = of_job.new_zeros(len(self.fits))
        return total.index_add(0, self.owner, of_job).float()


class PlacementAgent(nn.Module):
    """Network over pairs of jobs and machines, beside linear skip paths (`straight*`)."""

    def __init__(self, settings: DasSettings) -> None:
        super().__init__()
        width = settings.width
        self.settings = settings
        self.straight = heuristic_linear(PAIR_FEATURES, AFFINITY_OF_PAIR, settings)
        self.straight_to_machine = heuristic_linear(MACHINE_FEATURES, AFFINITY_OF_MACHINE, settings)
        self.of_job = nn.Linear(JOB_FEATURES, width)
        self.of_machine = nn.Linear(MACHINE_FEATURES, width, bias=False)
        self.of_pair = nn.Linear(PAIR_FEATURES, width, bias=False)
        self.pair = nn.Linear(width, width)
        self.prior = nn.Linear(width, 1)
        self.spread = nn.Linear(width, 1)  # log std, or log amplitude of the process
        for head in (self.prior, self.spread):
            nn.init.zeros_(head.weight)
        nn.init.zeros_(self.prior.bias)
        nn.init.constant_(self.spread.bias, INITIAL_LOG_STD)
        self.kind = nn.Linear(width, settings.kind_width) if settings.process else None  # phi
        self.process = RandomWalkProcess(settings) if settings.process else None

    def forward(self, observation: dict[str, Tensor]) -> Placements:
        """Distribution for an observation as in network.py."""
        held, machines = observation["held"], observation["machines"]
        fits = (held > 0) & observation["job_mask"].unsqueeze(-1)
        owner, row = fits.any(-1).nonzero(as_tuple=True)
        rack = observation["rack"].expand(len(fits), -1).index_select(0, owner).long()
        jobs_in = observation["jobs"][owner, row]
        pair_inputs = pair_features(
            jobs_in,
            machines.index_select(0, owner),
            held[owner, row],
            observation["rack_held"][owner, row],
            rack,
        )
        jobs = self.of_job(jobs_in).unsqueeze(1)
        context = self.of_machine(machines).index_select(0, owner)
        first = torch.relu(context + jobs + self.of_pair(pair_inputs))
        pairs = torch.relu(self.pair(first))  # (N, M, D)
        straight = self.straight_to_machine(machines).index_select(0, owner) + self.straight(
            pair_inputs
        )
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
