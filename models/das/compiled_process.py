"""The random-walk process of rwgp.py as compiled code, for one job at a time.

Without gradients less is needed. The exponential time kernel is a Markov chain, so along each
eigenvector a scalar Kalman filter tells the mean as well as the variance, and what was drawn by
way of standard normal numbers has their density, but for a determinant. Nothing is inverted then
but one triangular matrix, and no eigenvector is written out (models/eigensolver.py).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import njit_inline, njit_internal
from loadmaster.envs.gpu_scheduling.features import SPEED
from loadmaster.envs.gpu_scheduling.observation import Observation
from loadmaster.models.das.gaussian_process import RandomWalkProcess
from loadmaster.models.eigensolver import (
    Numbers,
    Rotations,
    add_scaled,
    diagonalise,
    factorise,
    invert,
    rotate,
    rotate_back,
    rotations_for,
)
from loadmaster.models.layers import Table

# What the compiled process reads and writes: its settings, and room to work in.


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
    turns: Rotations
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
        turns=rotations_for(machines),
        variance=np.zeros(machines),
        told=np.zeros(machines * (past + 1)),
        found=np.zeros(machines * 2),
        sums=np.zeros(machines + past + 2),
    )


@njit_inline
def recall(view: Observation, weights: ProcessWeights, room: ProcessRoom) -> None:
    """history.read_history, and the surprise in it, of the moment that all jobs share."""
    found, order = 0, room.order
    for past in range(len(view.history_t)):
        if not view.history_mask[past].any():
            continue
        place = found
        while place > 0 and view.history_t[order[place - 1]] > view.history_t[past]:
            order[place] = order[place - 1]
            place -= 1
        order[place] = past
        found += 1
    found = min(found, weights.tau)
    room.counts[OBSERVED] = found
    for machine in range(len(room.share)):
        times, speed = 0, 0.0
        for place in range(found):
            if view.history_mask[order[place], machine]:
                times += 1
                speed += view.history_y[order[place], machine]
        room.share[machine] = times / max(found, 1)
        usual = np.float64(view.machines[machine, SPEED])
        mean = speed / max(times, 1)
        for place in range(found):
            past = order[found - 1 - place]
            seen = view.history_mask[past, machine]
            own = np.float64(view.history_y[past, machine]) if seen else mean
            room.surprise[machine, place] = own - usual
    younger = 0.0
    for place in range(found):
        age = max(np.float64(view.history_t[order[place]]), 0.0)
        room.decay[found - 1 - place] = np.exp((younger - age) / weights.memory_s)
        younger = age


@njit_internal
def believe(
    kinds: Table,
    rack: NDArray[np.int64],
    standard: Table,
    draws: bool,
    weights: ProcessWeights,
    room: ProcessRoom,
) -> float:
    """What a job wins on each machine by what was observed, and a draw around it, in `found`.

    Both are (M, 2) there, for an amplitude of 1, drawn by way of `standard`. Half the
    log-determinant of the covariance comes back; 0 where nothing is drawn.
    """
    machines, observed = len(rack), room.counts[OBSERVED]
    _tie(kinds, rack, weights, room)
    half_log = _walk(room, draws)
    found = room.found[: machines * 2].reshape((machines, 2))
    if observed == 0:
        for machine in range(machines):
            found[machine, 0], found[machine, 1] = 0.0, standard[machine]
    else:
        told = room.told[: machines * (observed + 1)].reshape((machines, observed + 1))
        _listen(standard, room, told)
        diagonalise(room.turns)
        rotate(room.turns, told, room.sums[: observed + 1])
        half_log += _filter(weights, room, told, found, draws)
        rotate_back(room.turns, found, room.sums[:2])
    for machine in range(machines):  # root times it; what is read is not yet written over
        mean, drawn, row = 0.0, 0.0, room.root[machine]
        for other in range(machine, machines):
            mean += row[other] * found[other, 0]
            drawn += row[other] * found[other, 1]
        found[machine, 0], found[machine, 1] = mean, drawn
    return half_log


@njit_inline
def doubt(machines: NDArray[np.int64], room: ProcessRoom, turned: Numbers, out: Table) -> None:
    """Standard deviations of what the job just believed in wins on each of these K machines.

    For an amplitude of 1: the root of each one's part of root V variance V' root'. `turned` (M, K)
    is scratch.
    """
    if room.counts[OBSERVED] == 0:
        out[:] = 1  # K's own diagonal
        return
    for i in range(len(turned)):
        for place in range(len(machines)):
            turned[i, place] = room.root[machines[place], i] if i >= machines[place] else 0.0
    rotate(room.turns, turned, room.sums[: len(machines)])
    for place in range(len(machines)):
        own = 0.0
        for i in range(len(turned)):
            own += room.variance[i] * turned[i, place] * turned[i, place]
        out[place] = np.sqrt(own)


@njit_inline
def _tie(kinds: Table, rack: NDArray[np.int64], weights: ProcessWeights, room: ProcessRoom) -> None:
    """I - walk S, its upper part: A_kl = E_kl exp(-|phi_k - phi_l|^2 / 2l^2), see walk.py."""
    ties, degree, machines = room.ties, room.sums, len(rack)
    per_length = 1 / weights.length
    for i in range(machines):
        degree[i] = 1
    for i in range(machines):
        row, others = ties[i, i + 1 :], degree[i + 1 :]
        for j in range(len(row)):
            row[j] = 0
        for kind in range(len(kinds)):
            own, every = np.float64(kinds[kind, i]), kinds[kind, i + 1 :]
            for j in range(len(row)):
                apart = (own - np.float64(every[j])) * per_length
                row[j] += apart * apart
        for j in range(len(row)):
            near = weights.same_rack if rack[i] == rack[i + 1 + j] else weights.cross_rack
            row[j] = near * np.exp(row[j] / -2)
            degree[i] += row[j]
            others[j] += row[j]
    for i in range(machines):
        degree[i] = 1 / np.sqrt(degree[i])
    for i in range(machines):
        row, others = ties[i, i + 1 :], degree[i + 1 :]
        factor = -weights.walk * degree[i]
        ties[i, i] = 1 + factor * degree[i]
        for j in range(len(row)):
            row[j] *= factor * others[j]


@njit_inline
def _walk(room: ProcessRoom, draws: bool) -> float:
    """The root of K, whose diagonal is 1, and the logarithm of its determinant."""
    half_log, ties, root = 0.0, room.ties, room.root
    factorise(ties)
    invert(ties, root)
    for machine in range(len(root)):
        own, row = 0.0, root[machine]
        for other in range(machine, len(root)):
            own += row[other] * row[other]
        unit = 1 / np.sqrt(own)
        for other in range(machine, len(root)):
            row[other] *= unit
        if draws:
            half_log += np.log(unit / ties[machine, machine])
    return half_log


@njit_inline
def _listen(standard: Table, room: ProcessRoom, told: Numbers) -> None:
    """W = root' diag(share) root, and root' diag(share) times each surprise, oldest first."""
    precision, root, machines = room.turns.reflected, room.root, len(room.share)
    columns = told.shape[1] - 1
    for i in range(machines):
        precision[i, :] = 0
        told[i, :] = 0
        told[i, columns] = standard[i]
    for machine in range(machines):
        share, row = room.share[machine], root[machine]
        if share == 0:
            continue
        for i in range(machine, machines):
            weighed, heard = share * row[i], told[i]
            add_scaled(precision[i, i:], weighed, row[i:])
            for past in range(columns):
                heard[past] += weighed * room.surprise[machine, past]
    for i in range(machines):
        for j in range(i):
            precision[i, j] = precision[j, i]


@njit_inline
def _filter(
    weights: ProcessWeights, room: ProcessRoom, told: Numbers, found: Numbers, draws: bool
) -> float:
    """A Kalman filter along each eigenvector: mean, a draw, and half the log-determinant."""
    half_log, noise, columns = 0.0, weights.noise, told.shape[1] - 1
    for place in range(len(told)):
        mean, variance, value = 0.0, 1.0, room.turns.values[place]
        for past in range(columns):
            precise = variance * value + noise
            mean = (mean * noise + variance * told[place, past]) / precise
            variance = variance * noise / precise
            decay = room.decay[past]
            mean *= decay
            variance = 1 - decay * decay * (1 - variance)
        room.variance[place] = variance
        found[place, 0], found[place, 1] = mean, 0.0
        if draws:
            found[place, 1] = np.sqrt(variance) * told[place, columns]
            half_log += np.log(variance) / 2
    return half_log
