"""What the compiled process reads and writes: its settings, and room to work in."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.models.das.rwgp import RandomWalkProcess
from loadmaster.models.symmetric import Numbers, Turns, turns_for

# Places in `ProcessRoom.counts`.
OBSERVED = 0  # decisions that something was observed at


class ProcessWeights(NamedTuple):
    """What `RandomWalkProcess` is set to and has learnt."""

    walk: float
    same_rack: float
    cross_rack: float
    length: float
    memory_s: float
    noise: float
    gain: float
    tau: int


class ProcessRoom(NamedTuple):
    """M machines, up to T past decisions; of a moment, then of a job."""

    counts: NDArray[np.int64]  # (1,)
    order: NDArray[np.int64]  # (T,) decisions with an observation, the youngest first
    surprise: Numbers  # (M, T) speed beyond the usual, the oldest decision first, gaps filled
    share: Numbers  # (M,) of those decisions at which this machine was observed
    decay: Numbers  # (T,) from each of them to the next, from the last to now
    ties: Numbers  # (M, M) A, then I - walk S, then U with U'U = I - walk S
    root: Numbers  # (M, M) the upper part: K = root root'
    turns: Turns
    variance: Numbers  # (M,) along each eigenvector, relative to the amplitude
    told: Numbers  # (M * (T + 1),) what was observed, and the numbers to draw by
    found: Numbers  # (M * 2,) the posterior's mean, and what was drawn
    sums: Numbers  # (M + T + 2,)


def process_weights(process: RandomWalkProcess) -> ProcessWeights:
    settings = process.settings
    return ProcessWeights(
        walk=settings.walk,
        same_rack=settings.same_rack,
        cross_rack=settings.cross_rack,
        length=float(process.log_length.detach().double().exp()),
        memory_s=float(process.log_memory.detach().double().exp()),
        noise=float(process.log_noise.detach().double().exp()),
        gain=float(process.log_gain.detach().double().exp()),
        tau=settings.tau,
    )


def process_room(machines: int, past: int) -> ProcessRoom:
    return ProcessRoom(
        counts=np.zeros(1, np.int64),
        order=np.zeros(past, np.int64),
        surprise=np.zeros((machines, past)),
        share=np.zeros(machines),
        decay=np.zeros(past),
        ties=np.zeros((machines, machines)),
        root=np.zeros((machines, machines)),
        turns=turns_for(machines),
        variance=np.zeros(machines),
        told=np.zeros(machines * (past + 1)),
        found=np.zeros(machines * 2),
        sums=np.zeros(machines + past + 2),
    )
