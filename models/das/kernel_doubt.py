"""How sure the placement agent is, machine by machine, in compiled code: for those who explain."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled
from loadmaster.envs.gpu_scheduling.observation import Observation
from loadmaster.models.das.kernel import Room, Weights, log_amplitude_of
from loadmaster.models.das.kernel_placement import KINDS, SPREAD, look_at_pairs
from loadmaster.models.das.kernel_process import believe, doubt
from loadmaster.models.das.normal import LEAST_LOG_STD, MOST_LOG_STD
from loadmaster.models.layers import Table
from loadmaster.models.symmetric import Numbers

_LEAST, _MOST = np.float32(LEAST_LOG_STD), np.float32(MOST_LOG_STD)


@compiled
def doubts(
    view: Observation,
    row: int,
    machines: NDArray[np.int64],
    weights: Weights,
    room: Room,
    turned: Numbers,
    out: Table,
) -> None:
    """Standard deviations of a job's affinities to K machines, after `decide` about this view.

    The job of that row fits somewhere. `turned` (M, K) is scratch.
    """
    said = room.placement.said
    if room.last[0] != row:  # mostly one job fits, and has just been looked at
        look_at_pairs(view, row, weights.placement, room.placement)
        if weights.has_process:
            believe(said[KINDS:], view.rack, room.standard, False, weights.process, room.process)
        room.last[0] = row
    if weights.has_process:
        doubt(machines, room.process, turned, out)
        amplitude = np.exp(log_amplitude_of(said[SPREAD], len(view.machines)))
        for place in range(len(machines)):
            out[place] *= amplitude
    else:
        for place in range(len(machines)):
            out[place] = np.exp(min(max(said[SPREAD, machines[place]], _LEAST), _MOST))
