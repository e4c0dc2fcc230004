"""The random-walk Gaussian process: affinities that follow the likeness of machines.

The kernel as printed is a constant for any two graphs, because a row-stochastic walk sums to the
same number on all of them. This is its node-level form: the walk's own matrix over the machines,
with ties that depend on the job.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from loadmaster.models.das.heuristic_init import LOG_TAU, entropy_of, log_density
from loadmaster.models.das.kronecker import (
    Past,
    Spectrum,
    believe,
    past_of,
    spectrum_of,
    squared_norm,
)
from loadmaster.models.das.random_walk_kernel import (
    Cells,
    WalkKernel,
    gather_cells,
    similarity,
    topology,
    walk_kernel,
)
from loadmaster.models.das.settings import DasSettings

# The speeds that were observed at the last decisions, made ready for the process.


class History(NamedTuple):
    """Oldest decision first; T of them.

    Not every machine ran something at every decision, and an arbitrary pattern of gaps would
    break the Kronecker product. A pattern that is a product, decisions x machines, does not: the
    variance of an observation is noise / (row * share). So a machine that was observed in a
    share of the decisions counts as observed in all of them, that much less surely, with its own
    mean in the gaps. Its observations weigh as much together as they really do. Nothing at all is
    said of a machine or a decision without any, exactly; and where speeds last much longer than
    the gaps, the rest is exact too.
    """

    speed: Tensor  # (B, T, M) relative, gaps filled
    row: Tensor  # (B, T) 1: something was observed then
    share: Tensor  # (B, M) of those decisions at which this machine was observed
    gap: Tensor  # (B, T) s to the next decision, from the last to now

    def take(self, rows: Tensor) -> History:
        """Of these observations alone."""
        return History(*(table.index_select(0, rows) for table in self))


@torch.no_grad()
def read_history(speed: Tensor, observed: Tensor, age_s: Tensor, tau: int) -> History:
    """Of the `tau` youngest decisions with an observation: (B, T, M), the same, (B, T)."""
    some = observed.any(-1)
    order = torch.where(some, age_s, torch.inf).argsort(dim=1, stable=True)[:, :tau]
    order = order.flip(1)  # the oldest first, those with nothing before them
    row = some.gather(1, order)
    wide = order.unsqueeze(-1).expand(-1, -1, speed.shape[-1])
    seen = observed.gather(1, wide)
    known = torch.where(seen, speed.gather(1, wide), 0.0).double()
    times = seen.sum(1)  # (B, M)
    mean = known.sum(1) / times.clamp(min=1)
    filled = torch.where(seen, known, mean.unsqueeze(1))
    age = torch.where(row, age_s.gather(1, order), -torch.inf).double()
    # What has no observation is as old as the oldest that has one: no gap in between.
    oldest = age.amax(1, keepdim=True).clamp(min=0)
    age = torch.where(row, age, oldest).clamp(min=0)
    gap = age - torch.cat([age[:, 1:], torch.zeros_like(age[:, :1])], dim=1)
    share = times / row.sum(1, keepdim=True).clamp(min=1)
    return History(filled, row.double(), share.double(), gap)


# Distributions of the affinities of N jobs to M machines.


class Affinities(Protocol):
    """Of N jobs; jobs are independent of one another, a job's machines need not be."""

    @property
    def mean(self) -> Tensor:
        """(N, M)"""
        ...

    @property
    def std(self) -> Tensor:
        """(N, M) of each machine by itself."""
        ...

    def sample(self, standard: Tensor) -> Tensor:
        """(N, M), by way of as many standard normal numbers."""
        ...

    def log_prob(self, affinity: Tensor) -> Tensor:
        """(N,) of affinities (N, M)."""
        ...

    def entropy(self) -> Tensor:
        """(N,)"""
        ...


