"""Posterior of a Gaussian process over time x machines with a Kronecker covariance.

The covariance is K_T (x) K with K_T = exp(-|t - s| / rho). A dense solution costs O(tau^3 M^3); in
the eigenvectors of both factors the matrix is diagonal, which costs O(tau^3 + M^3).

Gradients do not pass through the eigenvectors. Like machines make eigenvalues coincide, where the
derivative of an eigenvector is infinite although that of the results is finite. So the
eigenvectors V are constants, and V' W V, a diagonal matrix with a gradient everywhere, stands for
W. It is kept as its diagonal and the rest, `off_diagonal`, which is 0 and has only a gradient.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Spectrum(NamedTuple):
    """A symmetric matrix in the basis of its own eigenvectors."""

    values: Tensor  # (N, C) eigenvalues
    vectors: Tensor  # (N, C, C) in columns, constants
    off_diagonal: Tensor | None  # (N, C, C) of V' W V; None: no gradient is needed


class Past(NamedTuple):
    """The last T decisions, the oldest first."""

    decay: Tensor  # (N, T) exp(-gap / rho) from each to the next, from the last to now
    row: Tensor  # (N, T) 1: something was observed, 0: nothing
    among: Tensor  # (N, T, T) K_T, 0 where nothing was observed
    to_now: Tensor  # (N, T) kernel between each and now
    noise: Tensor  # () variance of one observation
    values: Tensor  # (N, T) eigenvalues of `among`, constants
    vectors: Tensor  # (N, T, T) in columns, constants

    def take(self, rows: Tensor) -> Past:
        """Select rows of the batch."""
        return Past(*(one.index_select(0, rows) if one.dim() else one for one in self))


class Posterior(NamedTuple):
    """Of now, where it was a standard normal before anything was observed."""

    mean: Tensor  # (N, C)
    variance: Tensor  # (N, C)


def spectrum_of(matrix: Tensor) -> Spectrum:
    """Eigenbasis of positive semi-definite matrices (N, C, C)."""
    with torch.no_grad():
        values, vectors = torch.linalg.eigh(matrix)
    if not matrix.requires_grad:
        return Spectrum(values, vectors, None)
    turned = vectors.mT @ matrix @ vectors
    diagonal = turned.diagonal(dim1=-2, dim2=-1)
    return Spectrum(diagonal, vectors, turned - torch.diag_embed(diagonal))


def past_of(gap: Tensor, row: Tensor, memory: Tensor, noise: Tensor) -> Past:
    """From the seconds between decisions (N, T), the last to now; `memory` is rho."""
    age = gap.flip(1).cumsum(1).flip(1)
    apart = (age.unsqueeze(2) - age.unsqueeze(1)).abs()
    among = torch.exp(-apart / memory) * row.unsqueeze(2) * row.unsqueeze(1)
    with torch.no_grad():
        values, vectors = torch.linalg.eigh(among)
    to_now = row * torch.exp(-age / memory)
    return Past(torch.exp(-gap / memory), row, among, to_now, noise, values, vectors)


def posterior(
    values: Tensor, off_diagonal: Tensor | None, observed: Tensor, past: Past
) -> Posterior:
    """Condition on `observed` (N, T, C): residuals times their precision relative to the noise.

    `values` and `off_diagonal` are those of the precision W of one decision's observations.
    """
    observed = observed * past.row.unsqueeze(-1)
    with torch.no_grad():
        solved = _solve(values, observed, past)
    if values.requires_grad or observed.requires_grad or past.among.requires_grad:
        # One Newton step for (K_T (x) W + noise) x = observed: 0, with the derivative of x.
        weighed = solved * values.unsqueeze(1)
        if off_diagonal is not None:
            weighed = weighed + solved @ off_diagonal
        left = observed - past.among @ weighed - past.noise * solved
        solved = solved + _solve(values.detach(), left, past)
    mean = (past.to_now.unsqueeze(1) @ solved).squeeze(1)
    return Posterior(mean, _variance(values, past))


def squared_norm(standard: Tensor, spectrum: Spectrum, variance: Tensor, past: Past) -> Tensor:
    """(N,): x' variance(W)^-1 x for `standard` = x (N, C) in the eigenvectors' basis."""
    scaled = standard / variance
    norm = (standard * scaled).sum(-1)
    if spectrum.off_diagonal is None:
        return norm
    # Off the diagonal, a function f of a matrix changes by its divided differences
    # (f(w_i) - f(w_j)) / (w_i - w_j) times the matrix's change (Daleckii and Krein). Those of
    # variance(w) = 1 - sum_a now_a^2 w / (t_a w + noise) are sums of products: no division by
    # w_i - w_j.
    with torch.no_grad():
        now = (past.to_now.unsqueeze(1) @ past.vectors).mT  # (N, T, 1)
        seen = now * scaled.unsqueeze(1) / _denominator(spectrum.values, past)  # (N, T, C)
    return norm + past.noise.detach() * (seen @ spectrum.off_diagonal * seen).sum((1, 2))


def _denominator(values: Tensor, past: Past) -> Tensor:
    """(N, T, C): K_T (x) W + noise in the basis of its eigenvectors."""
    return past.values.unsqueeze(2) * values.unsqueeze(1) + past.noise.detach()


def _solve(values: Tensor, observed: Tensor, past: Past) -> Tensor:
    """(N, T, C): (K_T (x) W + noise)^-1 observed."""
    return past.vectors @ (past.vectors.mT @ observed / _denominator(values, past))


def _variance(values: Tensor, past: Past) -> Tensor:
    """(N, C): 1 - values * to_now' (values * K_T + noise)^-1 to_now.

    A scalar Kalman filter, since the exponential kernel is a Markov chain; no cancellation.
    """
    variance = torch.ones_like(values)
    for decay, row in zip(past.decay.unbind(1), past.row.unbind(1), strict=True):
        precise = row.unsqueeze(1) * variance * values
        variance = variance * past.noise / (precise + past.noise)
        variance = 1 - decay.unsqueeze(1) ** 2 * (1 - variance)
    return variance
