"""In what order messages travel: level by level, leaves first, every edge once.

All stages of one height, in all graphs of a batch, hear and speak at the same time. Edges are
sorted beforehand, so that a level costs a few operations on what belongs to it and none on the
rest.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Sweep(NamedTuple):
    """L levels; rows of a level stand together, and are numbered within it."""

    rows: list[int]  # (L,) how many each level has
    speakers: tuple[Tensor, ...]  # (L,) by child's level: the children, by their parents' level
    sent: list[list[int]]  # (L, L) how many edges lead from one level to another
    listeners: tuple[Tensor, ...]  # (L,) by parent's level: the parents, by their children's level


def plan_sweep(height: Tensor, parent: Tensor, child: Tensor) -> Sweep:
    """From the rows' heights (never falling) and the edges between them."""
    counts = torch.bincount(height)  # (L,)
    levels = len(counts)
    within = torch.arange(len(height), device=height.device) - (counts.cumsum(0) - counts)[height]
    above, below = height[parent], height[child]
    by_speaker = torch.argsort(below * levels + above, stable=True)
    by_listener = torch.argsort(above * levels + below, stable=True)
    sent = torch.bincount(below * levels + above, minlength=levels * levels).view(levels, levels)
    table: list[list[int]] = sent.tolist()
    return Sweep(
        rows=counts.tolist(),
        speakers=within[child[by_speaker]].split([sum(row) for row in table]),
        sent=table,
        listeners=within[parent[by_listener]].split([sum(c) for c in zip(*table, strict=True)]),
    )