class IndependentAffinities(NamedTuple):
    """Every machine by itself: the variants without the process."""

    mean: Tensor  # (N, M)
    log_std: Tensor  # (N, M)

    @property
    def std(self) -> Tensor:
        return self.log_std.exp()

    def sample(self, standard: Tensor) -> Tensor:
        return self.mean + self.log_std.exp() * standard

    def log_prob(self, affinity: Tensor) -> Tensor:
        return log_density(affinity, self.mean, self.log_std).sum(-1)

    def entropy(self) -> Tensor:
        return entropy_of(self.log_std).sum(-1)


class ProcessAffinities(NamedTuple):
    """A multivariate normal of covariance amplitude^2 * root V variance V' root'.

    The density is the true one, with Sigma^-1 and half the log-determinant.
    """

    mean: Tensor  # (N, M)
    log_amplitude: Tensor  # (N,)
    kernel: WalkKernel
    spectrum: Spectrum
    variance: Tensor  # (N, C) along the eigenvectors
    past: Past
    cells: Cells | None  # None: every machine is one
    inside: Tensor | None  # (N, M) variance of a machine's difference from its cell

    @property
    def std(self) -> Tensor:
        factor = self.kernel.root @ self.spectrum.vectors  # (N, C, C)
        variance = (factor.square() @ self.variance.unsqueeze(-1)).squeeze(-1)
        if self.cells is not None and self.inside is not None:
            # A cell of s machines: 1 / s of its variance, and of each difference all but that.
            share = 1 / self.cells.spread(self.cells.size)
            variance = share * self.cells.spread(variance) + (1 - share) * self.inside
        return self.log_amplitude.exp().unsqueeze(-1) * variance.sqrt()

    def sample(self, standard: Tensor) -> Tensor:
        """No gradient is meant to pass: the factor is one of many."""
        coupled, alone = _split(self.cells, standard.to(self.mean.dtype))
        vectors = self.spectrum.vectors
        # Into the basis and out of it again, so that an empty cell keeps to itself.
        turned = self.variance.sqrt().unsqueeze(-1) * (vectors.mT @ coupled.unsqueeze(-1))
        coupled = (self.kernel.root @ (vectors @ turned)).squeeze(-1)
        if self.cells is not None and alone is not None and self.inside is not None:
            coupled = self.cells.join(coupled, self.inside.sqrt() * alone)
        return self.mean + self.log_amplitude.exp().unsqueeze(-1) * coupled

    def log_prob(self, affinity: Tensor) -> Tensor:
        apart = (affinity - self.mean) / self.log_amplitude.exp().unsqueeze(-1)
        coupled, alone = _split(self.cells, apart)
        whitened = self.kernel.inverse_root @ coupled.unsqueeze(-1)
        turned = (self.spectrum.vectors.mT @ whitened).squeeze(-1)
        norm = squared_norm(turned, self.spectrum, self.variance, self.past)
        if alone is not None and self.inside is not None:
            norm = norm + (alone.square() / self.inside).sum(-1)
        return -(norm + self.mean.shape[-1] * LOG_TAU) / 2 - self._log_root()

    def entropy(self) -> Tensor:
        return self.mean.shape[-1] * (1 + LOG_TAU) / 2 + self._log_root()

    def _log_root(self) -> Tensor:
        """(N,): half the log-determinant of the covariance."""
        found = self.kernel.log_det + self.variance.log().sum(-1) / 2
        if self.cells is not None and self.inside is not None:
            free = 1 - 1 / self.cells.spread(self.cells.size)  # s - 1 dimensions in a cell of s
            found = found + (free * self.inside.log()).sum(-1) / 2
        return found + self.mean.shape[-1] * self.log_amplitude


def _split(cells: Cells | None, of_machine: Tensor) -> tuple[Tensor, Tensor | None]:
    return (of_machine, None) if cells is None else cells.split(of_machine)


LEAST_TIE = 1e-6  # below it racks are as far apart as can be


