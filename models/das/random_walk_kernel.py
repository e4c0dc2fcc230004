"""The random-walk kernel over machines, or over cells of like machines on large clusters.

The kernel depends on a machine only through the mean of its cell. A function of such a matrix
splits into one number per cell, coupled to other cells, and the differences of a cell's machines
from their mean, which are independent. With C cells of M machines it costs O(C^3 + M C); the result
is exact if there are at most C kinds of machines.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class MachineClusters(NamedTuple):
    """Assignment of machines to cells, which may be empty."""

    cell: Tensor  # (N, M) int64
    size: Tensor  # (N, C)

    def mean(self, of_machine: Tensor) -> Tensor:
        """(N, ..., C) of (N, ..., M); 0 for an empty cell."""
        shape = of_machine.shape[:-1]
        total = of_machine.new_zeros(*shape, self.size.shape[-1])
        total = total.scatter_add(-1, _widen(self.cell, shape), of_machine)
        return total / _widen(self.size.clamp(min=1), shape)

    def spread(self, of_cell: Tensor) -> Tensor:
        """(N, ..., M) of (N, ..., C): each machine gets its cell's value."""
        return of_cell.gather(-1, _widen(self.cell, of_cell.shape[:-1]))

    def split(self, of_machine: Tensor) -> tuple[Tensor, Tensor]:
        """(N, ..., M) as sqrt(size) * mean of each cell (N, ..., C), and the differences.

        The sum of squares is preserved.
        """
        mean = self.mean(of_machine)
        return mean * _widen(self.size.sqrt(), mean.shape[:-1]), of_machine - self.spread(mean)

    def join(self, of_cell: Tensor, differences: Tensor) -> Tensor:
        """Inverse of `split`: (N, M)."""
        return self.spread(of_cell / self.size.clamp(min=1).sqrt()) + differences


@torch.no_grad()
def cluster_machines(
    kinds: Tensor, rack: Tensor, rack_distance: float, cells: int
) -> MachineClusters:
    """Farthest-point clustering by |kinds_k - kinds_l|^2 plus `rack_distance` across racks.

    Each centre is the machine farthest from those before it, the first the one farthest from the
    mean. `kinds` is (N, M, D), `rack` (N, M).
    """
    rows = torch.arange(len(kinds), device=kinds.device)
    flat = kinds.float().mT.contiguous()  # (N, D, M): sums over D run along the machines
    flat_rack = rack.int()
    centre = (flat - flat.mean(2, keepdim=True)).square_().sum(1).argmax(1)
    nearest = flat.new_full(rack.shape, torch.inf)
    cell = torch.zeros_like(flat_rack)
    for number in range(cells):
        distance = (flat - flat[rows, :, centre].unsqueeze(2)).square_().sum(1)
        elsewhere = flat_rack != flat_rack[rows, centre].unsqueeze(1)
        distance.add_(elsewhere, alpha=rack_distance)
        cell.masked_fill_(distance < nearest, number)
        centre = torch.minimum(nearest, distance, out=nearest).argmax(1)
    found = cell.long()
    size = kinds.new_zeros(len(kinds), cells)
    return MachineClusters(found, size.scatter_add(1, found, kinds.new_ones(rack.shape)))


def _widen(table: Tensor, shape: Sequence[int]) -> Tensor:
    """(N, X) as (*shape, X), where `shape` begins with N."""
    between = (1,) * (len(shape) - 1)
    return table.view(len(table), *between, table.shape[-1]).expand(*shape, -1)


class RandomWalkKernel(NamedTuple):
    """K = root root' between cells, and its eigenvalues within each cell."""

    root: Tensor  # (N, C, C)
    inverse_root: Tensor  # (N, C, C)
    log_det: Tensor  # (N,) of root
    inside: Tensor  # (N, C) eigenvalue of K for the differences within a cell


def topology(
    rack: Tensor, cells: MachineClusters | None, same_rack: float, cross_rack: float
) -> Tensor:
    """E (N, C, C): ties between different machines with these racks (N, M), or between cells.

    The tie of a cell that spans racks is the average over its machines.
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
    # Not torch.cdist, whose root has no derivative where two machines are equal.
    norm = scaled.square().sum(-1)
    apart = norm.unsqueeze(2) + norm.unsqueeze(1) - 2 * scaled @ scaled.mT
    return torch.exp(-apart.clamp(min=0) / 2)


def random_walk_kernel(ties: Tensor, walk: float, size: Tensor | None = None) -> RandomWalkKernel:
    """K = (I - walk * S)^-1 with a diagonal of 1, S = D^-1/2 A D^-1/2.

    `ties` (N, C, C) holds A between cells, and on its diagonal the tie of two machines of one cell;
    A has a 1 for every machine with itself. Ties are not negative, so the eigenvalues of S lie in
    [-1, 1] (Perron and Frobenius), and K is positive definite for every walk in (0, 1). `size`
    (N, C) is the number of machines in each cell; None: one in each.
    """
    own = 1 - ties.diagonal(dim1=-2, dim2=-1)  # a machine's tie to itself beyond that to its like
    if size is None:
        degree = own + ties.sum(-1)
        step = ties + torch.diag_embed(own)
    else:
        degree = own + (ties @ size.unsqueeze(-1)).squeeze(-1)
        root = size.sqrt()
        # The row and column of an empty cell in S are 0.
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
    return RandomWalkKernel(
        root=unit.unsqueeze(-1) * inverse.mT,
        inverse_root=lower.mT / unit.unsqueeze(-2),
        log_det=log_det,
        inside=inside * unit.square(),
    )
