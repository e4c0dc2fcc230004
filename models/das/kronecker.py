"""A Gaussian process over time x machines, told past speeds: what it believes of now.

Its covariance is K_T (x) K with K_T = exp(-|t - s| / rho). Solved densely that costs
O(tau^3 M^3). Here the machines are turned into the eigenvectors of their own matrix, once,
O(M^3); along each of them the exponential kernel is a Markov chain, so that a scalar Kalman filter
goes through the tau decisions: O(tau M). Both give the same numbers.

Gradients do not pass through the eigenvectors. Like machines make eigenvalues coincide, and there
the derivative of an eigenvector is infinite although that of everything asked here is finite. A
function f of a symmetric matrix W = V diag(w) V' changes, to first order, by
    V ([f(w_i) - f(w_j)] / [w_i - w_j] * (V' dW V)_ij) V'
(Daleckii and Krein), and the filter carries these divided differences along without ever dividing
by w_i - w_j. So V is a constant here, and V' W V, a diagonal matrix with a gradient everywhere,
stands for W.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Spectrum(NamedTuple):
    """A symmetric matrix in the basis of its own eigenvectors."""

    values: Tensor  # (N, C) eigenvalues
    vectors: Tensor  # (N, C, C) in columns, constants
    tilt: Tensor | None  # (N, C, C) zeros that have the gradient of all beside the diagonal


class Past(NamedTuple):
    """When something was observed, oldest first."""

    decay: Tensor  # (N, T) exp(-gap / rho) from each decision to the next, from the last to now
    weight: Tensor  # (N, T) 1: something was observed then, 0: nothing
    noise: Tensor  # () variance of one observation


class Belief(NamedTuple):
    """Now, in the same basis, for a covariance of I before anything was observed."""

    mean: Tensor  # (N, C)
    variance: Tensor  # (N, C)
    slope: Tensor | None  # (N, C, C) divided differences of the variance, constants


def spectrum_of(matrix: Tensor) -> Spectrum:
    """Of positive semi-definite matrices (N, C, C)."""
    with torch.no_grad():
        values, vectors = torch.linalg.eigh(matrix)
    if not matrix.requires_grad:
        return Spectrum(values, vectors, None)
    turned = vectors.mT @ matrix @ vectors
    diagonal = turned.diagonal(dim1=-2, dim2=-1)
    return Spectrum(diagonal, vectors, turned - torch.diag_embed(diagonal))


def follow(values: Tensor, tilt: Tensor | None, told: Tensor, past: Past) -> Belief:
    """Filter the observations `told` (N, T, C), each already multiplied by its precision.

    `values` (N, C) are the eigenvalues of the precision of one observation, times `past.noise`.
    """
    mean = torch.zeros_like(values)
    variance = torch.ones_like(values)
    slope = None if tilt is None else torch.zeros_like(tilt)
    for t in range(told.shape[1]):
        weight = past.weight[:, t, None]
        kept = past.noise / (weight * variance * values + past.noise)  # of the variance
        if slope is not None:
            with torch.no_grad():
                joint = variance[:, :, None] * variance[:, None, :]
                slope = slope - joint * (weight / past.noise)[:, :, None]
                slope = slope * kept[:, :, None] * kept[:, None, :]
        variance = variance * kept
        surprise = told[:, t] - values * mean
        gain = variance * surprise
        if tilt is not None and slope is not None:
            # What both matrices beside their diagonals would add: nothing, but with a gradient.
            aside = _times(tilt, mean.detach())
            gain = gain - variance.detach() * aside + _times(slope * tilt, surprise.detach())
        mean = mean + weight / past.noise * gain

        decay = past.decay[:, t, None]
        mean = decay * mean
        variance = 1 - decay**2 * (1 - variance)
        if slope is not None:
            slope = slope * (decay.detach() ** 2)[:, :, None]
    return Belief(mean, variance, slope)


def squared_norm(standard: Tensor, belief: Belief, tilt: Tensor | None) -> Tensor:
    """(N,): x' variance^-1 x for `standard` = x (N, C) in the eigenvectors' basis."""
    scaled = standard / belief.variance
    norm = (standard * scaled).sum(-1)
    if tilt is None or belief.slope is None:
        return norm
    fixed = scaled.detach()
    return norm - (fixed * _times(belief.slope * tilt, fixed)).sum(-1)


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)
