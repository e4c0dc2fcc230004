"""Tables on a GPU whose sizes and addresses stay the same from minibatch to minibatch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

# Places that stay free when tables grow: a share of those needed, and some more, as rare kinds vary
# most: stages of the greatest height by 60% from one iteration to the next.
SPARE, SPARE_ROWS, SPARE_OPTIONS = 0.3, 2048, 16


class Sizes(NamedTuple):
    """Places of a minibatch. Of each kind, but for edges, the last is always padding."""

    levels: tuple[int, ...]  # stages by height
    edges: tuple[int, ...]  # by the height of the parent
    jobs: int
    decisions: int
    legal: int  # schedulable stages
    limits: int
    widest: tuple[int, int]  # most schedulable stages and limits of a decision

    def grown(self, needed: Sizes) -> Sizes:
        """These if they have room for `needed`; otherwise larger ones of all kinds.

        With kinds that grew one by one, 5 of the first 13 iterations allocated new tables.
        """
        deepest = max(len(self.levels), len(needed.levels))
        own, other = self._flat(deepest), needed._flat(deepest)
        if all(has > needs for has, needs in zip(own, other, strict=True)):
            return self
        spare = [SPARE_ROWS] * (len(own) - 2) + [SPARE_OPTIONS] * 2
        sizes = [
            max(has, int(needs * (1 + SPARE)) + more)
            for has, needs, more in zip(own, other, spare, strict=True)
        ]
        jobs, decisions, legal, limits, widest_legal, widest_limits = sizes[2 * deepest :]
        return Sizes(
            levels=tuple(sizes[:deepest]),
            edges=tuple(sizes[deepest : 2 * deepest]),
            jobs=jobs,
            decisions=decisions,
            legal=legal,
            limits=limits,
            widest=(widest_legal, widest_limits),
        )

    def _flat(self, levels: int) -> list[int]:
        """All sizes in one list, with 0 for levels that are not there."""
        by_level = [own + (0,) * (levels - len(own)) for own in (self.levels, self.edges)]
        others = (self.jobs, self.decisions, self.legal, self.limits)
        return [*by_level[0], *by_level[1], *others, *self.widest]


NOTHING = Sizes((0,), (0,), 0, 0, 0, 0, (0, 0))


class Places(NamedTuple):
    """Where everything of a minibatch comes from and belongs to, as arrays or tensors.

    R stages sorted by height, J jobs, E edges by the height of their parents, B decisions.
    """

    stage_source: Any  # (R,) row of the recording
    stage_decision: Any  # (R,)
    stage_job: Any  # (R,)
    job_source: Any  # (J,) row of the recording
    job_decision: Any  # (J,)
    child: Any  # (E,) stage
    parent: Any  # (E,) stage within its level
    legal_stage: Any  # (legal,)
    legal_decision: Any  # (legal,)
    legal_place: Any  # (legal,) place among the decision's own
    limit: Any  # (limits,) the limit itself
    limit_decision: Any  # (limits,)
    limit_place: Any  # (limits,)
    source: Any  # (B,) row of the recording
    job: Any  # (B,) job of the chosen stage
    chosen_stage: Any  # (B,) place among the decision's schedulable stages
    chosen_limit: Any  # (B,) place among its limits
    is_real: Any  # (B,) 1: not padding


def places_in(buffer: Any, sizes: Sizes) -> Places:
    """The parts of one buffer of whole numbers."""
    stages, edges = sum(sizes.levels), sum(sizes.edges)
    counts = [stages] * 3 + [sizes.jobs] * 2 + [edges] * 2 + [sizes.legal] * 3
    counts += [sizes.limits] * 3 + [sizes.decisions] * 5
    ends = np.cumsum(counts).tolist()
    return Places(*(buffer[end - count : end] for count, end in zip(counts, ends, strict=True)))


def buffer_size(sizes: Sizes) -> int:
    return sum(len(part) for part in places_in(range(1 << 40), sizes))


class Workspace:
    """Tables on the device, kept from minibatch to minibatch; replaced when one does not fit."""

    def __init__(self, device: Any) -> None:
        self._device = torch.device(device)
        self.sizes = NOTHING
        self._host: list[tuple[Tensor, Any]] = []  # used in turn; an event follows their last copy
        self.ints = torch.zeros(0)  # see `places_in`
        self.tables: dict[str, Tensor] = {}

    def fit(self, needed: Sizes, widths: Mapping[str, tuple[int, ...]]) -> None:
        """`widths`: of a row of each table."""
        sizes = self.sizes.grown(needed)
        if sizes == self.sizes:
            return
        self.sizes, on_gpu = sizes, self._device.type == "cuda"
        length = buffer_size(sizes)
        self._host = [
            (
                torch.zeros(length, dtype=torch.int32, pin_memory=on_gpu),
                torch.cuda.Event() if on_gpu else None,  # type: ignore[no-untyped-call]
            )
            for _ in range(2)
        ]
        self.ints = torch.zeros(length, dtype=torch.int32, device=self._device)
        rows = {"stages": sum(sizes.levels), "jobs": sizes.jobs}
        self.tables = {
            name: torch.zeros((rows.get(name, sizes.decisions), *width), device=self._device)
            for name, width in widths.items()
        }

    def free_places(self) -> Places:
        """Arrays to fill before the next `copy_places`."""
        buffer, event = self._host[0]
        if event is not None:
            event.synchronize()  # not before the copy before the last has ended
        return places_in(buffer.numpy(), self.sizes)

    def copy_places(self) -> None:
        buffer, event = self._host[0]
        self.ints.copy_(buffer, non_blocking=True)
        if event is not None:
            event.record()
        self._host.reverse()