class RandomWalkProcess(nn.Module):
    """Prior mean and kinds of machines in, the posterior after the history out."""

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
        usual: Tensor,
        log_amplitude: Tensor,
        kinds: Tensor,
        rack: Tensor,
        history: History,
        owner: Tensor,
    ) -> ProcessAffinities:
        """Of N jobs: prior mean (N, M), speeds as they usually are (N, M), (N,), phi (N, M, D),
        (N, M), and which history is whose.

        The posterior mean as the slides' eq. 13 and 14, but for its units. An affinity is no speed,
        and where observations are many the posterior would follow the speeds whatever the actor
        says. So the history speaks of speeds beyond the usual, and `gain` says what they are worth.

        In float64: it costs as much as float32 here, and a log-probability adds up the errors
        of hundreds of machines. The noise is told relative to the amplitude, so that a policy
        that becomes surer of itself does not thereby forget its history.
        """
        memory, noise = self.log_memory.double().exp(), self.log_noise.double().exp()
        past = past_of(history.gap, history.row, memory, noise).take(owner)
        history = history.take(owner)
        prior, usual, kinds = prior.double(), usual.double(), kinds.double()
        length = self.log_length.double().exp()
        cells = self._cells(kinds / length, rack, history)
        share = history.share
        if cells is not None:
            kinds = cells.mean(kinds.mT).mT
            share = cells.mean(share)
        tied = topology(rack, cells, self.settings.same_rack, self.settings.cross_rack)
        ties = tied * similarity(kinds, length)  # A_kl = E_kl exp(-|phi_k - phi_l|^2 / 2l^2)
        kernel = walk_kernel(ties, self.settings.walk, None if cells is None else cells.size)

        surprise = history.speed - usual.unsqueeze(1)  # (N, T, M)
        if cells is None:
            coupled, alone = surprise, None
        else:
            coupled, alone = cells.split(_fill_cells(surprise, history.share, cells))

        # Precisions in coordinates where the prior covariance is I: root' diag(share) root.
        spectrum = spectrum_of(kernel.root.mT @ (share.unsqueeze(-1) * kernel.root))
        told = (coupled * share.unsqueeze(1)) @ kernel.root @ spectrum.vectors
        belief = believe(spectrum.values, spectrum.tilt, told, past)
        turned = spectrum.vectors @ belief.mean.unsqueeze(-1)
        learnt = (kernel.root @ turned).squeeze(-1)
        inside = None
        if cells is not None and alone is not None:
            root = cells.spread(kernel.inside).sqrt()  # (N, M)
            weight = cells.spread(share)
            lone = believe(root.square() * weight, None, alone * (root * weight).unsqueeze(1), past)
            learnt = cells.join(learnt, root * lone.mean)
            inside = root.square() * lone.variance
        return ProcessAffinities(
            mean=prior + self.log_gain.double().exp() * learnt,
            log_amplitude=log_amplitude.double(),
            kernel=kernel,
            spectrum=spectrum,
            variance=belief.variance,
            past=past,
            cells=cells,
            inside=inside,
        )

    def _cells(self, scaled: Tensor, rack: Tensor, history: History) -> Cells | None:
        """Cells of machines whose tie is strong and whose histories weigh alike."""
        if scaled.shape[1] <= self.settings.exact_up_to:
            return None
        told_apart = torch.cat([scaled, history.share.unsqueeze(-1)], dim=-1)
        # -2 log A is a squared distance, of which the racks have this part.
        across = max(self.settings.cross_rack, LEAST_TIE) / max(self.settings.same_rack, LEAST_TIE)
        return gather_cells(told_apart, rack, -2 * math.log(across), self.settings.cells)


def _fill_cells(surprise: Tensor, share: Tensor, cells: Cells) -> Tensor:
    """A machine without observations is told the mean of those in its cell: (N, T, M)."""
    weighted = cells.mean(surprise * share.unsqueeze(1))  # (N, T, C)
    mean = weighted / cells.mean(share).clamp(min=1e-12).unsqueeze(1)
    return torch.where(share.unsqueeze(1) > 0, surprise, cells.spread(mean))
