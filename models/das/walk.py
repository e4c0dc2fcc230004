"""The random-walk kernel of machines (or of cells of like machines)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from loadmaster.models.das.cells import Cells


class WalkKernel(NamedTuple):
    """K, as K = root root' among the cells, and by itself inside each cell."""

    root: Tensor  # (N, C, C)
    inverse_root: Tensor  # (N, C, C)
    log_det: Tensor  # (N,) of root
    inside: Tensor  # (N, C) eigenvalue of K for every difference inside a cell


def topology(rack: Tensor, cells: Cells | None, same_rack: float, cross_rack: float) -> Tensor:
    """E (N, C, C) of two different machines, of these cells or with these racks (N, M).

    A cell that reaches over racks is tied as its machines are on average.
    """
    if cells is None:
        shared = (rack.unsqueeze(2) == rack.unsqueeze(1)).to(torch.float64)
    else:
        racks, place = torch.unique(rack, return_inverse=True)
        jobs, count = cells.size.shape
        both = cells.cell * len(racks) + place
        machines = cells.size.new_zeros(jobs, count * len(racks))
        machines = machines.scatter_add(1, both, machines.new_ones(both.shape))
        part = machines.view(jobs, count, len(racks)) / cells.size.clamp(min=1).unsqueeze(-1)
        shared = part @ part.mT
    return cross_rack + (same_rack - cross_rack) * shared


def similarity(kinds: Tensor, length: Tensor) -> Tensor:
    """exp(-|phi_k - phi_l|^2 / 2 l^2): (N, C, C) of phi (N, C, D)."""
    scaled = kinds / length
    # Not torch.cdist, whose root has no derivative where two machines are the same.
    norm = scaled.square().sum(-1)
    apart = norm.unsqueeze(2) + norm.unsqueeze(1) - 2 * scaled @ scaled.mT
    return torch.exp(-apart.clamp(min=0) / 2)


def walk_kernel(ties: Tensor, walk: float, size: Tensor | None = None) -> WalkKernel:
    """K = (I - walk * S)^-1 with a diagonal of 1, S = D^-1/2 A D^-1/2.

    `ties` (N, C, C) is A beside the diagonal, with the tie of two machines of one cell on its own
    diagonal; A has a 1 for every machine with itself. No tie is negative, so S has its
    eigenvalues in [-1, 1] (Perron and Frobenius), and K exists and is positive definite for every
    walk in (0, 1). `size` (N, C) are the machines in each cell; None: one in each.
    """
    own = 1 - ties.diagonal(dim1=-2, dim2=-1)  # what a machine is to itself beyond its like
    if size is None:
        degree = own + ties.sum(-1)
        step = ties + torch.diag_embed(own)
    else:
        degree = own + (ties @ size.unsqueeze(-1)).squeeze(-1)
        root = size.sqrt()
        # Nothing of an empty cell may be left: its row and column of S are 0.
        step = root.unsqueeze(2) * ties * root.unsqueeze(1) + torch.diag_embed(own * (size > 0))
    scale = degree.rsqrt()
    step = scale.unsqueeze(2) * step * scale.unsqueeze(1)
    eye = torch.eye(step.shape[-1], dtype=step.dtype, device=step.device)
    lower = torch.linalg.cholesky(eye - walk * step)  # (I - walk S) = lower lower'
    inverse = torch.linalg.solve_triangular(lower, eye.expand_as(lower), upper=False)
    diagonal = inverse.square().sum(-2)  # of (I - walk S)^-1
    inside = 1 / (1 - walk * own / degree)
    if size is not None:
        share = 1 / size.clamp(min=1)
        diagonal = torch.where(size > 0, diagonal * share + inside * (1 - share), 1.0)
    unit = diagonal.rsqrt()
    log_det = unit.log().sum(-1) - lower.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return WalkKernel(
        root=unit.unsqueeze(-1) * inverse.mT,
        inverse_root=lower.mT / unit.unsqueeze(-2),
        log_det=log_det,
        inside=inside * unit.square(),
    )
