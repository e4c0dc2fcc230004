"""The speeds that were observed at the last decisions, made ready for the process."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class History(NamedTuple):
    """Oldest decision first; T of them.

    Not every machine ran something at every decision, and an arbitrary pattern of gaps would
    break the Kronecker product. A pattern that is a product, decisions x machines, does not: the
    variance of an observation is noise / (row * share). So a machine that was observed in a
    share of the decisions counts as observed in all of them, that much less surely, with its own
    mean in the gaps. Its observations weigh as much together as they really do. Nothing at all is
    said of a machine or a decision without any, exactly; and where speeds last much longer than
    the gaps, the rest is exact too.
    """

    speed: Tensor  # (B, T, M) relative, gaps filled
    row: Tensor  # (B, T) 1: something was observed then
    share: Tensor  # (B, M) of those decisions at which this machine was observed
    gap: Tensor  # (B, T) s to the next decision, from the last to now

    def take(self, rows: Tensor) -> History:
        """Of these observations alone."""
        return History(*(table.index_select(0, rows) for table in self))


@torch.no_grad()
def read_history(speed: Tensor, observed: Tensor, age_s: Tensor, tau: int) -> History:
    """Of the `tau` youngest decisions with an observation: (B, T, M), the same, (B, T)."""
    some = observed.any(-1)
    order = torch.where(some, age_s, torch.inf).argsort(dim=1, stable=True)[:, :tau]
    order = order.flip(1)  # the oldest first, those with nothing before them
    row = some.gather(1, order)
    wide = order.unsqueeze(-1).expand(-1, -1, speed.shape[-1])
    seen = observed.gather(1, wide)
    known = torch.where(seen, speed.gather(1, wide), 0.0).double()
    times = seen.sum(1)  # (B, M)
    mean = known.sum(1) / times.clamp(min=1)
    filled = torch.where(seen, known, mean.unsqueeze(1))
    age = torch.where(row, age_s.gather(1, order), -torch.inf).double()
    # What has no observation is as old as the oldest that has one: no gap in between.
    oldest = age.amax(1, keepdim=True).clamp(min=0)
    age = torch.where(row, age, oldest).clamp(min=0)
    gap = age - torch.cat([age[:, 1:], torch.zeros_like(age[:, :1])], dim=1)
    share = times / row.sum(1, keepdim=True).clamp(min=1)
    return History(filled, row.double(), share.double(), gap)
