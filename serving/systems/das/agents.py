"""DAS's two agents at work on the tables of a state. Compiled, or in torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch

from loadmaster.envs.gpu_scheduling import decision_state as on
from loadmaster.envs.gpu_scheduling.actions import apply_action
from loadmaster.envs.gpu_scheduling.observation import blank_observation, observe_if_waiting
from loadmaster.models.das.compiled import Workspace, weights_of, workspace_for
from loadmaster.models.das.compiled_event import (
    EVENT,
    MACHINES,
    NO_REWARD,
    ROWS,
    Scores,
    answer_event,
    empty_scores,
    score_options,
)
from loadmaster.models.das.network import DasNetwork, batch_of_one
from loadmaster.models.das.ordering import Priorities
from loadmaster.models.das.placement import Placements
from loadmaster.serving.systems.das.tables import Tables

TOLD = 5  # jobs, and machines, of a decision


class Agents(Protocol):
    def answer(self, tables: Tables, ask: int) -> Scores | None:
        """Do what they want at a moment, or at all of the EVENT; None: that was not legal.

        What they weighed at the first moment that left them a choice holds until the next answer.
        """
        ...


class CompiledAgents:
    """For as many machines as `kernel.serves`."""

    def __init__(self, network: DasNetwork, queue: int, past: int) -> None:
        self._weights, self._queue, self._past = weights_of(network), queue, past

        def rooms(machines: int) -> tuple[Workspace, Scores]:
            room = workspace_for(network.settings, queue, machines, past)
            return room, empty_scores(TOLD, machines)

        # A cluster loses and wins a machine now and then: a few sizes are kept.
        self._rooms = lru_cache(maxsize=4)(rooms)

    def answer(self, tables: Tables, ask: int) -> Scores | None:
        room, weighed = self._rooms(len(tables.machines))
        view = blank_observation(self._queue, tables.cluster, self._past)
        legal = answer_event(*tables.standing, view, self._weights, room, ask, weighed)
        return weighed if legal else None


class TorchAgents:
    """For any number of machines."""

    def __init__(self, network: DasNetwork, queue: int, past: int) -> None:
        self._network, self._queue, self._past = network, queue, past

    def answer(self, tables: Tables, ask: int) -> Scores | None:
        """As `answer_event` does it."""
        weighed = empty_scores(TOLD, 0)
        view = blank_observation(self._queue, tables.cluster, self._past)
        counts = tables.desk.counts
        with torch.no_grad(), one_thread():
            while observe_if_waiting(*tables.standing, view):
                if ask not in (EVENT, counts[on.MOMENT]):
                    break
                priorities, placements = self._network(batch_of_one(view, int(counts[on.SHOWN])))
                means = torch.where(priorities.mask, priorities.mean, 0), placements.mean()
                priority, affinity = (np.ascontiguousarray(mean[0].numpy()) for mean in means)
                if score_options(view, tables.desk, priority, affinity, weighed):
                    _tell_doubts(priorities, placements, weighed)
                if not apply_action(*tables.standing, NO_REWARD, priority, affinity):
                    return None
                if ask != EVENT:
                    break
        return weighed


def _tell_doubts(priorities: Priorities, placements: Placements, weighed: Scores) -> None:
    rows, machines = weighed.counts[ROWS], weighed.counts[MACHINES]
    weighed.priority_log_std[:rows] = priorities.log_std[0].numpy()[weighed.rows[:rows]]
    if machines:
        doubts = placements.affinities.std[placements.row == weighed.rows[0]][0].numpy()
        weighed.affinity_std[:machines] = doubts[weighed.machines[:machines]]


@contextmanager
def one_thread() -> Iterator[None]:
    """Threads of small matrices wait for each other, longer than they work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
