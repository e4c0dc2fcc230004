"""Like machines in cells: on a large cluster the process walks over cells, not machines.

The walk sees of a machine its cell's mean and nothing else, so all machines of a cell are alike to
it. Whatever is a function of such a matrix splits into one number a cell, coupled to the other
cells, and the differences of a cell's machines from their mean, which no other machine has a part
in. A cluster of M machines in C cells costs O(C^3 + M C) then, and nothing more is approximated:
where there are at most C kinds of machines the result is the exact one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Cells(NamedTuple):
    """Which machine is in which cell; a cell may be empty."""

    cell: Tensor  # (N, M) int64
    size: Tensor  # (N, C)

    def mean(self, of_machine: Tensor) -> Tensor:
        """(N, ..., C) of (N, ..., M); 0 for an empty cell."""
        shape = of_machine.shape[:-1]
        total = of_machine.new_zeros(*shape, self.size.shape[-1])
        total = total.scatter_add(-1, _widen(self.cell, shape), of_machine)
        return total / _widen(self.size.clamp(min=1), shape)

    def spread(self, of_cell: Tensor) -> Tensor:
        """(N, ..., M) of (N, ..., C): every machine is given its cell's number."""
        return of_cell.gather(-1, _widen(self.cell, of_cell.shape[:-1]))

    def split(self, of_machine: Tensor) -> tuple[Tensor, Tensor]:
        """(N, ..., M) as sqrt(size) * mean of each cell (N, ..., C), and the differences.

        The two have the length of the whole between them.
        """
        mean = self.mean(of_machine)
        return mean * _widen(self.size.sqrt(), mean.shape[:-1]), of_machine - self.spread(mean)

    def join(self, of_cell: Tensor, differences: Tensor) -> Tensor:
        """The machines again: (N, M) of what `split` gave."""
        return self.spread(of_cell / self.size.clamp(min=1).sqrt()) + differences


@torch.no_grad()
def gather_cells(kinds: Tensor, rack: Tensor, rack_distance: float, cells: int) -> Cells:
    """Machines that differ least, by |kinds_k - kinds_l|^2 plus `rack_distance` across racks.

    The centres are machines, each the farthest from all that came before; the first is the
    farthest from the mean. `kinds` is (N, M, D), `rack` (N, M).
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
    return Cells(found, size.scatter_add(1, found, kinds.new_ones(rack.shape)))


def _widen(table: Tensor, shape: Sequence[int]) -> Tensor:
    """(N, X) as (*shape, X), where `shape` begins with N."""
    between = (1,) * (len(shape) - 1)
    return table.view(len(table), *between, table.shape[-1]).expand(*shape, -1)
