"""Small inputs of the random-walk process."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from loadmaster.models.das.gaussian_process import (
    History,
    ProcessAffinities,
    RandomWalkProcess,
    read_history,
)
from loadmaster.models.das.settings import DasSettings

JOBS = 3


class Case(NamedTuple):
    """What the process is given for a few jobs."""

    prior: Tensor  # (N, M)
    usual: Tensor  # (N, M)
    log_amplitude: Tensor  # (N,)
    kinds: Tensor  # (N, M, D)
    rack: Tensor  # (N, M)
    history: History
    owner: Tensor  # (N,): here one history each


def draw(machines: int, seed: int = 0, like: bool = False, tau: int = 5) -> Case:
    """`like`: machines of three kinds only, so that eigenvalues coincide."""
    luck = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=luck, dtype=torch.float64)

    kinds = normal(JOBS, machines, 4)
    observed = torch.rand(JOBS, tau, machines, generator=luck) < 0.6
    rack = (torch.arange(machines) * 2 // machines).expand(JOBS, -1)
    if like:
        kinds = kinds[:, :3].repeat(1, machines // 3 + 1, 1)[:, :machines]
        observed = torch.ones_like(observed)
        observed[:, :, ::4] = False
        rack = torch.zeros_like(rack)
    age = torch.rand(JOBS, tau, generator=luck, dtype=torch.float64) * 900
    history = read_history(normal(JOBS, tau, machines).abs(), observed, age, tau)
    prior, amplitude = normal(JOBS, machines), normal(JOBS) / 3
    usual = normal(JOBS, machines).abs()
    return Case(prior, usual, amplitude, kinds, rack, history, torch.arange(JOBS))


def process_of(**settings: Any) -> RandomWalkProcess:
    """Surer of what it observes than a new network is, and with a gain that is not 1."""
    values = {"noise": 0.01, "gain": 1.7, **settings}
    return RandomWalkProcess(DasSettings.model_validate(values)).double()


def leaves(case: Case, process: RandomWalkProcess) -> list[Tensor]:
    """Everything there is a gradient for."""
    inputs = [case.prior, case.usual, case.log_amplitude, case.kinds]
    return [*(one.requires_grad_() for one in inputs), *process.parameters()]


def affinities(machines: int, seed: int = 9) -> Tensor:
    luck = torch.Generator().manual_seed(seed)
    return torch.randn(JOBS, machines, generator=luck, dtype=torch.float64)


@torch.no_grad()
def covariance(found: ProcessAffinities) -> Tensor:
    """(N, M, M), from the linear map that `sample` is."""
    jobs, machines = found.mean.shape
    eye = torch.eye(machines, dtype=torch.float64)
    columns = [found.sample(one.expand(jobs, -1)) - found.mean for one in eye]
    factor = torch.stack(columns, dim=2)
    return factor @ factor.mT
