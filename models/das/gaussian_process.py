"""The random-walk Gaussian process: affinities that are correlated between like machines.

The kernel as printed in the paper is a constant for any two graphs, because a row-stochastic walk
sums to the same number on all of them. This is its node-level form: the walk's own matrix over the
machines, with ties that depend on the job.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from loadmaster.models.das.heuristic_init import LOG_TAU, log_density, normal_entropy
from loadmaster.models.das.kronecker import (
    Past,
    Spectrum,
    past_of,
    posterior,
    spectrum_of,
    squared_norm,
)
from loadmaster.models.das.random_walk_kernel import (
    MachineClusters,
    RandomWalkKernel,
    cluster_machines,
    random_walk_kernel,
    similarity,
    topology,
)
from loadmaster.models.das.settings import DasSettings

MIN_TIE = 1e-6  # smaller ties between racks count as this


class History(NamedTuple):
    """Speeds observed at the last T decisions, the oldest first.

    An arbitrary pattern of gaps would break the Kronecker product; a pattern that is a product of
    decisions and machines does not. So a machine observed in a share of the decisions counts as
    observed in all of them, with variance noise / (row * share) and its own mean in the gaps. Its
    observations have their true total weight. That is exact for machines and decisions without any
    observation, and for all where speeds last much longer than the gaps.
    """

    speed: Tensor  # (B, T, M) relative, gaps filled
    row: Tensor  # (B, T) 1: something was observed then
    share: Tensor  # (B, M) of those decisions at which this machine was observed
    gap: Tensor  # (B, T) s to the next decision, from the last to now

    def take(self, rows: Tensor) -> History:
        """Select observations of the batch."""
        return History(*(table.index_select(0, rows) for table in self))


@torch.no_grad()
def read_history(speed: Tensor, observed: Tensor, age_s: Tensor, tau: int) -> History:
    """History of the `tau` youngest decisions with an observation.

    `speed` and `observed` are (B, T, M), `age_s` is (B, T).
    """
    some = observed.any(-1)
    order = torch.where(some, age_s, torch.inf).argsort(dim=1, stable=True)[:, :tau]
    order = order.flip(1)  # the oldest first, after those without an observation
    row = some.gather(1, order)
    wide = order.unsqueeze(-1).expand(-1, -1, speed.shape[-1])
    seen = observed.gather(1, wide)
    known = torch.where(seen, speed.gather(1, wide), 0.0).double()
    times = seen.sum(1)  # (B, M)
    mean = known.sum(1) / times.clamp(min=1)
    filled = torch.where(seen, known, mean.unsqueeze(1))
    age = torch.where(row, age_s.gather(1, order), -torch.inf).double()
    # Decisions without an observation count as old as the oldest with one: no gap between.
    oldest = age.amax(1, keepdim=True).clamp(min=0)
    age = torch.where(row, age, oldest).clamp(min=0)
    gap = age - torch.cat([age[:, 1:], torch.zeros_like(age[:, :1])], dim=1)
    share = times / row.sum(1, keepdim=True).clamp(min=1)
    return History(filled, row.double(), share.double(), gap)


class IndependentAffinities(NamedTuple):
    """Affinities of N jobs to M independent machines: the variants without the process."""

    mean: Tensor  # (N, M)
    log_std: Tensor  # (N, M)

    @property
    def std(self) -> Tensor:
        """(N, M)"""
        return self.log_std.exp()

    def sample(self, standard: Tensor) -> Tensor:
        return self.mean + self.log_std.exp() * standard

    def log_prob(self, affinity: Tensor) -> Tensor:
        return log_density(affinity, self.mean, self.log_std).sum(-1)

    def entropy(self) -> Tensor:
        return normal_entropy(self.log_std).sum(-1)


class ProcessAffinities(NamedTuple):
    """Affinities of N jobs: multivariate normals.

    The covariance is amplitude^2 * root V variance V' root'.
    """

    mean: Tensor  # (N, M)
    log_amplitude: Tensor  # (N,)
    kernel: RandomWalkKernel
    spectrum: Spectrum
    variance: Tensor  # (N, C) along the eigenvectors
    past: Past
    cells: MachineClusters | None  # None: one machine in each
    inside: Tensor | None  # (N, M) variance of a machine's difference from its cell's mean

    @property
    def std(self) -> Tensor:
        """(N, M) of the marginals."""
        factor = self.kernel.root @ self.spectrum.vectors  # (N, C, C)
        variance = (factor.square() @ self.variance.unsqueeze(-1)).squeeze(-1)
        if self.cells is not None and self.inside is not None:
            # In a cell of s machines: 1 / s of its variance, 1 - 1 / s of that of a difference.
            share = 1 / self.cells.spread(self.cells.size)
            variance = share * self.cells.spread(variance) + (1 - share) * self.inside
        return self.log_amplitude.exp().unsqueeze(-1) * variance.sqrt()

    def sample(self, standard: Tensor) -> Tensor:
        """(N, M) by standard normal numbers (N, M); not meant for gradients."""
        between, within = _split(self.cells, standard.to(self.mean.dtype))
        vectors = self.spectrum.vectors
        # Into the eigenbasis and back, so that empty cells do not mix with others.
        turned = self.variance.sqrt().unsqueeze(-1) * (vectors.mT @ between.unsqueeze(-1))
        between = (self.kernel.root @ (vectors @ turned)).squeeze(-1)
        if self.cells is not None and within is not None and self.inside is not None:
            between = self.cells.join(between, self.inside.sqrt() * within)
        return self.mean + self.log_amplitude.exp().unsqueeze(-1) * between

    def log_prob(self, affinity: Tensor) -> Tensor:
        apart = (affinity - self.mean) / self.log_amplitude.exp().unsqueeze(-1)
        between, within = _split(self.cells, apart)
        whitened = self.kernel.inverse_root @ between.unsqueeze(-1)
        turned = (self.spectrum.vectors.mT @ whitened).squeeze(-1)
        norm = squared_norm(turned, self.spectrum, self.variance, self.past)
        if within is not None and self.inside is not None:
            norm = norm + (within.square() / self.inside).sum(-1)
        return -(norm + self.mean.shape[-1] * LOG_TAU) / 2 - self._half_log_det()

    def entropy(self) -> Tensor:
        return self.mean.shape[-1] * (1 + LOG_TAU) / 2 + self._half_log_det()

    def _half_log_det(self) -> Tensor:
        """(N,) of the covariance."""
        found = self.kernel.log_det + self.variance.log().sum(-1) / 2
        if self.cells is not None and self.inside is not None:
            free = 1 - 1 / self.cells.spread(self.cells.size)  # s - 1 dimensions in a cell of s
            found = found + (free * self.inside.log()).sum(-1) / 2
        return found + self.mean.shape[-1] * self.log_amplitude


def _split(cells: MachineClusters | None, of_machine: Tensor) -> tuple[Tensor, Tensor | None]:
    return (of_machine, None) if cells is None else cells.split(of_machine)


Affinities = IndependentAffinities | ProcessAffinities


class RandomWalkProcess(nn.Module):
    """Posterior of the affinities after the observed speeds."""

    def __init__(self, settings: DasSettings) -> None:
        super().__init__()
        self.settings = settings
        self.log_length = nn.Parameter(torch.tensor(math.log(settings.length)))
        self.log_memory = nn.Parameter(torch.tensor(math.log(settings.memory_s)))
        self.log_noise = nn.Parameter(torch.tensor(math.log(settings.noise)))
        self.log_gain = nn.Parameter(torch.tensor(math.log(settings.gain)))

    def forward(
        self,
        prior: Tensor,
        usual_speed: Tensor,
        log_amplitude: Tensor,
        kinds: Tensor,
        rack: Tensor,
        history: History,
        owner: Tensor,
    ) -> ProcessAffinities:
        """Posterior of N jobs, as in the slides' eq. 13 and 14 up to units.

        Prior mean (N, M), usual speeds (N, M), log amplitude (N,), phi (N, M, D), racks (N, M), and
        the index of each job's history (N,). The process observes speeds beyond the usual ones, and
        the learned `gain` converts them to affinities: an affinity is no speed, and many
        observations would override the actor.

        In float64, since a log-probability adds up the errors of hundreds of machines. The noise is
        relative to the amplitude, so that less exploration does not discount the history.
        """
        memory, noise = self.log_memory.double().exp(), self.log_noise.double().exp()
        past = past_of(history.gap, history.row, memory, noise).take(owner)
        history = history.take(owner)
        prior, usual_speed, kinds = prior.double(), usual_speed.double(), kinds.double()
        length = self.log_length.double().exp()
        cells = self._cells(kinds / length, rack, history)
        share = history.share
        if cells is not None:
            kinds = cells.mean(kinds.mT).mT
            share = cells.mean(share)
        tied = topology(rack, cells, self.settings.same_rack, self.settings.cross_rack)
        ties = tied * similarity(kinds, length)  # A_kl = E_kl exp(-|phi_k - phi_l|^2 / 2l^2)
        kernel = random_walk_kernel(ties, self.settings.walk, None if cells is None else cells.size)

        residual = history.speed - usual_speed.unsqueeze(1)  # (N, T, M)
        if cells is None:
            between, within = residual, None
        else:
            between, within = cells.split(_fill_cells(residual, history.share, cells))

        # Precisions in coordinates where the prior covariance is I: root' diag(share) root.
        spectrum = spectrum_of(kernel.root.mT @ (share.unsqueeze(-1) * kernel.root))
        observed = (between * share.unsqueeze(1)) @ kernel.root @ spectrum.vectors
        after = posterior(spectrum.values, spectrum.off_diagonal, observed, past)
        turned = spectrum.vectors @ after.mean.unsqueeze(-1)
        update = (kernel.root @ turned).squeeze(-1)
        inside = None
        if cells is not None and within is not None:
            root = cells.spread(kernel.inside).sqrt()  # (N, M)
            weight = cells.spread(share)
            lone = posterior(
                root.square() * weight, None, within * (root * weight).unsqueeze(1), past
            )
            update = cells.join(update, root * lone.mean)
            inside = root.square() * lone.variance
        return ProcessAffinities(
            mean=prior + self.log_gain.double().exp() * update,
            log_amplitude=log_amplitude.double(),
            kernel=kernel,
            spectrum=spectrum,
            variance=after.variance,
            past=past,
            cells=cells,
            inside=inside,
        )

    def _cells(self, scaled: Tensor, rack: Tensor, history: History) -> MachineClusters | None:
        """MachineClusters of strongly tied machines with similar shares of observations."""
        if scaled.shape[1] <= self.settings.exact_up_to:
            return None
        features = torch.cat([scaled, history.share.unsqueeze(-1)], dim=-1)
        # -2 log A is a squared distance; this is the part of the racks.
        across = max(self.settings.cross_rack, MIN_TIE) / max(self.settings.same_rack, MIN_TIE)
        return cluster_machines(features, rack, -2 * math.log(across), self.settings.cells)


def _fill_cells(residual: Tensor, share: Tensor, cells: MachineClusters) -> Tensor:
    """(N, T, M) with the mean of its cell for each machine without observations."""
    weighted = cells.mean(residual * share.unsqueeze(1))  # (N, T, C)
    mean = weighted / cells.mean(share).clamp(min=1e-12).unsqueeze(1)
    return torch.where(share.unsqueeze(1) > 0, residual, cells.spread(mean))
