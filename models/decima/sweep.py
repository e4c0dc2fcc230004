"""In what order messages travel: level by level, leaves first, every edge once.

All stages of one height, in all graphs of a batch, hear and speak at the same time. Edges are
sorted beforehand, so that a level costs a few operations on what belongs to it and none on the
rest.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
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
    counts = torch.bincount(height, minlength=1)  # (L,)
    levels = len(counts)
    within = torch.arange(len(height), device=height.device) - (counts.cumsum(0) - counts)[height]
    above, below = height[parent], height[child]
    ways = below * levels + above
    sent = torch.bincount(ways, minlength=levels * levels).view(levels, levels)
    by_speaker = stable_order(ways)
    by_listener = stable_order(above * levels + below)
    return Sweep(
        rows=counts.tolist(),
        speakers=torch.split(within[child[by_speaker]], sent.sum(1).tolist()),
        sent=sent.tolist(),
        listeners=torch.split(within[parent[by_listener]], sent.sum(0).tolist()),
    )


def stable_order(keys: Tensor) -> Tensor:
    """What sorts small whole numbers, those that are equal in the order they came."""
    if keys.device.type != "cpu":
        return torch.argsort(keys, stable=True)
    numbers = keys.numpy()
    if numbers.max(initial=0) <= np.iinfo(np.int16).max:
        numbers = numbers.astype(np.int16)  # numpy then counts instead of comparing: 7 times faster
    return torch.from_numpy(np.argsort(numbers, kind="stable"))
