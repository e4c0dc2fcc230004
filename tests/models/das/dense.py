"""The process written out densely, as the textbook has it: what the fast forms must equal."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from loadmaster.models.das.gaussian_process import RandomWalkProcess
from tests.models.das.cases import Case


def random_walk_kernel(adjacency: Tensor, walk: float) -> Tensor:
    """(M, M): (I - walk D^-1/2 A D^-1/2)^-1, then a diagonal of 1."""
    degree = adjacency.sum(1)
    step = adjacency / (degree[:, None] * degree[None, :]).sqrt()
    kernel = torch.linalg.inv(torch.eye(len(step), dtype=step.dtype) - walk * step)
    scale = kernel.diagonal().sqrt()
    return kernel / (scale[:, None] * scale[None, :])


def adjacency(kinds: Tensor, rack: Tensor, process: RandomWalkProcess) -> Tensor:
    """(M, M): A_kl = E_kl exp(-|phi_k - phi_l|^2 / 2l^2)."""
    settings = process.settings
    shared = (rack[:, None] == rack[None, :]).double()
    tie = settings.cross_rack + (settings.same_rack - settings.cross_rack) * shared
    tie.fill_diagonal_(1.0)
    apart = (kinds[:, None] - kinds[None, :]).square().sum(-1)
    return tie * torch.exp(-apart / (2 * process.log_length.exp() ** 2))


def posterior(
    case: Case, kernel: Tensor, process: RandomWalkProcess, job: int
) -> MultivariateNormal:
    """Of one job, from the (tau M) x (tau M) matrix of what was observed.

    The actor's prior, and beyond it what speeds other than the usual are worth.
    """
    row, share, gap = case.history.row[job], case.history.share[job], case.history.gap[job]
    age = gap.flip(0).cumsum(0).flip(0)  # (T,)
    memory = process.log_memory.exp()
    in_time = torch.exp(-(age[:, None] - age[None, :]).abs() / memory)
    to_now = torch.exp(-age / memory)
    precision = (row[:, None] * share[None, :]).flatten()
    seen = precision > 0
    kernel = kernel.contiguous()
    told = torch.kron(in_time, kernel)[seen][:, seen]
    told = told + torch.diag(process.log_noise.exp() / precision[seen])
    cross = torch.kron(to_now[None, :], kernel)[:, seen]  # (M, observations)
    surprise = (case.history.speed[job] - case.usual[job]).flatten()[seen]
    weights = torch.linalg.solve(told, cross.T).T
    mean = case.prior[job] + process.log_gain.exp() * (weights @ surprise)
    covariance = (kernel - weights @ cross.T) * torch.exp(2 * case.log_amplitude[job])
    return MultivariateNormal(mean, (covariance + covariance.T) / 2)
