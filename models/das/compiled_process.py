"""The random-walk process of gaussian_process.py as compiled code, for one job at a time.

Without gradients, a scalar Kalman filter along each eigenvector gives mean and variance, since the
exponential time kernel is a Markov chain. The density of a draw is that of the standard normal
numbers behind it, up to a determinant. So only one triangular matrix is inverted, and no
eigenvector is written out (models/eigensolver.py).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from loadmaster.envs.compiled import njit_inline, njit_internal
from loadmaster.envs.gpu_scheduling.features import SPEED
from loadmaster.envs.gpu_scheduling.observation import Observation
from loadmaster.models.das.gaussian_process import RandomWalkProcess
from loadmaster.models.eigensolver import (
    Array64,
    Rotations,
    add_scaled,
    diagonalise,
    factorise,
    invert,
    rotate,
    rotate_back,
    rotations_for,
)
from loadmaster.models.layers import Array32

Flag = bool | np.bool_


class ProcessWeights(NamedTuple):
    """Settings and learned parameters of `RandomWalkProcess`."""

    walk: float
    same_rack: float
    cross_rack: float
    length: float
    memory_s: float
    noise: float
    gain: float
    tau: int


class ProcessWorkspace(NamedTuple):
    """Scratch memory and results for M machines and up to T past decisions."""

    decisions: NDArray[np.int64]  # (1,) past decisions with an observation, at most T
    order: NDArray[np.int64]  # (T,) these decisions, the youngest first
    residual: Array64  # (M, T) observed minus usual speed, the oldest first, gaps filled
    share: Array64  # (M,) of these decisions at which this machine was observed
    decay: Array64  # (T,) from each of them to the next, from the last to now
    ties: Array64  # (M, M) A, then I - walk S, then U with U'U = I - walk S
    root: Array64  # (M, M) the upper part: K = root root'
    rotations: Rotations
    variance: Array64  # (M,) along each eigenvector, relative to the amplitude
    observed: Array64  # (M * (T + 1),) weighted residuals, and the numbers to draw by
    result: Array64  # (M * 2,) the posterior's mean, and the draw
    sums: Array64  # (M + T + 2,)


def process_weights(process: RandomWalkProcess) -> ProcessWeights:
    settings = process.settings

    def learned(log: Tensor) -> float:
        return float(log.detach().double().exp())

    return ProcessWeights(
        settings.walk,
        settings.same_rack,
        settings.cross_rack,
        length=learned(process.log_length),
        memory_s=learned(process.log_memory),
        noise=learned(process.log_noise),
        gain=learned(process.log_gain),
        tau=settings.tau,
    )


def process_workspace(machines: int, past: int) -> ProcessWorkspace:
    return ProcessWorkspace(
        decisions=np.zeros(1, np.int64),
        order=np.zeros(past, np.int64),
        residual=np.zeros((machines, past)),
        share=np.zeros(machines),
        decay=np.zeros(past),
        ties=np.zeros((machines, machines)),
        root=np.zeros((machines, machines)),
        rotations=rotations_for(machines),
        variance=np.zeros(machines),
        observed=np.zeros(machines * (past + 1)),
        result=np.zeros(machines * 2),
        sums=np.zeros(machines + past + 2),
    )


@njit_inline
def load_history(view: Observation, weights: ProcessWeights, work: ProcessWorkspace) -> None:
    """gaussian_process.read_history, which all jobs of an observation share."""
    decisions, order = 0, work.order
    for past in range(len(view.history_t)):
        if not view.history_mask[past].any():
            continue
        place = decisions
        while place > 0 and view.history_t[order[place - 1]] > view.history_t[past]:
            order[place] = order[place - 1]
            place -= 1
        order[place] = past
        decisions += 1
    decisions = min(decisions, weights.tau)
    work.decisions[0] = decisions
    for machine in range(len(work.share)):
        times, speed = 0, 0.0
        for place in range(decisions):
            if view.history_mask[order[place], machine]:
                times += 1
                speed += view.history_y[order[place], machine]
        work.share[machine] = times / max(decisions, 1)
        usual = np.float64(view.machines[machine, SPEED])
        mean = speed / max(times, 1)
        for place in range(decisions):
            past = order[decisions - 1 - place]
            seen = view.history_mask[past, machine]
            own = np.float64(view.history_y[past, machine]) if seen else mean
            work.residual[machine, place] = own - usual
    younger = 0.0
    for place in range(decisions):
        age = max(np.float64(view.history_t[order[place]]), 0.0)
        work.decay[decisions - 1 - place] = np.exp((younger - age) / weights.memory_s)
        younger = age


@njit_internal
def posterior(
    kinds: Array32,
    rack: NDArray[np.int64],
    standard: Array32,
    sample: Flag,
    weights: ProcessWeights,
    work: ProcessWorkspace,
) -> float:
    """Write the posterior's mean and a draw by `standard` into `work.result`, as (M, 2).

    Both are for an amplitude of 1. Returns half the log-determinant of the covariance, or 0
    without `sample`.
    """
    machines, decisions = len(rack), work.decisions[0]
    _load_ties(kinds, rack, weights, work)
    half_log = _kernel_root(work, sample)
    result = work.result[: machines * 2].reshape((machines, 2))
    if decisions == 0:
        for machine in range(machines):
            result[machine, 0], result[machine, 1] = 0.0, standard[machine]
    else:
        observed = work.observed[: machines * (decisions + 1)].reshape((machines, decisions + 1))
        _load_observations(standard, work, observed)
        diagonalise(work.rotations)
        rotate(work.rotations, observed, work.sums[: decisions + 1])
        half_log += _kalman_filter(weights, work, observed, result, sample)
        rotate_back(work.rotations, result, work.sums[:2])
    for machine in range(machines):  # root times it; later rows are still unchanged when read
        mean, drawn, row = 0.0, 0.0, work.root[machine]
        for other in range(machine, machines):
            mean += row[other] * result[other, 0]
            drawn += row[other] * result[other, 1]
        result[machine, 0], result[machine, 1] = mean, drawn
    return half_log


@njit_inline
def posterior_std(
    machines: NDArray[np.int64], work: ProcessWorkspace, scratch: Array64, out: Array32
) -> None:
    """Standard deviations on these K machines, after `posterior`, for an amplitude of 1.

    The roots of the diagonal of root V variance V' root'; `scratch` is (M, K).
    """
    if work.decisions[0] == 0:
        out[:] = 1  # the diagonal of K
        return
    for i in range(len(scratch)):
        for place in range(len(machines)):
            scratch[i, place] = work.root[machines[place], i] if i >= machines[place] else 0.0
    rotate(work.rotations, scratch, work.sums[: len(machines)])
    for place in range(len(machines)):
        own = 0.0
        for i in range(len(scratch)):
            own += work.variance[i] * scratch[i, place] * scratch[i, place]
        out[place] = np.sqrt(own)


@njit_inline
def _load_ties(
    kinds: Array32, rack: NDArray[np.int64], weights: ProcessWeights, work: ProcessWorkspace
) -> None:
    """The upper part of I - walk S, with A_kl = E_kl exp(-|phi_k - phi_l|^2 / 2l^2)."""
    ties, degree, machines = work.ties, work.sums, len(rack)
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
def _kernel_root(work: ProcessWorkspace, sample: Flag) -> float:
    """Write the root of K, scaled to a diagonal of 1; return the log of its determinant."""
    half_log, ties, root = 0.0, work.ties, work.root
    factorise(ties)
    invert(ties, root)
    for machine in range(len(root)):
        own, row = 0.0, root[machine]
        for other in range(machine, len(root)):
            own += row[other] * row[other]
        unit = 1 / np.sqrt(own)
        for other in range(machine, len(root)):
            row[other] *= unit
        if sample:
            half_log += np.log(unit / ties[machine, machine])
    return half_log


@njit_inline
def _load_observations(standard: Array32, work: ProcessWorkspace, observed: Array64) -> None:
    """W = root' diag(share) root, and root' diag(share) times each residual, oldest first."""
    precision, root, machines = work.rotations.matrix, work.root, len(work.share)
    columns = observed.shape[1] - 1
    for i in range(machines):
        precision[i, :] = 0
        observed[i, :] = 0
        observed[i, columns] = standard[i]
    for machine in range(machines):
        share, row = work.share[machine], root[machine]
        if share == 0:
            continue
        for i in range(machine, machines):
            weighted, own = share * row[i], observed[i]
            add_scaled(precision[i, i:], weighted, row[i:])
            for past in range(columns):
                own[past] += weighted * work.residual[machine, past]
    for i in range(machines):
        for j in range(i):
            precision[i, j] = precision[j, i]


@njit_inline
def _kalman_filter(
    weights: ProcessWeights,
    work: ProcessWorkspace,
    observed: Array64,
    result: Array64,
    sample: Flag,
) -> float:
    """Mean and draw along each eigenvector; returns half the log-determinant."""
    half_log, noise, columns = 0.0, weights.noise, observed.shape[1] - 1
    for place in range(len(observed)):
        mean, variance, value = 0.0, 1.0, work.rotations.values[place]
        for past in range(columns):
            precise = variance * value + noise
            mean = (mean * noise + variance * observed[place, past]) / precise
            variance = variance * noise / precise
            decay = work.decay[past]
            mean *= decay
            variance = 1 - decay * decay * (1 - variance)
        work.variance[place] = variance
        result[place, 0], result[place, 1] = mean, 0.0
        if sample:
            result[place, 1] = np.sqrt(variance) * observed[place, columns]
            half_log += np.log(variance) / 2
    return half_log
