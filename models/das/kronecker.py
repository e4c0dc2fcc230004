"""A Gaussian process over time x machines, told past speeds: what it believes of now.

Its covariance is K_T (x) K with K_T = exp(-|t - s| / rho). Solved densely that costs
O(tau^3 M^3); in the eigenvectors of both factors the matrix is diagonal, and it costs
O(tau^3 + M^3). Both give the same numbers.

Gradients do not pass through the eigenvectors. Like machines make eigenvalues coincide, and there
the derivative of an eigenvector is infinite although that of everything asked here is finite. So
the eigenvectors V are constants, and V' W V, a diagonal matrix with a gradient everywhere, stands
for W. Its diagonal is told apart from the rest, the tilt, which is 0 and has only a gradient.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Spectrum(NamedTuple):
    """A symmetric matrix in the basis of its own eigenvectors."""

    values: Tensor  # (N, C) eigenvalues
    vectors: Tensor  # (N, C, C) in columns, constants
    tilt: Tensor | None  # (N, C, C) what is beside the diagonal; None: no gradient is asked for


class Past(NamedTuple):
    """The T decisions at which something may have been observed, oldest first."""

    decay: Tensor  # (N, T) exp(-gap / rho) from each to the next, from the last to now
    row: Tensor  # (N, T) 1: something was observed, 0: nothing
    among: Tensor  # (N, T, T) K_T, 0 where nothing was observed
    to_now: Tensor  # (N, T) the same between each and now
    noise: Tensor  # () variance of one observation
    values: Tensor  # (N, T) eigenvalues of `among`, constants
    vectors: Tensor  # (N, T, T) in columns, constants

    def take(self, rows: Tensor) -> Past:
        """Of these alone."""
        return Past(*(one.index_select(0, rows) if one.dim() else one for one in self))


class Belief(NamedTuple):
    """Of now, where it was a standard normal before anything was observed."""

    mean: Tensor  # (N, C)
    variance: Tensor  # (N, C)


def spectrum_of(matrix: Tensor) -> Spectrum:
    """Of positive semi-definite matrices (N, C, C)."""
    with torch.no_grad():
        values, vectors = torch.linalg.eigh(matrix)
    if not matrix.requires_grad:
        return Spectrum(values, vectors, None)
    turned = vectors.mT @ matrix @ vectors
    diagonal = turned.diagonal(dim1=-2, dim2=-1)
    return Spectrum(diagonal, vectors, turned - torch.diag_embed(diagonal))


def past_of(gap: Tensor, row: Tensor, memory: Tensor, noise: Tensor) -> Past:
    """Of the seconds from each decision to the next (N, T); `memory` is rho."""
    age = gap.flip(1).cumsum(1).flip(1)
    apart = (age.unsqueeze(2) - age.unsqueeze(1)).abs()
    among = torch.exp(-apart / memory) * row.unsqueeze(2) * row.unsqueeze(1)
    with torch.no_grad():
        values, vectors = torch.linalg.eigh(among)
    to_now = row * torch.exp(-age / memory)
    return Past(torch.exp(-gap / memory), row, among, to_now, noise, values, vectors)


def believe(values: Tensor, tilt: Tensor | None, told: Tensor, past: Past) -> Belief:
    """After observations `told` (N, T, C), each times its precision, relative to the noise.

    `values` and `tilt` are of the precision W of one decision's observations, in the same basis.
    """
    told = told * past.row.unsqueeze(-1)
    with torch.no_grad():
        solved = _solve(values, told, past)
    if values.requires_grad or told.requires_grad or past.among.requires_grad:
        # (K_T (x) W + noise) x = told, once more: the step is 0, and its derivative that of x.
        weighed = solved * values.unsqueeze(1)
        if tilt is not None:
            weighed = weighed + solved @ tilt
        left = told - past.among @ weighed - past.noise * solved
        solved = solved + _solve(values.detach(), left, past)
    mean = (past.to_now.unsqueeze(1) @ solved).squeeze(1)
    return Belief(mean, _variance(values, past))


def squared_norm(standard: Tensor, spectrum: Spectrum, variance: Tensor, past: Past) -> Tensor:
    """(N,): x' variance(W)^-1 x for `standard` = x (N, C) in the eigenvectors' basis."""
    scaled = standard / variance
    norm = (standard * scaled).sum(-1)
    if spectrum.tilt is None:
        return norm
    # A function f of a matrix changes, beside the diagonal, by its divided differences
    # (f(w_i) - f(w_j)) / (w_i - w_j) times the matrix's change (Daleckii and Krein). Those of
    # variance(w) = 1 - sum_a now_a^2 w / (t_a w + noise) are sums of products, so that nothing is
    # ever divided by w_i - w_j.
    with torch.no_grad():
        now = (past.to_now.unsqueeze(1) @ past.vectors).mT  # (N, T, 1)
        seen = now * scaled.unsqueeze(1) / _denominator(spectrum.values, past)  # (N, T, C)
    return norm + past.noise.detach() * (seen @ spectrum.tilt * seen).sum((1, 2))


def _denominator(values: Tensor, past: Past) -> Tensor:
    """(N, T, C): K_T (x) W + noise in the basis of its eigenvectors."""
    return past.values.unsqueeze(2) * values.unsqueeze(1) + past.noise.detach()


def _solve(values: Tensor, told: Tensor, past: Past) -> Tensor:
    """(N, T, C): (K_T (x) W + noise)^-1 told."""
    return past.vectors @ (past.vectors.mT @ told / _denominator(values, past))


def _variance(values: Tensor, past: Past) -> Tensor:
    """(N, C): 1 - values * to_now' (values * K_T + noise)^-1 to_now.

    The exponential kernel is a Markov chain, so this is a scalar Kalman filter, which subtracts
    no two numbers that are nearly equal and needs no eigenvectors of K_T.
    """
    variance = torch.ones_like(values)
    for decay, row in zip(past.decay.unbind(1), past.row.unbind(1), strict=True):
        precise = row.unsqueeze(1) * variance * values
        variance = variance * past.noise / (precise + past.noise)
        variance = 1 - decay.unsqueeze(1) ** 2 * (1 - variance)
    return variance
