"""DAS's two agents at a moment: what they want, and how sure they are. Compiled, or in torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from loadmaster.envs.gpu_scheduling.observation import Observation
from loadmaster.models.das.kernel import Room, decide, room_for, weights_of
from loadmaster.models.das.kernel_doubt import doubts
from loadmaster.models.das.network import DasNetwork, batch_of_one
from loadmaster.models.layers import Table


class Agents(Protocol):
    """What they say of a view holds until the next one."""

    def decide(self, view: Observation, rows: int) -> tuple[Table, Table]:
        """Priorities (Q,) and affinities (Q, M), of which the first `rows` count."""
        ...

    def priority_doubts(self, rows: NDArray[np.int64]) -> Table:
        """Standard deviations of the priorities of these rows."""
        ...

    def affinity_doubts(self, row: int, machines: NDArray[np.int64]) -> Table:
        """Those of the affinities of a job that fits somewhere to these machines."""
        ...


class CompiledAgents:
    """For as many machines as `kernel.serves`."""

    def __init__(self, network: DasNetwork, queue: int, past: int) -> None:
        self._weights = weights_of(network)
        # A cluster loses and wins a machine now and then: a few sizes are kept.
        self._room_for = lru_cache(maxsize=4)(
            lambda machines: room_for(network.settings, queue, machines, past)
        )
        self._seen: tuple[Observation, Room] | None = None

    def decide(self, view: Observation, rows: int) -> tuple[Table, Table]:
        room = self._room_for(len(view.rack))
        decide(view, self._weights, room, False, np.int64(0))
        self._seen = view, room
        return room.priority, room.affinity

    def priority_doubts(self, rows: NDArray[np.int64]) -> Table:
        assert self._seen is not None
        found: Table = np.exp(self._seen[1].ordering.log_std[rows])
        return found

    def affinity_doubts(self, row: int, machines: NDArray[np.int64]) -> Table:
        assert self._seen is not None
        view, room = self._seen
        found = np.zeros(len(machines), np.float32)
        turned = np.zeros((len(view.rack), len(machines)))
        doubts(view, row, machines, self._weights, room, turned, found)
        return found


class TorchAgents:
    """For any number of machines."""

    def __init__(self, network: DasNetwork) -> None:
        self._network = network

    def decide(self, view: Observation, rows: int) -> tuple[Table, Table]:
        with torch.no_grad(), one_thread():
            priorities, placements = self._network(batch_of_one(view, rows))
            priority = torch.where(priorities.mask, priorities.mean, 0)
            affinity = placements.mean()
        self._priorities, self._placements = priorities, placements
        return np.ascontiguousarray(priority[0].numpy()), np.ascontiguousarray(affinity[0].numpy())

    def priority_doubts(self, rows: NDArray[np.int64]) -> Table:
        found: Table = self._priorities.log_std[0].exp().numpy()[rows]
        return found

    def affinity_doubts(self, row: int, machines: NDArray[np.int64]) -> Table:
        with torch.no_grad(), one_thread():
            std = self._placements.affinities.std[self._placements.row == row][0]
        found: Table = std.float().numpy()[machines]
        return found


@contextmanager
def one_thread() -> Iterator[None]:
    """Threads of small matrices wait for each other, longer than they work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
