"""Distributions of the affinities of N jobs to M machines."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from loadmaster.models.das.cells import Cells
from loadmaster.models.das.kronecker import Past, Spectrum, squared_norm
from loadmaster.models.das.normal import LOG_TAU, entropy_of, log_density
from loadmaster.models.das.walk import WalkKernel


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
